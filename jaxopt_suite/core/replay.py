"""A policy on logged data, learning from the rows where it would have done the same."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core import checks
from jaxopt_suite.core.interaction import interaction_keys
from jaxopt_suite.core.late import blank_unless
from jaxopt_suite.core.sums import add, zero_sum
from jaxopt_suite.core.types import Policy


class Logged(NamedTuple):
    """Logged rows for :func:`replay`, all leaves with one leading axis.

    Attributes:
        context: what the logging policy saw.
        decision: what it decided.
        feedback: what came back, a NamedTuple with fields ``decision``, ``mask`` and
            ``reward``.
    """

    context: PyTree[Array]
    decision: PyTree[Array]
    feedback: PyTree[Array]


class ReplayResult(NamedTuple):
    """What :func:`replay` returns; ``reward[-1] / matches[-1]`` estimates the value.

    Attributes:
        state: the policy's last state.
        matches: rows learned from so far, after each row.
        reward: their summed reward so far, after each row.
    """

    state: PyTree
    matches: Int[Array, " rows"]
    reward: Float[Array, " rows"]


def replay(
    policy: Policy,
    logged: Logged,
    key: PRNGKeyArray,
    *,
    match: Callable[[Any, Any], Bool[Array, ""]] | None = None,
) -> ReplayResult:
    """Runs a policy on logged rows, and learns where it would have done the same.

    In each row the policy selects (row ``t`` with ``fold_in(select, t)``, see
    :func:`interaction_keys`). Where its decision matches the logged one, it learns from
    the feedback, with its own decision in it; other rows reach it as zeros with mask
    False. If the log was made by uniform random choice, independent of everything, the
    rows that match are distributed as a run of the policy itself, and the mean reward
    of the matches estimates its value without bias.

    Args:
        policy: who decides.
        logged: the rows, as :class:`Logged` or a tuple of its three fields.
        key: a typed key.
        match: ``match(decision, logged_decision) -> bool``. None compares the field
            ``arm`` where decisions have it, else all leaves.

    Raises:
        ValueError: rows have different leading sizes, there are none, or the feedback
            lacks a field.

    Example:
        >>> from typing import NamedTuple
        >>> from jaxopt_suite.core import Policy
        >>> class Feedback(NamedTuple):
        ...     decision: jax.Array
        ...     reward: jax.Array
        ...     mask: jax.Array
        >>> arms = jnp.array([0, 1, 1, 0])
        >>> rewards = jnp.array([5.0, 1.0, 3.0, 5.0])
        >>> feedback = Feedback(arms, rewards, jnp.ones(4, bool))
        >>> second = Policy(lambda key: (), lambda *_: 1, lambda feedback, state: state)
        >>> log = Logged(jnp.zeros(4), arms, feedback)
        >>> result = replay(second, log, jax.random.key(0))
        >>> result.matches, result.reward
        (Array([0, 1, 2, 2], dtype=int32), Array([0., 1., 4., 4.], dtype=float32))

    Source: Li, Chu, Langford, Wang, "Unbiased Offline Evaluation of
    Contextual-bandit-based News Article Recommendation Algorithms" (2011), arXiv
    1003.5956.
    """
    logged = Logged(*logged)
    if not checks.leading_size("logged", logged):
        raise ValueError("logged must have at least one row, got none")
    missing = {"decision", "mask", "reward"} - {
        *getattr(logged.feedback, "_fields", ())
    }
    if missing:
        raise ValueError(
            "logged.feedback must be a NamedTuple with the fields decision, mask and "
            f"reward, got {type(logged.feedback).__name__} without {sorted(missing)}"
        )
    keys, same = interaction_keys(key), match or _same_decision
    reward = jnp.asarray(logged.feedback.reward)

    def step(carry, row):
        t, state, matches, total = carry
        decision = policy.select(state, row.context, jax.random.fold_in(keys.select, t))
        hit = same(decision, row.decision) & row.feedback.mask
        feedback = blank_unless(hit, row.feedback._replace(decision=decision))
        state = policy.update(feedback, state)
        matches = matches + hit
        total = add(total, feedback.reward)
        return (t + 1, state, matches, total), (matches, total.total)

    zero, start = jnp.zeros([], jnp.int32), policy.init(keys.policy)
    total = zero_sum(reward[0])
    (_, state, _, _), (matches, rewards) = jax.lax.scan(
        step, (zero, start, zero, total), logged
    )
    return ReplayResult(state, matches, rewards)


def _same_decision(decision: Any, logged: Any) -> Bool[Array, ""]:
    if hasattr(decision, "arm"):
        return decision.arm == logged.arm
    same = jax.tree.map(lambda a, b: jnp.all(a == b), decision, logged)
    return jnp.all(jnp.stack(jax.tree.leaves(same)))
