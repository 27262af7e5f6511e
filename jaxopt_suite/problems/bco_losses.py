"""Loss sequences for bandit convex optimization whose best point is known.

All have equal segments unless their starts are given, and every constant they state
(bound, Lipschitz, strong convexity) is the true one on their set: the unit ball about
0, or the unit box for prices.
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxopt_suite.core import checks
from jaxopt_suite.problems.bco import (
    LossSequence,
    Scalar,
    equal_segments,
    segment_index,
)


def first_axis(n: int, length: Scalar) -> Float[Array, " n"]:
    """``length * e_1`` in n dimensions."""
    return length * jnp.asarray(np.eye(1, n)[0], float)


def _two_centres(
    profile: Callable[[Array], Array],
    horizon: int,
    n: int,
    num_segments: int,
    segment_starts: Sequence[int] | None,
    **constants: Scalar,
) -> LossSequence:
    """``profile(||x - c_j||^2)`` around ``+e_1 / 2`` and ``-e_1 / 2`` in turn."""
    checks.check_integer("n", n)
    starts = equal_segments(horizon, num_segments, segment_starts)
    segment = segment_index(starts)

    def centre(t):
        return first_axis(n, 0.5 - segment(t) % 2)

    def value(x, t):
        return profile(jnp.sum(jnp.square(x - centre(t).astype(x.dtype))))

    return LossSequence(
        value, centre, lambda t: profile(jnp.zeros(())), starts, **constants
    )


def norm_segments(
    horizon: int,
    n: int,
    num_segments: int = 1,
    *,
    segment_starts: Sequence[int] | None = None,
) -> LossSequence:
    r"""Distance to a centre that jumps between :math:`\pm e_1 / 2`.

    .. math:: f_t(x) = \|x - c_j\| - 1/2, \qquad c_j = (-1)^j e_1 / 2

    On the unit ball the bound and the Lipschitz constant are 1.

    Args:
        horizon: number of rounds.
        n: dimension.
        num_segments: number of equal segments.
        segment_starts: their first rounds, instead of equal ones.

    Raises:
        ValueError: ``n`` is below 1; as :func:`equal_segments`.

    Example:
        >>> losses = norm_segments(8, 2, num_segments=2)
        >>> [float(losses.value(jnp.array([0.5, 0.0]), t)) for t in (3, 4)]
        [-0.5, 0.5]
    """
    return _two_centres(
        lambda square: jnp.sqrt(square) - 0.5,
        horizon,
        n,
        num_segments,
        segment_starts,
        bound=1.0,
        lipschitz=1.0,
    )


def strong_segments(
    horizon: int,
    n: int,
    num_segments: int = 1,
    *,
    strong_convexity: Scalar = 1.0,
    segment_starts: Sequence[int] | None = None,
) -> LossSequence:
    r"""Strongly convex, with a kink at a centre that jumps between :math:`\pm e_1 / 2`.

    .. math:: f_t(x) = \tfrac{\alpha}{2} \|x - c_j\|^2 + \tfrac12 \|x - c_j\| - \tfrac12

    On the unit ball the bound is :math:`\max(1/2, 9\alpha/8 + 1/4)` and the Lipschitz
    constant :math:`3\alpha/2 + 1/2`.

    Args:
        horizon: number of rounds.
        n: dimension.
        num_segments: number of equal segments.
        strong_convexity: :math:`\alpha \ge 0`; may be traced.
        segment_starts: as for :func:`norm_segments`.

    Raises:
        ValueError: ``strong_convexity`` is negative; as :func:`norm_segments`.

    Example:
        >>> losses = strong_segments(8, 2, num_segments=2)
        >>> losses.bound, losses.lipschitz
        (1.375, 2.0)
    """
    checks.check_interval("strong_convexity", strong_convexity, 0.0)
    alpha = strong_convexity
    largest = 1.125 * alpha + 0.25
    return _two_centres(
        lambda square: alpha / 2 * square + 0.5 * jnp.sqrt(square) - 0.5,
        horizon,
        n,
        num_segments,
        segment_starts,
        bound=_larger(0.5, largest),
        lipschitz=1.5 * alpha + 0.5,
        strong_convexity=alpha,
    )


def _larger(a: Scalar, b: Scalar) -> Scalar:
    return max(a, b) if checks.is_concrete(b) else jnp.maximum(a, b)


def quadratic_segments(
    horizon: int,
    n: int,
    num_segments: int = 1,
    *,
    strong_convexity: Scalar = 1.0,
    segment_starts: Sequence[int] | None = None,
) -> LossSequence:
    r"""Quadratic around a centre that jumps between :math:`\pm e_1 / 2`.

    .. math:: f_t(x) = \tfrac{\alpha}{2} \|x - c_j\|^2 - \tfrac{\alpha}{4}

    On the unit ball the bound is :math:`7\alpha/8`, the Lipschitz constant
    :math:`3\alpha/2`.

    Args:
        horizon: number of rounds.
        n: dimension.
        num_segments: number of equal segments.
        strong_convexity: :math:`\alpha > 0`; may be traced.
        segment_starts: as for :func:`norm_segments`.

    Raises:
        ValueError: ``strong_convexity`` is not positive; as :func:`norm_segments`.

    Example:
        >>> float(quadratic_segments(8, 2).value(jnp.array([-0.5, 0.0]), 0))
        0.25
    """
    checks.check_interval("strong_convexity", strong_convexity, 0.0, closed="(]")
    alpha = strong_convexity
    return _two_centres(
        lambda square: alpha / 2 * square - alpha / 4,
        horizon,
        n,
        num_segments,
        segment_starts,
        bound=0.875 * alpha,
        lipschitz=1.5 * alpha,
        strong_convexity=alpha,
    )


def linear_segments(
    horizon: int,
    n: int,
    num_segments: int = 1,
    *,
    lipschitz: Scalar = 1.0,
    segment_starts: Sequence[int] | None = None,
) -> LossSequence:
    r"""A slope along the first axis that turns around at every segment.

    .. math:: f_t(x) = (-1)^j G x_1

    The best points of the unit ball are :math:`-(-1)^j e_1`.

    Args:
        horizon: number of rounds.
        n: dimension.
        num_segments: number of equal segments.
        lipschitz: the slope G > 0; may be traced.
        segment_starts: as for :func:`norm_segments`.

    Raises:
        ValueError: ``lipschitz`` is not positive; as :func:`norm_segments`.

    Example:
        >>> losses = linear_segments(8, 2, num_segments=2)
        >>> [float(losses.value(jnp.array([0.5, 0.0]), t)) for t in (3, 4)]
        [0.5, -0.5]
    """
    checks.check_integer("n", n)
    checks.check_interval("lipschitz", lipschitz, 0.0, closed="(]")
    starts = equal_segments(horizon, num_segments, segment_starts)
    segment = segment_index(starts)

    def slope(t):
        return lipschitz * (1.0 - 2.0 * (segment(t) % 2))

    return LossSequence(
        value=lambda x, t: slope(t).astype(x.dtype) * x[0],
        minimizer=lambda t: first_axis(n, -jnp.sign(slope(t))),
        min_value=lambda t: -jnp.abs(slope(t)),
        segment_starts=starts,
        bound=lipschitz,
        lipschitz=lipschitz,
    )


def pricing_segments(
    horizon: int,
    n: int,
    num_segments: int = 1,
    *,
    segment_starts: Sequence[int] | None = None,
) -> LossSequence:
    r"""Prices of n goods whose demand falls in the price, with a market that turns.

    .. math:: f_t(x) = -\frac{2}{n} \sum_i p_i (a_{ji} - p_i), \qquad
        p = (1 + x) / 2, \quad a_{ji} = 1.4 \text{ if } i + j \text{ is even, else } 0.6

    on the box :math:`|x_i| \le 1`, so prices are in [0, 1] and the loss is minus twice
    the mean revenue. The best prices are a/2; the bound is 1, the Lipschitz constant
    :math:`1.4 / \sqrt n`, the strong convexity 1/n.

    Args:
        horizon: number of rounds.
        n: number of goods.
        num_segments: number of equal segments.
        segment_starts: as for :func:`norm_segments`.

    Raises:
        ValueError: as :func:`norm_segments`.

    Example:
        >>> jnp.round(pricing_segments(8, 3).minimizer(0), 6)
        Array([ 0.4, -0.4,  0.4], dtype=float32)
    """
    checks.check_integer("n", n)
    starts = equal_segments(horizon, num_segments, segment_starts)
    segment = segment_index(starts)

    def demand(t):
        is_even = (jnp.arange(n) + segment(t)) % 2 == 0
        return jnp.where(is_even, 1.4, 0.6).astype(float)

    def value(x, t):
        prices = (1.0 + x) / 2
        return -2.0 * jnp.mean(prices * (demand(t).astype(x.dtype) - prices))

    return LossSequence(
        value,
        minimizer=lambda t: demand(t) - 1.0,
        min_value=lambda t: -0.5 * jnp.mean(jnp.square(demand(t))),
        segment_starts=starts,
        bound=1.0,
        lipschitz=1.4 / n**0.5,
        strong_convexity=1.0 / n,
    )


def drifting(horizon: int, n: int, *, period: Scalar) -> LossSequence:
    r"""Distance to a centre that goes around a circle and never jumps.

    .. math:: f_t(x) = \|x - c_t\| - 1/2, \qquad
        c_t = \tfrac12 (\cos, \sin)(2 \pi t / \mathrm{period})

    in the first two coordinates. It is compared with the best point of every round;
    its one segment starts at 0. Bound and Lipschitz constant are 1 on the unit ball.

    Args:
        horizon: number of rounds.
        n: dimension, at least 2.
        period: rounds of one turn, > 0; may be traced.

    Raises:
        ValueError: ``n`` is below 2, ``period`` is not positive, ``horizon`` is below
            1.

    Example:
        >>> jnp.abs(jnp.round(drifting(8, 2, period=8).minimizer(4), 6))
        Array([0.5, 0. ], dtype=float32)
    """
    checks.check_integer("n", n, 2)
    checks.check_interval("period", period, 0.0, closed="()")
    starts = equal_segments(horizon, 1)

    def centre(t):
        # Whole turns drop out before the division, which rounds for large t.
        angle = 2 * jnp.pi * (jnp.mod(t, period) / period)
        around = 0.5 * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        return jnp.pad(around.astype(float), (0, n - 2))

    def value(x, t):
        return jnp.linalg.norm(x - centre(t).astype(x.dtype)) - 0.5

    return LossSequence(
        value,
        centre,
        min_value=lambda t: jnp.asarray(-0.5),
        segment_starts=starts,
        bound=1.0,
        lipschitz=1.0,
    )
