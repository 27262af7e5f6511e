"""Bandit convex optimization with two values a round, on either side of the centre.

The difference of two values shows the slope itself, without the noise of their common
level: a gradient term has norm at most n G, however small the radius. So there is no
need for blocks, and the radius may shrink like the square root of the length.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxopt_suite.bandits.bco_leader import UNIT_BALL, follow_the_leader
from jaxopt_suite.bandits.bco_primitives import (
    num_coordinates,
    one_point_gradient,
    scalar_dtype,
)
from jaxopt_suite.bandits.bco_rounds import (
    as_batch,
    displaced,
    explore,
    masked_sum,
    next_round,
    start_state,
)
from jaxopt_suite.bandits.bco_schedule import (
    BCOSchedule,
    check_concrete,
    check_segments,
)
from jaxopt_suite.bandits.convex_sets import ConvexSet
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Environment, Policy
from jaxopt_suite.problems.bco import LossSequence, RandomLosses, bco_env


class TwoPointDecision(NamedTuple):
    """The two points that are played.

    Attributes:
        x: ``centre + delta * direction``.
        mirror: ``centre - delta * direction``.
        direction: the direction of exploration.
        delta: the radius of exploration.
        segment: the segment it belongs to.
        round: the round it was played in.
    """

    x: PyTree[Float[Array, "..."]]
    mirror: PyTree[Float[Array, "..."]]
    direction: PyTree[Float[Array, "..."]]
    delta: Float[Array, "*batch"]
    segment: Int[Array, "*batch"]
    round: Int[Array, "*batch"]


class TwoPointFeedback(NamedTuple):
    """The values at two points; with or without one leading batch axis.

    Attributes:
        decision: the decision it answers.
        value: the loss that is paid, the mean of both values.
        difference: the value at ``x`` less that at ``mirror``.
        mask: False where there is nothing.
        regret: the loss paid less that of the segment's best point, for the record.
    """

    decision: Any
    value: Float[Array, "*batch"] | float
    difference: Float[Array, "*batch"] | float
    mask: Bool[Array, "*batch"] | bool = True
    regret: Float[Array, "*batch"] | float = 0.0


def two_point_schedule(
    horizon: int,
    n: int,
    *,
    segment_starts: Sequence[int] | Int[np.ndarray, " segments"] = (0,),
    d_max: int = 0,
    radius: float = 1.0,
    inner_radius: float | None = None,
    lipschitz: float = 1.0,
) -> BCOSchedule:
    r"""The schedule of :func:`dars_two_point`: blocks of one round.

    .. math::
        K = 1, \qquad \delta = \min(D / \sqrt L,\; r / 2), \qquad
        \eta = \frac{D}{G \sqrt{L (n^2 + n\, d_{max})}}

    Args:
        horizon: number of rounds.
        n: number of coordinates of an action.
        segment_starts: first rounds of the segments, the first of them 0.
        d_max: the largest delay.
        radius: D > 0, the outer radius of the set.
        inner_radius: r in (0, D]; None is D.
        lipschitz: G > 0, a Lipschitz constant of the losses.

    Raises:
        ValueError: an argument is out of its range, or traced.

    Example:
        >>> schedule = two_point_schedule(400, 2)
        >>> schedule.K.tolist(), schedule.delta.tolist(), schedule.eta.tolist()
        ([1], [0.05], [0.025])
    """
    inner_radius = radius if inner_radius is None else inner_radius
    starts, lengths = check_segments(horizon, n, segment_starts, d_max)
    values = {"radius": radius, "inner_radius": inner_radius, "lipschitz": lipschitz}
    check_concrete(values)
    for name, value in values.items():
        checks.check_interval(name, value, 0.0, closed="()")
    checks.check_interval("inner_radius", inner_radius, 0.0, radius, closed="(]")
    delta = np.minimum(radius / np.sqrt(lengths), inner_radius / 2)
    eta = radius / (lipschitz * np.sqrt(lengths * float(n**2 + n * d_max)))
    ones = np.ones(len(starts), np.int32)
    return BCOSchedule(starts, lengths, ones, delta, eta, ones.astype(bool))


def dars_two_point(
    example_action: PyTree[Float[Array, "..."]],
    schedule: BCOSchedule,
    *,
    domain: ConvexSet = UNIT_BALL,
    y0: PyTree | None = None,
) -> Policy:
    r"""As :func:`dars` for convex losses, with the values at :math:`y \pm \delta u`.

    The gradient term is :math:`\frac{n}{2 \delta} (f(y + \delta u) - f(y - \delta u))
    u`; all else is as there.

    Args:
        example_action: a point, for its structure, shapes and dtypes.
        schedule: of :func:`two_point_schedule`; ``delta`` and ``eta`` may be traced.
        domain: the set.
        y0: where segments start, projected; None is the centre of the set.

    Returns:
        A policy for :func:`two_point_env`; ``update`` is called once a round.

    Raises:
        ValueError: as :func:`dars`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> policy = dars_two_point(jnp.zeros(2), two_point_schedule(1000, 2))
        >>> world, key = two_point_env(norm_segments(1000, 2)), jax.random.key(0)
        >>> bool(interact(policy, world, key, 1000).record.regret[-1] < 100)
        True

    Source: Agarwal, Dekel, Xiao, "Optimal algorithms for online convex optimization
    with multi-point bandit feedback" (2010), for the two-point gradient.
    """
    leader = follow_the_leader(example_action, schedule, domain=domain, y0=y0)
    n, dtype = num_coordinates(example_action), scalar_dtype(example_action)

    def init(key):
        del key
        return start_state(leader, dtype)

    def select(state, context, key):
        del context
        delta = leader.delta(state.segment)
        one = explore(state, delta, example_action, key)
        mirror = displaced(state.y, one.direction, -delta, example_action)
        return TwoPointDecision(
            one.x, mirror, one.direction, delta, one.segment, one.round
        )

    def update(feedback, state):
        feedback = as_batch(feedback)
        keep = feedback.mask & (feedback.decision.segment == state.segment)

        def term(decision, difference):
            return one_point_gradient(
                difference / 2, decision.direction, decision.delta, n
            )

        terms = jax.vmap(term)(feedback.decision, feedback.difference)
        g = jax.tree.map(jnp.add, state.g, masked_sum(keep, terms))
        return next_round(state._replace(g=g), leader, schedule)

    return Policy(init, select, update)


def two_point_env(losses: LossSequence | RandomLosses) -> Environment:
    """Answers a :class:`TwoPointDecision` of round t with both values of the loss.

    Args:
        losses: as for :func:`~jaxopt_suite.problems.bco.bco_env`.

    Returns:
        An environment whose feedback is a :class:`TwoPointFeedback`.

    Raises:
        ValueError: ``losses`` is neither a sequence nor a law of sequences.

    Example:
        >>> from types import SimpleNamespace
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> world = two_point_env(norm_segments(4, 1))
        >>> state, context = world.init(jax.random.key(0))
        >>> played = SimpleNamespace(x=jnp.array([0.2]), mirror=jnp.array([-0.2]))
        >>> answer = world.step(state, played, jax.random.key(1))[2]
        >>> [round(float(x), 6) for x in (answer.value, answer.difference)]
        [0.0, -0.4]
    """
    one_point = bco_env(losses)

    def step(state, decision, key):
        after, context, here = one_point.step(state, decision, key)
        other = _Point(decision.mirror)
        _, _, there = one_point.step(state, other, key)
        feedback = TwoPointFeedback(
            decision,
            (here.value + there.value) / 2,
            here.value - there.value,
            here.mask,
            (here.regret + there.regret) / 2,
        )
        return after, context, feedback

    return Environment(one_point.init, step)


class _Point(NamedTuple):
    x: PyTree[Float[Array, "..."]]
