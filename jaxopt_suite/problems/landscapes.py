r"""Benchmark landscapes of global optimization, with their minima and wells.

A rippled bowl, of which there are five here, can be annealable: its global minimum is
found by noise that cools down, with polynomially many gradients, when

(i) it is smooth, and far out its gradient points inward (dissipative);
(ii) it is strongly convex around the minimizer;
(iii) above a temperature :math:`T_c` that does not depend on the accuracy, the Gibbs
measure :math:`\propto e^{-f/T}` has a Poincare constant polynomial in the dimension;
(iv) below :math:`T_c` that measure has little mass outside the well of the minimizer.

Each docstring says what holds. The barriers behind (iii) and (iv) come from
:func:`jaxopt_suite.stochastic.landscape_1d`, on ``separable`` or on the landscape of
dimension 1. All names of the other landscapes are here too.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.problems.harder_landscapes import (
    drop_wave,
    michalewicz,
    neural_toy,
    schaffer_n2,
    schwefel,
)
from jaxopt_suite.problems.landscape import (
    Landscape,
    all_closer,
    as_floating,
    landscape_problem,
    start_around,
)
from jaxopt_suite.problems.polynomial_landscapes import (
    double_well,
    quadratic,
    rosenbrock,
    styblinski_tang,
)

__all__ = [
    "Landscape",
    "ackley",
    "double_well",
    "drop_wave",
    "griewank",
    "landscape_problem",
    "levy",
    "levy_coordinate",
    "michalewicz",
    "neural_toy",
    "perturbed_quadratic",
    "quadratic",
    "rastrigin",
    "rosenbrock",
    "schaffer_n2",
    "schwefel",
    "styblinski_tang",
]


def rastrigin(d: int, A: float | Float[Array, ""] = 10.0) -> Landscape:
    r"""A quadratic bowl with a well at every integer point.

    .. math:: f(x) = \sum_i x_i^2 + A (1 - \cos 2 \pi x_i), \qquad f(0) = 0

    Annealable: (i) with smoothness :math:`2 + 4 \pi^2 A` everywhere, (ii) with
    curvature the same at 0, (iii) and (iv) with barriers of about :math:`2 A` per
    coordinate. At ``A=1`` the barrier out of the nearest well is 1.31 and annealing
    works; at the customary ``A=10`` it is 19.3, and no method that waits for thermal
    jumps succeeds in feasible time. Starts around 3 in every coordinate.

    Args:
        d: dimension; static.
        A: height of the wells, >= 0; may be traced.

    Raises:
        ValueError: ``d`` < 1 or ``A`` < 0.

    Example:
        >>> rastrigin(2, A=1.0).value(jnp.array([1.0, 0.5]))
        Array(3.25, dtype=float32)
    """
    check_integer("d", d)
    check_interval("A", A, 0.0)

    def h(x):
        return x**2 + A * (1 - jnp.cos(2 * jnp.pi * x))

    return Landscape(
        value=lambda x: jnp.sum(h(x)),
        minimizer=jnp.zeros(d),
        min_value=0.0,
        domain=(-5.12, 5.12),
        sample_init=start_around(3.0, d),
        smoothness=2 + 4 * math.pi**2 * A,
        in_basin=all_closer(0.0, 0.5),
        separable=h,
    )


def griewank(d: int, scale: float | Float[Array, ""] = 4000.0) -> Landscape:
    r"""A wide bowl under a product of cosines; not separable.

    .. math:: f(x) = \sum_i \frac{x_i^2}{s} + 1 - \prod_i \cos \frac{x_i}{\sqrt i},
        \qquad f(0) = 0

    Annealable: (i) with smoothness :math:`2/s + 1` everywhere (the product is a mean of
    cosines of :math:`\sum_i \pm x_i / \sqrt i`), (ii), and (iii), (iv) with barriers of
    at most 2 in all. ``scale=40`` is the coarse variant, whose bowl is as deep as its
    ripples. Starts around 8 in every coordinate.

    Args:
        d: dimension; static.
        scale: :math:`s > 0`; may be traced.

    Raises:
        ValueError: ``d`` < 1 or ``scale`` <= 0.

    Example:
        >>> float(griewank(3, scale=40.0).value(jnp.zeros(3)))
        0.0
    """
    check_integer("d", d)
    check_interval("scale", scale, 0.0, closed="()")
    root = np.sqrt(np.arange(1.0, d + 1))

    def value(x):
        x = as_floating(x)
        ripple = jnp.prod(jnp.cos(x / root.astype(x.dtype)))
        return jnp.sum(x**2) / scale + 1 - ripple

    return Landscape(
        value=value,
        minimizer=jnp.zeros(d),
        min_value=0.0,
        domain=(-600.0, 600.0),
        sample_init=start_around(8.0, d),
        smoothness=2 / scale + 1,
        # Where no cosine changes its sign the product has no second maximum.
        in_basin=lambda x: jnp.all(jnp.abs(x / jnp.asarray(root, float)) < math.pi / 2),
        separable=None,
    )


def ackley(
    d: int,
    a: float | Float[Array, ""] = 20.0,
    b: float | Float[Array, ""] = 0.2,
    c: float | Float[Array, ""] = 2 * math.pi,
) -> Landscape:
    r"""A cone at 0 in a nearly flat plain with ripples; not separable.

    .. math:: f(x) = -a e^{-b \sqrt{10^{-12} + \frac1d \sum_i x_i^2}}
        - e^{\frac1d \sum_i \cos c x_i} + a + e, \qquad f(0) = a (1 - e^{-10^{-6} b})

    Of the assumptions (i) fails twice: at 0 it is a cone, rounded off by the
    :math:`10^{-12}` only (curvature :math:`10^6 a b`), and far out the gradient
    vanishes. Around 0 it is sharp rather than strongly convex, which only helps.
    Barriers are bounded. Starts around 3 in every coordinate.

    Args:
        d: dimension; static.
        a: depth of the cone, > 0; may be traced.
        b: its steepness, > 0; may be traced.
        c: frequency of the ripples, > 0; may be traced.

    Raises:
        ValueError: ``d`` < 1, or a parameter is not positive.

    Example:
        >>> float(ackley(2).value(jnp.zeros(2))) < 1e-5
        True
    """
    check_integer("d", d)
    for name, parameter in (("a", a), ("b", b), ("c", c)):
        check_interval(name, parameter, 0.0, closed="()")

    def value(x):
        cone = a * -jnp.expm1(-b * jnp.sqrt(jnp.mean(x**2) + 1e-12))
        return cone - jnp.exp(jnp.mean(jnp.cos(c * x))) + math.e

    return Landscape(
        value=value,
        minimizer=jnp.zeros(d),
        min_value=a * -jnp.expm1(-1e-6 * b),
        domain=(-32.768, 32.768),
        sample_init=start_around(3.0, d),
        smoothness=None,
        in_basin=all_closer(0.0, math.pi / c),
        separable=None,
    )


def levy_coordinate(
    x: Float[Array, "..."], offset: float | Float[Array, ""] = 0.0
) -> Float[Array, "..."]:
    r"""The term of an inner coordinate in :func:`levy`, entry by entry.

    .. math:: h(x) = u^2 (1 + 10 \sin^2(\pi u + 1)), \qquad u = (x - x^*)/4

    Args:
        x: any shape.
        offset: the minimizer :math:`x^*`; may be traced.

    Example:
        >>> levy_coordinate(jnp.array([0.0, 4.0])).round(3)
        Array([0.   , 8.081], dtype=float32)
    """
    u = (x - offset) / 4
    return u**2 * (1 + 10 * jnp.sin(jnp.pi * u + 1) ** 2)


def levy(d: int, offset: float | Float[Array, ""] = 1.0) -> Landscape:
    r"""A bowl with ripples as deep as the bowl is high.

    .. math:: f(x) = \sin^2 \pi w_1
        + \sum_{i<d} (w_i - 1)^2 (1 + 10 \sin^2(\pi w_i + 1))
        + (w_d - 1)^2 (1 + \sin^2 2 \pi w_d)

    with :math:`w = 1 + (x - x^*)/4` and :math:`f(x^*) = 0`. A sum over coordinates, but
    the first and the last term differ from the rest, which is :func:`levy_coordinate`.

    Annealable on a bounded set: barriers and curvature grow with :math:`|x|^2`, so it
    is smooth there only, and (iii) holds from where one starts, not from everywhere.
    Starts around :math:`x^* + 6` in every coordinate.

    Args:
        d: dimension; static.
        offset: every coordinate of :math:`x^*`, in [-10, 10]; may be traced.

    Raises:
        ValueError: ``d`` < 1, or ``offset`` outside [-10, 10].

    Example:
        >>> levy(2).value(jnp.array([1.0, 5.0])).round(3)
        Array(1., dtype=float32)
    """
    check_integer("d", d)
    check_interval("offset", offset, -10.0, 10.0)

    def first_and_last(first, last):
        first, last = (first - offset) / 4, (last - offset) / 4
        bowl = last**2 * (1 + jnp.sin(2 * jnp.pi * last) ** 2)
        return jnp.sin(jnp.pi * first) ** 2 + bowl

    def value(x):
        inner = jnp.sum(levy_coordinate(x[:-1], offset))
        return first_and_last(x[0], x[-1]) + inner

    # Bounds on the second derivatives of the three terms at a distance r from w = 1.
    r = (10.0 + abs(offset)) / 4
    inner = 22 + 40 * math.pi * r + 20 * (math.pi * r) ** 2
    last = 4 + 8 * math.pi * r + 8 * (math.pi * r) ** 2
    bound = 2 * math.pi**2 + (inner if d > 1 else last)
    return Landscape(
        value=value,
        minimizer=jnp.full(d, offset, jnp.result_type(float)),
        min_value=0.0,
        domain=(-10.0, 10.0),
        sample_init=start_around(offset + 6.0, d),
        smoothness=bound / 16,
        # Between the saddles of an inner coordinate; the other terms' are further out.
        in_basin=lambda x: jnp.all((x - offset > -0.85) & (x - offset < 1.66)),
        separable=(lambda x: first_and_last(x, x)) if d == 1 else None,
    )


def perturbed_quadratic(
    d: int,
    amplitude: float | Float[Array, ""],
    frequency: float | Float[Array, ""],
    key: PRNGKeyArray,
) -> Landscape:
    r"""A round bowl with ripples along random orthogonal directions.

    .. math:: f(x) = \tfrac12 \|x\|^2 + a \sum_j (1 - \cos \omega u_j^T x), \qquad
        f(0) = 0

    Annealable: (i) with smoothness :math:`1 + a \omega^2` everywhere, (ii), and (iii),
    (iv) with barriers of at most :math:`2 a` per direction. It is a sum of functions of
    one variable in the coordinates :math:`u_j^T x`, which no method is told. Starts
    around 3 in every coordinate.

    Args:
        d: dimension; static.
        amplitude: :math:`a \ge 0`; may be traced.
        frequency: :math:`\omega > 0`; may be traced.
        key: draws the directions.

    Raises:
        ValueError: ``d`` < 1, ``amplitude`` < 0, or ``frequency`` <= 0.

    Example:
        >>> bowl = perturbed_quadratic(3, 0.0, 1.0, jax.random.key(0))
        >>> bowl.value(jnp.array([2.0, 0.0, 0.0]))
        Array(2., dtype=float32)
    """
    check_integer("d", d)
    check_interval("amplitude", amplitude, 0.0)
    check_interval("frequency", frequency, 0.0, closed="()")
    directions: Any = jax.random.orthogonal(key, d)

    def project(x):
        x = as_floating(x)
        return directions.astype(x.dtype) @ x

    def value(x):
        ripples = jnp.sum(1 - jnp.cos(frequency * project(x)))
        return 0.5 * jnp.sum(x**2) + amplitude * ripples

    return Landscape(
        value=value,
        minimizer=jnp.zeros(d),
        min_value=0.0,
        domain=(-5.0, 5.0),
        sample_init=start_around(3.0, d),
        smoothness=1 + amplitude * frequency**2,
        in_basin=lambda x: jnp.all(jnp.abs(project(x)) < math.pi / frequency),
        separable=None,
    )
