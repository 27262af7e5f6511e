"""Delayed, non-stationary bandit convex optimization in blocks that restart.

:func:`dars` plays blocks of K rounds around one centre, estimates a gradient from each
single value whenever it comes, moves the centre at a block's end by follow the leader,
and forgets everything at the start of a segment. The schedule ties the length of a
block to the radius of exploration (:func:`dars_schedule`), so that the price of delay
does not multiply the noise of one-point feedback.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxopt_suite.bandits.bco_leader import UNIT_BALL, follow_the_leader
from jaxopt_suite.bandits.bco_primitives import (
    Scalar,
    num_coordinates,
    scalar_dtype,
)
from jaxopt_suite.bandits.bco_rounds import (
    BCODecision,
    BCOState,
    as_batch,
    check_baseline,
    count_values,
    explore,
    gradient_sum,
    next_round,
    start_state,
)
from jaxopt_suite.bandits.bco_schedule import BCOSchedule, dars_schedule
from jaxopt_suite.bandits.convex_sets import ConvexSet, radii
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy

__all__ = [
    "BCODecision",
    "BCOState",
    "OracleState",
    "dars",
    "dftbl",
    "periodic_restart",
    "static_oracle",
]


class OracleState(NamedTuple):
    """State of :func:`static_oracle`: the round."""

    round: Int[Array, ""]


def dars(
    example_action: PyTree[Float[Array, "..."]],
    schedule: BCOSchedule,
    *,
    domain: ConvexSet = UNIT_BALL,
    strong_convexity: Scalar = 0.0,
    y0: PyTree | None = None,
    baseline: str | None = None,
) -> Policy:
    r"""Delayed bandit convex optimization that restarts at known segment starts.

    Plays :math:`x_t = y + \delta u_t`, :math:`u_t` uniform on the sphere. A value that
    comes while its segment lasts adds :math:`(n / \delta) f_t(x_t)\, u_t` to a sum g.
    At the end of a block of K rounds, or of the segment, y moves as
    :func:`follow_the_leader` says. At the start of a segment y is back at its start, g
    is 0, and values still under way are dropped for good.

    ``update`` is called once a round, also when nothing came: it moves the clock.
    Rounds after the schedule's last belong to its last segment. A NaN value makes the
    centre NaN until the segment ends.

    Args:
        example_action: a point, for its structure, shapes and dtypes; any pytree of
            floating arrays, taken as one vector.
        schedule: of :func:`dars_schedule`; ``delta`` and ``eta`` may be traced.
        domain: the set of points.
        strong_convexity: :math:`\alpha` of the losses as the schedule has it; 0 is the
            convex case. May be traced, and is not 0 then.
        y0: where segments start, projected on the shrunk set; None is the centre.
        baseline: ``"mean"`` subtracts from each value the mean of the segment's values
            that had come by the start of its block, which takes out what all
            losses have in common and leaves the gradient unbiased; None subtracts
            nothing.

    Raises:
        ValueError: ``example_action`` has no coordinate or a leaf that is no floating
            array, ``y0`` has other shapes, ``baseline`` is unknown,
            ``strong_convexity`` is negative; the schedule has gaps, a traced K, or a
            delta above the domain's inner radius.

    Example:
        >>> from jaxopt_suite.core import constant_delay, interact
        >>> from jaxopt_suite.problems.bco import bco_env
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> losses = norm_segments(2000, 2, num_segments=2)
        >>> schedule = dars_schedule(
        ...     2000, 2, segment_starts=losses.segment_starts, d_max=3, k_scale=0.2
        ... )
        >>> policy, key = dars(jnp.zeros(2), schedule), jax.random.key(0)
        >>> run = interact(policy, bco_env(losses), key, 2000, delays=constant_delay(3))
        >>> bool(run.record.regret[-1] < 1000)
        True

    Source: reconstruction of Oracle-DARS-DBCO (2026) from its stated rates, on delayed
    follow the bandit leader, arXiv 2402.09152.
    """
    check_baseline(baseline)
    leader = follow_the_leader(
        example_action,
        schedule,
        domain=domain,
        strong_convexity=strong_convexity,
        y0=y0,
    )
    n, dtype = num_coordinates(example_action), scalar_dtype(example_action)

    def init(key):
        del key
        return start_state(leader, dtype)

    def select(state, context, key):
        del context
        return explore(state, leader.delta(state.segment), example_action, key)

    def update(feedback, state):
        feedback = as_batch(feedback)
        keep = feedback.mask & (feedback.decision.segment == state.segment)
        state = state._replace(
            g=jax.tree.map(jnp.add, state.g, gradient_sum(feedback, keep, n))
        )
        if baseline is not None:
            state = count_values(state, feedback.value, keep)
        return next_round(state, leader, schedule)

    return Policy(init, select, update)


def dftbl(
    example_action: PyTree[Float[Array, "..."]],
    horizon: int,
    *,
    domain: ConvexSet = UNIT_BALL,
    strong_convexity: float = 0.0,
    d_max: int = 0,
    bound: float = 1.0,
    lipschitz: float = 1.0,
    k_scale: float = 1.0,
    bias: float = 3.0,
) -> Policy:
    """Delayed follow the bandit leader: :func:`dars` with one segment, no restart.

    Args:
        example_action: as for :func:`dars`.
        horizon: number of rounds.
        domain: the set; the schedule takes its radii.
        strong_convexity: of the losses; 0 is the convex case.
        d_max: the largest delay.
        bound: as for :func:`dars_schedule`, like all that follow.
        lipschitz: Lipschitz constant.
        k_scale: scale of the block length.
        bias: price of smoothing.

    Raises:
        ValueError: as :func:`dars_schedule` and :func:`dars`.

    Example:
        >>> policy, key = dftbl(jnp.zeros(2), 1000, d_max=3), jax.random.key(0)
        >>> policy.select(policy.init(key), (), key).x.shape
        (2,)

    Source: "Improved regret for bandit convex optimization with delayed feedback"
    (2024), arXiv 2402.09152.
    """
    return periodic_restart(
        example_action,
        horizon,
        horizon,
        domain=domain,
        strong_convexity=strong_convexity,
        d_max=d_max,
        bound=bound,
        lipschitz=lipschitz,
        k_scale=k_scale,
        bias=bias,
    )


def periodic_restart(
    example_action: PyTree[Float[Array, "..."]],
    horizon: int,
    period: int,
    *,
    domain: ConvexSet = UNIT_BALL,
    strong_convexity: float = 0.0,
    d_max: int = 0,
    bound: float = 1.0,
    lipschitz: float = 1.0,
    k_scale: float = 1.0,
    bias: float = 3.0,
) -> Policy:
    """:func:`dars` with a segment every ``period`` rounds, for want of an oracle.

    Args:
        example_action: as for :func:`dars`.
        horizon: number of rounds.
        period: rounds between restarts.
        domain: as for :func:`dftbl`, like all that follow.
        strong_convexity: of the losses; 0 is the convex case.
        d_max: the largest delay.
        bound: bound on the absolute losses.
        lipschitz: Lipschitz constant.
        k_scale: scale of the block length.
        bias: price of smoothing.

    Raises:
        ValueError: ``period`` is below 1; as :func:`dars_schedule` and :func:`dars`.

    Example:
        >>> policy = periodic_restart(jnp.zeros(2), 1000, 500)
        >>> int(policy.init(jax.random.key(0)).segment)
        0
    """
    checks.check_integer("horizon", horizon)
    checks.check_integer("period", period)
    schedule = dars_schedule(
        horizon,
        num_coordinates(example_action),
        segment_starts=np.arange(0, horizon, period),
        d_max=d_max,
        **radii(domain),
        bound=bound,
        lipschitz=lipschitz,
        strong_convexity=strong_convexity,
        k_scale=k_scale,
        bias=bias,
    )
    return dars(
        example_action, schedule, domain=domain, strong_convexity=strong_convexity
    )


def static_oracle(minimizer: Callable[[Int[Array, ""]], PyTree]) -> Policy:
    """Plays the point that a round is compared with; its regret is 0.

    Args:
        minimizer: ``minimizer(t) -> x``, such as that of a
            :class:`~jaxopt_suite.problems.bco.LossSequence`.

    Returns:
        A policy whose ``update`` is called once a round, and only counts.

    Raises:
        ValueError: ``minimizer`` is no function.

    Example:
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> policy = static_oracle(norm_segments(8, 2).minimizer)
        >>> policy.select(policy.init(jax.random.key(0)), (), jax.random.key(1)).x
        Array([0.5, 0. ], dtype=float32)
    """
    if not callable(minimizer):
        raise ValueError(
            f"minimizer must be a function of the round, got {type(minimizer).__name__}"
        )

    def init(key):
        del key
        return OracleState(jnp.zeros([], jnp.int32))

    def select(state, context, key):
        del context, key
        x = jax.tree.map(jnp.asarray, minimizer(state.round))
        nothing = jnp.zeros([], scalar_dtype(x))
        return BCODecision(
            x,
            direction=jax.tree.map(jnp.zeros_like, x),
            delta=nothing,
            segment=jnp.full((), -1, jnp.int32),
            round=state.round,
            baseline=nothing,
        )

    def update(feedback, state):
        del feedback
        return OracleState(state.round + 1)

    return Policy(init, select, update)
