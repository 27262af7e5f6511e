r"""The exact law of SGD in one variable: what a simulation only estimates.

With Gaussian gradient noise each coordinate of SGD on a separable function
:math:`f(x) = \sum_i h(x_i)` is a Markov chain, :math:`x \to N(x - \eta h'(x), (\eta
\sigma)^2)`. On a uniform grid its kernel is, by the trapezoid rule,

.. math:: P_{ij} \propto \exp \Big(-\frac{(x_j - x_i + \eta h'(x_i))^2}
    {2 \eta^2 \sigma^2}\Big), \qquad \textstyle\sum_j P_{ij} = 1

A law is the vector of its masses p at the grid points, and a step is p P. With a grid
step of at most :math:`\eta \sigma` the error of a step is about :math:`e^{-2 \pi^2} =
3 \cdot 10^{-9}`. Coordinates are independent, so :math:`E f = d\,p \cdot h`, and all of
them are in a well with the d-th power of its mass.

Functions of x (``h``, ``h_grad``) act entry by entry on arrays: ``landscape.separable``
and ``jax.vmap(jax.grad(landscape.separable))``. The grid should be wide enough that no
mass gets to its ends, where a step that leads outside stops. Laws that are NumPy arrays
are computed on the host in float64; laws that are JAX arrays with JAX, in their own
dtype, differentiably.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.stochastic.annealing_queries import (
    FixedRateQueries,
    ScheduleQueries,
    fixed_rate_queries,
    schedule_queries,
)
from jaxopt_suite.stochastic.sgd_kernel import (
    Grid,
    Law,
    after,
    after_stages,
    banded_kernel,
    check_grid,
    check_law,
    check_list,
    check_rates,
    check_scalar,
    dense_kernel,
    tabulate,
    tabulate_traced,
)

__all__ = [
    "FixedRateQueries",
    "ScheduleQueries",
    "expected_value",
    "fixed_rate_queries",
    "propagate",
    "propagate_stages",
    "schedule_queries",
    "total_variation",
    "transition_matrix",
    "well_mass",
]


def transition_matrix(
    h_grad: Callable[[Any], Any], grid: Grid, lr: float, noise_std: float
) -> Float[np.ndarray, "n n"]:
    r"""The kernel of one step of SGD, :math:`P_{ij}`, rows from, columns to.

    Args:
        h_grad: the derivative :math:`h'`, entry by entry.
        grid: increasing, uniform, with steps of at most ``lr * noise_std``.
        lr: :math:`\eta > 0`.
        noise_std: :math:`\sigma > 0`.

    Returns:
        Float64 on the host, rows sum to 1. Masses beyond 10 standard deviations of a
        step, :math:`10^{-22}` of a row, are set to 0.

    Raises:
        ValueError: an argument is out of range; the message gives the needed step.

    Example:
        >>> P = transition_matrix(lambda x: x, np.linspace(-4, 4, 81), 0.1, 2.0)
        >>> x = np.linspace(-4, 4, 81)
        >>> (P[30] @ x).round(6)  # x - 0.1 x at x = -1
        np.float64(-0.9)
    """
    points, step = check_grid(grid)
    check_scalar("lr", lr)
    check_scalar("noise_std", noise_std)
    check_rates("lr", lr, noise_std, step)
    return banded_kernel(
        points, tabulate("h_grad", h_grad, points), lr, noise_std
    ).toarray()


def propagate(
    h_grad: Callable[[Any], Any],
    grid: Grid,
    schedule: optax.ScalarOrSchedule,
    noise_std: float | Float[Array, ""],
    p0: Law,
    num_steps: int,
) -> Law:
    r"""The law of SGD after ``num_steps`` steps, :math:`p_{k+1} = p_k P_k`.

    Args:
        h_grad: the derivative :math:`h'`, entry by entry.
        grid: increasing, uniform, with steps of at most ``lr * noise_std`` throughout.
        schedule: learning rate > 0, a number or a schedule of the step.
        noise_std: :math:`\sigma > 0`.
        p0: masses of the first law, which sum to 1. A NumPy array gives a NumPy array,
            in float64 and with steps of equal rate taken together; a JAX array gives a
            JAX array, and can be differentiated by what schedule and ``noise_std`` are
            made of, at a memory of ``num_steps * n``.
        num_steps: number of steps; static.

    Raises:
        ValueError: an argument is out of range, where it is concrete.

    Example:
        >>> x = np.linspace(-4, 4, 161)
        >>> p0 = np.full(161, 1 / 161)
        >>> p = propagate(lambda x: x, x, optax.constant_schedule(0.1), 2.0, p0, 300)
        >>> float(p @ x**2).__round__(4)  # 0.1 * 2^2 / (2 - 0.1)
        0.2105
    """
    check_integer("num_steps", num_steps, 0)
    check_interval("schedule", schedule, 0.0, closed="()")
    check_scalar("noise_std", noise_std)
    if not callable(schedule):
        check_scalar("schedule", schedule)
    points, step = check_grid(grid)
    p0 = check_law(p0, points)
    rate = schedule if callable(schedule) else lambda count: schedule
    if not isinstance(p0, np.ndarray):
        # A schedule made of traced values stays traced, and is not checked.
        with jax.ensure_compile_time_eval():
            rates = jax.vmap(rate)(jnp.arange(num_steps, dtype=jnp.int32))
        check_rates("schedule", rates, noise_std, step)
        return _propagate_traced(h_grad, points, rate, noise_std, p0, num_steps)
    with jax.enable_x64(True):
        rates = np.asarray(jax.vmap(rate)(jnp.arange(num_steps, dtype=jnp.int32)))
    rates = np.broadcast_to(np.float64(rates), (num_steps,))
    check_rates("schedule", rates, noise_std, step)
    slopes = tabulate("h_grad", h_grad, points)
    ends = np.append(np.flatnonzero(np.diff(rates)) + 1, num_steps)
    law, start = np.asarray(p0, np.float64), 0
    for end in ends[ends > 0]:
        kernel = banded_kernel(points, slopes, rates[start], float(noise_std))
        law, start = after(law, kernel, int(end - start)), end
    return law


def _propagate_traced(h_grad, points, rate, noise_std, p0, num_steps):
    places = jnp.asarray(points, p0.dtype)
    slopes = tabulate_traced("h_grad", h_grad, places)

    @jax.checkpoint
    def step(law, count):
        now = jnp.asarray(rate(count), law.dtype)
        law = law @ dense_kernel(places, places - now * slopes, now * noise_std)
        # Rounding would carry the sum of a float32 law away from 1.
        return law / jnp.sum(law), None

    return jax.lax.scan(step, p0, jnp.arange(num_steps, dtype=jnp.int32))[0]


def propagate_stages(
    h_grad: Callable[[Any], Any],
    grid: Grid,
    rates: Float[np.ndarray, " m"] | Float[Array, " m"],
    noise_std: float | np.ndarray | Float[Array, "..."],
    p0: Law,
    stage_length: int,
) -> Law:
    r"""The law of SGD after stages of equal length, :math:`p_0 P_1^L \cdots P_m^L`.

    As :func:`propagate` with a staircase, by repeated squaring: its cost grows with
    :math:`\log L`.

    Args:
        h_grad: the derivative :math:`h'`, entry by entry.
        grid: increasing, uniform, with steps of at most ``lr * noise_std`` throughout.
        rates: learning rates > 0 of the stages, shape ``(m,)``.
        noise_std: :math:`\sigma > 0`, one or one per stage.
        p0: as in :func:`propagate`; with a JAX array it is differentiable in ``rates``
            and ``noise_std``.
        stage_length: L, steps of a stage; static.

    Raises:
        ValueError: an argument is out of range, where it is concrete.

    Example:
        >>> x = np.linspace(-4, 4, 161)
        >>> p0 = np.full(161, 1 / 161)
        >>> p = propagate_stages(lambda x: x, x, np.array([0.2, 0.1]), 2.0, p0, 1000)
        >>> float(p @ x**2).__round__(4)
        0.2105
    """
    check_integer("stage_length", stage_length)
    points, step = check_grid(grid)
    p0 = check_law(p0, points)
    check_list("rates", rates)
    if np.shape(noise_std) not in ((), np.shape(rates)):
        raise ValueError(
            f"noise_std must be a number or have the shape {np.shape(rates)} of rates, "
            f"got shape {np.shape(noise_std)}"
        )
    check_rates("rates", rates, noise_std, step)
    if isinstance(p0, np.ndarray):
        slopes = tabulate("h_grad", h_grad, points)
        law = np.asarray(p0, np.float64)
        for rate, std in np.broadcast(np.asarray(rates), np.asarray(noise_std)):
            law = after(law, banded_kernel(points, slopes, rate, std), stage_length)
        return law
    places = jnp.asarray(points, p0.dtype)
    slopes = tabulate_traced("h_grad", h_grad, places)
    return after_stages(places, slopes, rates, noise_std, p0, stage_length)


def expected_value(
    p: Law, h: Callable[[Any], Any], grid: Grid
) -> np.floating | Float[Array, ""]:
    r""":math:`E\,h(x) = \sum_i p_i h(x_i)`, times d for a separable function.

    Args:
        p: masses of a law; NumPy or JAX, as the result.
        h: a function of x, entry by entry.
        grid: where the masses are.

    Raises:
        ValueError: the grid is not uniform and increasing, or does not fit the law.

    Example:
        >>> expected_value(np.array([0.5, 0.0, 0.5]), np.square, np.linspace(-1, 1, 3))
        np.float64(1.0)
    """
    points, _ = check_grid(grid)
    p = check_law(p, points)
    if isinstance(p, np.ndarray):
        return np.sum(np.asarray(p, np.float64) * tabulate("h", h, points))
    return jnp.sum(p * tabulate_traced("h", h, jnp.asarray(points, p.dtype)))


def well_mass(
    p: Law, grid: Grid, interval: tuple[float, float]
) -> np.floating | Float[Array, ""]:
    """Mass of a law between two points, from its linearly interpolated integral.

    A point of the grid has half of its mass on either side, also the first and the
    last: from below the grid to above it there is all of it. The d-th power is the
    probability that all of d coordinates are there.

    Args:
        p: masses of a law; NumPy or JAX, as the result.
        grid: where the masses are.
        interval: its ends, left below right.

    Raises:
        ValueError: as :func:`expected_value`, or the ends are not in order.

    Example:
        >>> x = np.linspace(-1, 1, 201)
        >>> p = np.full(201, 1 / 201)
        >>> float(well_mass(p, x, (-0.25, 0.25))).__round__(3)
        0.249
    """
    points, _ = check_grid(grid)
    p = check_law(p, points)
    left, right = interval
    if not left < right:
        raise ValueError(
            f"interval must be (left, right), left < right, got {interval}"
        )
    lib: Any = np if isinstance(p, np.ndarray) else jnp
    running = lib.cumsum(p)
    ends = {"left": 0.0, "right": running[-1]}
    upper, lower = (
        lib.interp(end, points, running - p / 2, **ends) for end in (right, left)
    )
    return upper - lower


def total_variation(p: Law, q: Law) -> np.floating | Float[Array, ""]:
    r"""Distance of two laws on the same grid, :math:`\frac12 \sum_i |p_i - q_i|`.

    Raises:
        ValueError: the laws differ in shape.

    Example:
        >>> total_variation(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5]))
        np.float64(0.5)
    """
    if jnp.shape(p) != jnp.shape(q):
        raise ValueError(
            f"q must have the shape of p {jnp.shape(p)}, got {jnp.shape(q)}"
        )
    return 0.5 * abs(p - q).sum()
