"""The battery for :class:`jaxopt_suite.core.Policy`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxopt_suite.core.types import Environment, Policy
from jaxopt_suite.testing._common import (
    NUM_STEPS,
    Rule,
    Subject,
    make_pairs,
    require_close,
    require_difference,
    require_same_type,
    run_rules,
    stack,
)
from jaxopt_suite.testing._rules import COMMON_RULES, FIRST_RULES


class _Carry(NamedTuple):
    state: PyTree
    world: PyTree
    context: PyTree


@dataclass(frozen=True, kw_only=True)
class _Player(Subject):
    """A policy against an environment."""

    environment: Environment
    randomized: bool

    def begin(self, method, start):
        return _Carry(method.init(start[0]), *self.environment.init(start[1]))

    def data(self, lane):
        keys = jax.random.split(jax.random.key(lane), (NUM_STEPS + 1, 2))
        return keys[0], keys[1:]

    def step(self, method, carry, inputs):
        state, world, context = carry
        decision = method.select(state, context, inputs[0])
        world, context, feedback = self.environment.step(world, decision, inputs[1])
        carry = _Carry(method.update(feedback, state), world, context)
        return (decision, feedback), carry

    def state(self, carry):
        return carry.state


def check_policy(
    factory: Callable[..., Policy],
    hyperparameters: Mapping[str, Any] | None = None,
    *,
    environment: Environment,
    static: Mapping[str, Any] | None = None,
    key: str | None = None,
    randomized: bool = False,
    bad: Sequence[tuple[Mapping[str, Any], str]] = (),
    skip: Mapping[str, str] | None = None,
    tolerance: float = 1e-5,
) -> dict[str, str]:
    """Runs the contract of policies on one factory, against an environment.

    Args:
        factory: ``factory(**static, **hyperparameters)`` returns a ``Policy``.
        hyperparameters: the numeric ones, which may be traced: a value, or a pair of
            valid values to sweep between. A single value v is swept down to 0.8 v.
        environment: what answers the policy; it must itself keep the contract.
        static: all other arguments of the factory.
        key: name of the factory's argument that takes a PRNG key, if it has one.
        randomized: whether ``select`` must draw: another key, another decision.
        bad: pairs ``(overrides, pattern)`` that must raise a matching ValueError.
        skip: rule name to the reason why this factory is exempt from it.
        tolerance: largest difference, relative to one plus the largest entry.

    Returns:
        Rule name to ``"passed"`` or the reason why it did not run.

    Raises:
        AssertionError: a rule is broken; the message has its name, the factory, what
            was seen and what to do.
        ValueError: ``skip`` has an unknown rule or no reason.

    Example:
        >>> from typing import NamedTuple
        >>> from jaxopt_suite.core import Environment, Policy
        >>> from jaxopt_suite.testing import check_policy
        >>> class Feedback(NamedTuple):
        ...     decision: jax.Array
        ...     mask: jax.Array
        ...     reward: jax.Array
        >>> class Mean(NamedTuple):
        ...     total: jax.Array
        ...     count: jax.Array
        >>> def step(state, decision, key):
        ...     reward = jax.random.normal(key) - decision**2
        ...     return state, jnp.ones([]), Feedback(decision, jnp.array(True), reward)
        >>> world = Environment(lambda key: ((), jnp.ones([])), step)
        >>> def follow_mean(gain):
        ...     '''>>> follow_mean(0.5)  # decides gain times the mean reward'''
        ...     def select(state, context, key):
        ...         return gain * state.total / jnp.maximum(state.count, 1)
        ...     def update(feedback, state):
        ...         seen = jnp.where(feedback.mask, feedback.reward, 0.0)
        ...         count = state.count + jnp.sum(feedback.mask, dtype=jnp.int32)
        ...         return Mean(state.total + jnp.sum(seen), count)
        ...     start = lambda key: Mean(jnp.zeros([]), jnp.zeros([], jnp.int32))
        ...     return Policy(start, select, update)
        >>> report = check_policy(follow_mean, {"gain": 0.5}, environment=world)
        >>> report["masked_feedback"]
        'passed'
    """
    subject = _Player(
        factory,
        make_pairs(hyperparameters),
        dict(static or {}),
        key,
        bad,
        tolerance,
        environment=environment,
        randomized=randomized,
    )
    return run_rules(subject, _RULES, skip)


def returns_policy(subject: _Player) -> None:
    """The factory returns a jaxopt_suite.core.Policy(init, select, update)."""
    method = subject.build(subject.values(0))
    if not isinstance(method, Policy):
        raise AssertionError(f"it must return a Policy, got {type(method).__name__}")


def select_is_pure(subject: _Player) -> None:
    """A select changes nothing, and update does not need one before it.

    The decision carries whatever update needs later; the policy hides nothing.
    """
    outputs, carries = subject.eager
    (_, feedback), state = outputs[0], carries[0].state
    select_key = subject.data(0)[1][0, 0]
    never_selected = subject.build(subject.values(0))
    got = never_selected.update(feedback, state)
    require_close("update without select: state", got, carries[1].state, 0)
    twice = subject.build(subject.values(0))
    context = carries[0].context
    first = twice.select(state, context, select_key)
    twice.select(state, context, jax.random.key(7))
    again = twice.select(state, context, select_key)
    require_close("decision of a second select", again, first, 0)
    got = twice.update(feedback, state)
    require_close("update after two selects: state", got, carries[1].state, 0)


def ignores_regret(subject: _Player) -> str | None:
    """The regret of a feedback is for the record: a policy never reads it."""
    outputs, carries = subject.eager
    feedback = outputs[0][1]
    if "regret" not in getattr(feedback, "_fields", ()):
        return "the environment gives no regret"
    spoilt = feedback._replace(regret=jnp.full_like(feedback.regret, jnp.nan))
    got = subject.build(subject.values(0)).update(spoilt, carries[0].state)
    require_close("state with another regret", got, carries[1].state, 0)
    return None


def batched_feedback(subject: _Player) -> None:
    """Feedback may have one leading batch axis, in any order.

    The state keeps its structure, shapes and dtypes.
    """
    outputs, carries = subject.eager
    batch = stack([feedback for _, feedback in outputs])
    update = subject.build(subject.values(0)).update
    for order in (batch, jax.tree.map(lambda x: x[::-1], batch)):
        got = jax.eval_shape(update, order, carries[0].state)
        require_same_type("state", got, carries[0].state)


def masked_feedback(subject: _Player) -> None:
    """Where the mask of a feedback is False, nothing is there.

    A masked entry of a batch changes nothing, and a batch without any True leaves the
    state as it is.
    """
    outputs, carries = subject.eager
    first, second = outputs[0][1], outputs[1][1]
    nothing = jax.tree.map(jnp.zeros_like, second.mask)
    batch = stack([first, second._replace(mask=nothing)])
    method = subject.build(subject.values(0))
    got = method.update(batch, carries[0].state)
    name, tolerance = "state after a batch with one masked entry", subject.tolerance
    require_close(name, got, carries[1].state, tolerance)
    empty = batch._replace(mask=jnp.zeros_like(batch.mask))
    got = method.update(empty, carries[0].state)
    require_close("state after an all-masked batch", got, carries[0].state, tolerance)


def keys_matter(subject: _Player) -> str | None:
    """A randomized policy decides otherwise under another key.

    Draw from the key of select, or say randomized=False.
    """
    if not subject.randomized:
        return "the policy is not said to be randomized"
    state, _, context = subject.eager[1][1]
    method = subject.build(subject.values(0))
    decisions = [
        method.select(state, context, jax.random.key(seed)) for seed in range(16)
    ]
    require_difference(stack(decisions[1:]), stack(decisions[:1] * 15), "another key")
    return None


_RULES: tuple[Rule, ...] = (
    *FIRST_RULES,
    returns_policy,
    select_is_pure,
    *COMMON_RULES,
    ignores_regret,
    batched_feedback,
    masked_feedback,
    keys_matter,
)
