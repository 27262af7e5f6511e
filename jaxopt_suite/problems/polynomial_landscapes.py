"""Polynomial landscapes: a bowl, two wells per coordinate, a curved valley."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxopt_suite.core.checks import check_integer, check_interval, is_concrete
from jaxopt_suite.problems.landscape import (
    Landscape,
    all_closer,
    as_floating,
    start_around,
    start_in,
)


def quadratic(eigenvalues: Float[Array, " d"] | np.ndarray) -> Landscape:
    r"""A strongly convex quadratic: the control, where a decaying rate gains little.

    .. math:: f(x) = \tfrac12 \sum_i \lambda_i x_i^2, \qquad f(0) = 0

    All assumptions hold, with no barrier. ``separable`` is there where the eigenvalues
    are concrete and equal. Starts around 3 in every coordinate.

    Args:
        eigenvalues: :math:`\lambda > 0`, shape ``(d,)``; may be traced.

    Raises:
        ValueError: not of shape ``(d,)`` with d >= 1, or an eigenvalue is not positive.

    Example:
        >>> quadratic(jnp.array([1.0, 3.0])).value(jnp.ones(2))
        Array(2., dtype=float32)
    """
    check_interval("eigenvalues", eigenvalues, 0.0, closed="()")
    eigenvalues = jnp.asarray(eigenvalues, jnp.result_type(float))
    if eigenvalues.ndim != 1 or not eigenvalues.size:
        raise ValueError(
            "eigenvalues must have shape (d,) with d >= 1, got shape "
            f"{eigenvalues.shape}"
        )
    d = eigenvalues.size
    is_one = d == 1 or (
        is_concrete(eigenvalues) and bool(jnp.all(eigenvalues == eigenvalues[0]))
    )

    def value(x):
        x = as_floating(x)
        return 0.5 * jnp.sum(eigenvalues.astype(x.dtype) * x**2)

    return Landscape(
        value=value,
        minimizer=jnp.zeros(d),
        min_value=0.0,
        domain=(-5.0, 5.0),
        sample_init=start_around(3.0, d),
        smoothness=jnp.max(eigenvalues),
        in_basin=all_closer(0.0, math.inf),
        separable=(lambda x: 0.5 * eigenvalues[0] * x**2) if is_one else None,
    )


def double_well(d: int, tilt: float | Float[Array, ""] = 0.5) -> Landscape:
    r"""Two wells per coordinate near -1 and 1; the tilt makes the left one deeper.

    .. math:: f(x) = \sum_i (x_i^2 - 1)^2 + \tau x_i

    Annealable on a bounded set, as :func:`styblinski_tang`, with barriers of at most 1.
    Starts around 1 in every coordinate.

    Args:
        d: dimension; static.
        tilt: :math:`\tau` in :math:`(0, 8/\sqrt{27})`, beyond which there is one well;
            may be traced.

    Raises:
        ValueError: ``d`` < 1, or ``tilt`` outside its range.

    Example:
        >>> double_well(1, tilt=0.5).minimizer.round(4)
        Array([-1.0575], dtype=float32)
    """
    check_integer("d", d)
    check_interval("tilt", tilt, 0.0, 8 / math.sqrt(27), closed="()")
    # The roots of 4 x^3 - 4 x + tilt by Viete's formula.
    angle = jnp.arccos(-math.sqrt(27) / 8 * jnp.asarray(tilt, jnp.result_type(float)))
    saddle, lowest = (
        2 / math.sqrt(3) * jnp.cos(angle / 3 - 2 * math.pi * k / 3) for k in (1, 2)
    )

    def h(x):
        return (x**2 - 1) ** 2 + tilt * x

    return Landscape(
        value=lambda x: jnp.sum(h(x)),
        minimizer=jnp.full(d, lowest),
        min_value=d * h(lowest),
        domain=(-2.0, 2.0),
        sample_init=start_around(1.0, d),
        smoothness=44.0,
        in_basin=lambda x: jnp.all((x < saddle) & jnp.isfinite(x)),
        separable=h,
    )


def styblinski_tang(d: int) -> Landscape:
    r"""Two wells per coordinate, the deeper one on the left.

    .. math:: f(x) = \tfrac12 \sum_i x_i^4 - 16 x_i^2 + 5 x_i, \qquad
        f^* = -39.166\,d \text{ at } x_i = -2.9035

    Annealable on a bounded set: it is strongly dissipative, so iterates stay there,
    but its curvature grows with :math:`x^2` (the bound is for [-5, 5]). The wrong well
    lies 14.1 higher, under a barrier of 25.2. Starts around it, at 2.75.

    Args:
        d: dimension; static.

    Raises:
        ValueError: ``d`` < 1.

    Example:
        >>> styblinski_tang(2).value(jnp.array([-2.903534, -2.903534])).round(3)
        Array(-78.332, dtype=float32)
    """
    check_integer("d", d)

    def h(x):
        return 0.5 * (x**4 - 16 * x**2 + 5 * x)

    return Landscape(
        value=lambda x: jnp.sum(h(x)),
        minimizer=jnp.full(d, -2.903534027771178),
        min_value=-39.16616570377142 * d,
        domain=(-5.0, 5.0),
        sample_init=start_around(2.75, d),
        smoothness=134.0,
        # The saddle between the wells: the middle root of 4 x^3 - 32 x + 5.
        in_basin=lambda x: jnp.all((x < 0.1567312) & jnp.isfinite(x)),
        separable=h,
    )


def rosenbrock(d: int) -> Landscape:
    r"""A curved valley with a flat floor.

    .. math:: f(x) = \sum_{i<d} 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2, \qquad
        f(1) = 0

    Not smooth (the curvature grows with :math:`|x|^2`), and with almost no barriers:
    from d = 4 on there is one other minimum, near :math:`(-1, 1, \dots)`. What is hard
    is its condition, not its shape. Starts uniformly in [-2.048, 2.048]^d.

    Args:
        d: dimension, at least 2; static.

    Raises:
        ValueError: ``d`` < 2.

    Example:
        >>> rosenbrock(3).value(jnp.zeros(3))
        Array(2., dtype=float32)
    """
    check_integer("d", d, 2)
    domain = (-2.048, 2.048)

    def value(x):
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    return Landscape(
        value=value,
        minimizer=jnp.ones(d),
        min_value=0.0,
        domain=domain,
        sample_init=start_in(domain, d),
        smoothness=None,
        in_basin=all_closer(1.0, 1.0),
        separable=None,
    )
