"""Where the centre of a block stands: follow the leader on a shrunk convex set."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxopt_suite.bandits.bco_primitives import (
    Scalar,
    num_coordinates,
    scalar_dtype,
)
from jaxopt_suite.bandits.bco_schedule import BCOSchedule
from jaxopt_suite.bandits.convex_sets import (
    ConvexSet,
    as_point,
    centre_like,
    l2_ball,
)
from jaxopt_suite.core import checks

UNIT_BALL = l2_ball(1.0)


class Leader(NamedTuple):
    """Where the centre stands.

    Attributes:
        start: ``start(segment) -> y``, at the start of a segment.
        follow: ``follow(g, y_sum, block, segment) -> y``, after ``block`` blocks whose
            centres sum to ``y_sum``, with the gradient sum ``g``.
        delta: ``delta(segment)``, the radius of exploration.
    """

    start: Callable[[Any], PyTree]
    follow: Callable[[PyTree, PyTree, Any, Any], PyTree]
    delta: Callable[[Any], Float[Array, ""]]


def follow_the_leader(
    example_action: PyTree[Float[Array, "..."]],
    schedule: BCOSchedule,
    *,
    domain: ConvexSet = UNIT_BALL,
    strong_convexity: Scalar = 0.0,
    y0: PyTree | None = None,
) -> Leader:
    r"""The centre of :func:`dars` after b blocks, from the sum g of gradient terms.

    .. math::
        y = \Pi_{X_\delta}(y_0 - \eta\, g), \qquad
        y = \Pi_{X_\delta}\Big(\frac1b \sum_{i \le b} y_i - \frac{g}{\alpha K b}\Big)

    for convex and for strongly convex losses, with :math:`X_\delta` the set shrunk by
    :math:`1 - \delta / r` and :math:`y_0` the start, a point of it. Both minimize
    the linear losses seen plus a quadratic: :math:`\|x - y_0\|^2 / (2 \eta)`, and
    :math:`\sum_i \alpha K \|x - y_i\|^2 / 2` over all past blocks.

    Args:
        example_action: a point, for its structure, shapes and dtypes.
        schedule: of :func:`dars_schedule`; ``delta`` and ``eta`` may be traced.
        domain: the set.
        strong_convexity: :math:`\alpha`; 0 is the convex case, a traced one is not 0.
        y0: where segments start, projected; None is the centre of the set.

    Raises:
        ValueError: as :func:`dars`.

    Example:
        >>> from jaxopt_suite.bandits.bco_schedule import dars_schedule
        >>> leader = follow_the_leader(jnp.zeros(2), dars_schedule(1000, 2))
        >>> y = leader.follow(jnp.array([-1e3, 0.0]), jnp.zeros(2), 1, 0)
        >>> float(jnp.round(y[0] + leader.delta(0), 6))
        1.0
    """
    check_action(example_action)
    check_schedule(schedule, domain)
    checks.check_interval("strong_convexity", strong_convexity, 0.0, closed="[)")
    is_strong = not checks.is_concrete(strong_convexity) or strong_convexity > 0
    dtype = scalar_dtype(example_action)
    deltas, etas, lengths = (
        jnp.broadcast_to(jnp.asarray(row, dtype), len(schedule.K))
        for row in (schedule.delta, schedule.eta, schedule.K)
    )
    if y0 is None:
        origin = centre_like(domain, example_action)
    else:
        origin = as_point("y0", y0, example_action)

    def project(y, segment):
        return domain.project(y, 1 - deltas[segment] / domain.inner_radius)

    def start(segment):
        return project(origin, segment)

    def follow(g, y_sum, block, segment):
        if is_strong:
            blocks = jnp.asarray(block, dtype)
            anchor = jax.tree.map(lambda s: s / blocks.astype(s.dtype), y_sum)
            step = 1 / (strong_convexity * lengths[segment] * blocks)
        else:
            anchor, step = start(segment), etas[segment]
        moved = jax.tree.map(lambda a, s: a - step.astype(s.dtype) * s, anchor, g)
        return project(moved, segment)

    return Leader(start, follow, lambda segment: deltas[segment])


def check_action(example_action: PyTree) -> None:
    """Requires floating leaves and at least one coordinate.

    Raises:
        ValueError: a leaf is of another dtype, or there is no coordinate.
    """
    checks.check_floating("example_action", example_action)
    if not num_coordinates(example_action):
        raise ValueError("example_action must have a coordinate, got an empty pytree")


def check_schedule(schedule: BCOSchedule, domain: ConvexSet) -> None:
    """Requires segments without gaps, blocks of a round at least, room to explore.

    Raises:
        ValueError: starts, lengths or K are traced or do not fit together; a concrete
            delta is not in (0, inner radius], a concrete eta is not positive.
    """
    for name, least in (("starts", 0), ("lengths", 1), ("K", 1)):
        row = getattr(schedule, name)
        if isinstance(row, jax.core.Tracer):
            raise ValueError(f"schedule.{name} must be concrete, got {row}")
        checks.check_interval(f"schedule.{name}", np.asarray(row), least)
    starts, lengths, K = (np.asarray(row) for row in schedule[:3])
    ends = np.cumsum(lengths)
    if (
        starts.ndim != 1
        or not starts.shape == lengths.shape == K.shape
        or any(starts != np.concatenate([[0], ends[:-1]]))
    ):
        raise ValueError(
            "schedule.starts must begin with 0 and go on where a segment of "
            f"schedule.lengths ends, one K each; got {starts}, {lengths} and {K}"
        )
    checks.check_interval("schedule.eta", schedule.eta, 0.0, closed="()")
    checks.check_interval("schedule.delta", schedule.delta, 0.0, closed="()")
    if checks.is_concrete(domain.inner_radius):
        high = float(domain.inner_radius) * (1 + 1e-6)
        if checks.is_concrete(schedule.delta) and np.max(schedule.delta) > high:
            raise ValueError(
                "schedule.delta must be at most the domain's inner_radius "
                f"{domain.inner_radius}, got {np.max(schedule.delta)}: pass that "
                "inner_radius to dars_schedule"
            )
