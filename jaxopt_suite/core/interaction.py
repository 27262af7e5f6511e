"""The driver for policies: a policy against an environment, feedback late or not.

A round is always the same. The policy selects, the environment answers, the feedback
that is due by the end of the round reaches the policy in one ``update``.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core import checks
from jaxopt_suite.core.delays import DelayModel
from jaxopt_suite.core.late import (
    LateState,
    draw_delays,
    late_init,
    late_step,
    plan_delays,
)
from jaxopt_suite.core.sums import RunningSum, add, zero_sum
from jaxopt_suite.core.types import Environment, Policy, Transformation

Delays = DelayModel | Int[Array, " horizon"] | np.ndarray | int


class InteractionKeys(NamedTuple):
    """The keys of a run. Round ``t`` uses ``fold_in(select, t)``, ``fold_in(step, t)``.

    Attributes:
        policy: for ``policy.init``.
        environment: for ``environment.init``.
        select: base of the keys for ``policy.select``.
        step: base of the keys for ``environment.step``.
        delay: for a delay model.
    """

    policy: PRNGKeyArray
    environment: PRNGKeyArray
    select: PRNGKeyArray
    step: PRNGKeyArray
    delay: PRNGKeyArray


def interaction_keys(key: PRNGKeyArray) -> InteractionKeys:
    """The keys that :func:`interact` and :func:`replay` derive: ``split(key, 5)``.

    Whoever reproduces a run by other means starts from these.

    Example:
        >>> keys = interaction_keys(jax.random.key(0))
        >>> key_of_round_3 = jax.random.fold_in(keys.select, 3)
    """
    return InteractionKeys(*jax.random.split(key, 5))


class InteractionSummary(NamedTuple):
    """Cumulative sums of feedback fields at evenly spaced rounds.

    A field that the feedback does not have is None. Sums are at least float32 and
    compensated: their error is that of one rounding, not of ``horizon`` roundings.

    Attributes:
        rounds: how many rounds each row sums; the last is the horizon.
        regret: cumulative regret.
        reward: cumulative reward.
        value: cumulative loss value.
    """

    rounds: Int[Array, " checkpoints"]
    regret: Float[Array, "checkpoints ..."] | None = None
    reward: Float[Array, "checkpoints ..."] | None = None
    value: Float[Array, "checkpoints ..."] | None = None


class InteractionTrace(NamedTuple):
    """One row per round.

    Attributes:
        decision: what the policy decided.
        feedback: the environment's answer to it, whenever the policy saw it.
        arrival: the round whose end brought it to the policy; the horizon: never.
    """

    decision: PyTree[Array]
    feedback: PyTree[Array]
    arrival: Int[Array, ""]


class InteractionState(NamedTuple):
    """State of :func:`interaction_loop`.

    Attributes:
        round: rounds played so far.
        keys: the run's keys.
        policy: the policy's state.
        environment: the environment's state.
        context: what the policy sees next.
        late: feedbacks under way; None without delays.
        sums: running sums of the summary's fields; None for a full record.
        summary: the rows filled so far; None for a full record.
    """

    round: Int[Array, ""]
    keys: InteractionKeys
    policy: PyTree
    environment: PyTree
    context: PyTree
    late: LateState | None
    sums: dict[str, RunningSum] | None
    summary: InteractionSummary | None


class InteractResult(NamedTuple):
    """What :func:`interact` returns.

    Attributes:
        state: the policy's last state.
        environment: the environment's last state.
        record: an :class:`InteractionSummary`, or an :class:`InteractionTrace` with
            leading axis ``horizon``.
    """

    state: PyTree
    environment: PyTree
    record: Any


def interaction_loop(
    policy: Policy,
    environment: Environment,
    horizon: int,
    *,
    delays: Delays | None = None,
    record: str = "summary",
    checkpoints: int = 64,
) -> Transformation:
    """The iteration behind :func:`interact`, for :func:`run_chunks` or a loop of yours.

    Args:
        policy: who decides.
        environment: who answers.
        horizon: the number of rounds that will be played.
        delays: as for :func:`interact`.
        record: ``"summary"`` keeps sums in the state, and the rows are empty;
            ``"full"`` gives an :class:`InteractionTrace` row per round.
        checkpoints: number of rows of the summary.

    Returns:
        ``init(key) -> InteractionState`` and ``update(None, state) -> (row, state)``,
        one round per update. ``state.summary`` is the record once all are played.

    Raises:
        ValueError: as :func:`interact`.

    Example:
        >>> from typing import NamedTuple
        >>> from jaxopt_suite.core import Environment, Policy
        >>> class Feedback(NamedTuple):
        ...     reward: object
        >>> policy = Policy(lambda key: (), lambda *_: 1, lambda feedback, state: state)
        >>> pays_one = Environment(
        ...     lambda key: ((), ()), lambda *_: ((), (), Feedback(1.0))
        ... )
        >>> loop = interaction_loop(policy, pays_one, 4, checkpoints=2)
        >>> state = loop.init(jax.random.key(0))
        >>> for _ in range(4):
        ...     row, state = loop.update(None, state)
        >>> state.summary.reward
        Array([2., 4.], dtype=float32)
    """
    checks.check_integer("horizon", horizon)
    checks.check_integer("checkpoints", checkpoints)
    checks.check_choice("record", record, ("summary", "full"))
    plan = None if delays is None else plan_delays(delays, horizon)
    parts = np.arange(1, min(checkpoints, horizon) + 1)
    rounds = -(-parts * horizon // len(parts))

    def init(key):
        keys = interaction_keys(key)
        policy_state = policy.init(keys.policy)
        environment_state, context = environment.init(keys.environment)
        decision = jax.eval_shape(policy.select, policy_state, context, keys.select)
        _, _, feedback = jax.eval_shape(
            environment.step, environment_state, decision, keys.step
        )
        late = sums = summary = None
        if plan is not None:
            late = late_init(plan, keys.delay, horizon, feedback)
        if record == "summary":
            sums, summary = _summary_init(rounds, feedback)
        return InteractionState(
            jnp.zeros([], jnp.int32),
            keys,
            policy_state,
            environment_state,
            context,
            late,
            sums,
            summary,
        )

    def update(inputs, state, **extra):
        del inputs, extra
        t, keys = state.round, state.keys
        # Both keys in one batch: half the hashing loops of two calls, the same bits.
        select_key, step_key = jax.vmap(jax.random.fold_in, in_axes=(0, None))(
            jnp.stack([keys.select, keys.step]), t
        )
        decision = policy.select(state.policy, state.context, select_key)
        environment_state, context, feedback = environment.step(
            state.environment, decision, step_key
        )
        late, due, arrival = None, feedback, t
        if plan is not None:
            late, due = late_step(plan, state.late, feedback, t)
            arrival = late.arrivals[t]
        sums, summary, row = state.sums, state.summary, ()
        if record == "summary":
            sums, summary = _summary_step(sums, summary, feedback, t)
        else:
            row = InteractionTrace(decision, feedback, arrival)
        policy_state = policy.update(due, state.policy)
        return row, InteractionState(
            t + 1, keys, policy_state, environment_state, context, late, sums, summary
        )

    return Transformation(init, update)


def interact(
    policy: Policy,
    environment: Environment,
    key: PRNGKeyArray,
    horizon: int,
    *,
    delays: Delays | None = None,
    record: str = "summary",
    checkpoints: int = 64,
) -> InteractResult:
    """Runs a policy against an environment for ``horizon`` rounds, in one ``lax.scan``.

    Round ``t`` (with :func:`interaction_keys`): ``select`` with ``fold_in(select, t)``,
    ``step`` with ``fold_in(step, t)``, then one ``update`` with what is due. Without
    delays that is the round's own feedback, without a batch axis. With delays it is one
    batch, oldest round first, with empty slots zero and their ``mask`` False; a round
    in which nothing comes brings an all-False mask. The feedback of round ``t`` comes
    at the end of round ``t + delays[t]``, and never if that is past the horizon.

    A pure function: jit it, vmap it over keys, or hand it to :func:`sweep`.

    Args:
        policy: who decides.
        environment: who answers. Its ``regret`` is recorded; policies do not read it.
        key: a typed key.
        horizon: number of rounds.
        delays: None; a :class:`DelayModel`; concrete integers of shape (horizon,); or
            one integer. A batch has as many slots as the busiest round of the concrete
            delays needs, or the model's ``max_arrivals`` where they are traced (a model
            under ``jit`` or :func:`sweep`); memory is that of the largest delay.
        record: ``"summary"`` for sums of the feedback's ``regret``, ``reward`` and
            ``value``, of the rounds played, whether the policy saw them or not; its
            memory does not grow with the horizon. ``"full"`` for every round.
        checkpoints: rows of the summary, evenly spaced; ``horizon`` rows at most.

    Raises:
        ValueError: ``horizon`` or ``checkpoints`` is below 1, ``record`` is unknown,
            delays are of the wrong shape or dtype, negative or a traced array, a delay
            model draws more than it declares, or the feedback has no field ``mask``.

    Example:
        >>> from typing import Any, NamedTuple
        >>> from jaxopt_suite.core import Environment, Policy
        >>> class Feedback(NamedTuple):
        ...     decision: object
        ...     reward: object
        ...     mask: object = True
        >>> count = Policy(
        ...     init=lambda key: 0,
        ...     select=lambda state, context, key: state,
        ...     update=lambda feedback, state: state + jnp.sum(feedback.mask),
        ... )
        >>> echo = Environment(
        ...     init=lambda key: ((), ()),
        ...     step=lambda state, arm, key: ((), (), Feedback(arm, reward=arm)),
        ... )
        >>> key = jax.random.key(0)
        >>> interact(count, echo, key, 6, delays=2, checkpoints=3).record.reward
        Array([0., 1., 6.], dtype=float32)
    """
    if isinstance(delays, DelayModel):
        checks.check_integer("horizon", horizon)
        delays = draw_delays(delays, interaction_keys(key).delay, horizon)
    loop = interaction_loop(
        policy,
        environment,
        horizon,
        delays=delays,
        record=record,
        checkpoints=checkpoints,
    )
    state, rows = jax.lax.scan(
        lambda state, _: loop.update(None, state)[::-1], loop.init(key), length=horizon
    )
    if state.summary is not None:
        rows = state.summary
    return InteractResult(state.policy, state.environment, rows)


def _summary_init(
    rounds: np.ndarray, feedback: PyTree
) -> tuple[dict[str, RunningSum], InteractionSummary]:
    sums = {
        name: zero_sum(getattr(feedback, name))
        for name in ("regret", "reward", "value")
        if getattr(feedback, name, None) is not None
    }
    rows = {
        name: jnp.zeros((len(rounds), *x.total.shape), x.total.dtype)
        for name, x in sums.items()
    }
    return sums, InteractionSummary(jnp.asarray(rounds, jnp.int32), **rows)


def _summary_step(
    sums: dict[str, RunningSum],
    summary: InteractionSummary,
    feedback: PyTree,
    t: Int[Array, ""],
) -> tuple[dict[str, RunningSum], InteractionSummary]:
    """Adds round ``t``; the row being filled is rewritten until its last round."""
    sums = {name: add(x, getattr(feedback, name)) for name, x in sums.items()}
    row = jnp.sum(summary.rounds <= t)
    filled = {
        name: getattr(summary, name).at[row].set(x.total) for name, x in sums.items()
    }
    return sums, summary._replace(**filled)
