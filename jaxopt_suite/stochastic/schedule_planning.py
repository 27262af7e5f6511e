"""Plans a decay of the temperature by gradient descent through the exact law of SGD."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.stochastic.sgd_kernel import (
    Grid,
    after_stages,
    check_grid,
    check_law,
    check_list,
    check_rates,
    check_scalar,
    is_even,
    split,
    tabulate,
)


class SchedulePlan(NamedTuple):
    """What :func:`plan_schedule` returns.

    Attributes:
        temperatures: temperature of every stage.
        rates: learning rate of every stage, for :func:`staircase`.
        stage_length: steps of a stage.
        expected_value: E h after the planned stages.
        geometric_value: E h after stages in geometric decay, where the plan started.
    """

    temperatures: Float[np.ndarray, " m"]
    rates: Float[np.ndarray, " m"]
    stage_length: int
    expected_value: float
    geometric_value: float


def staircase(
    rates: Float[np.ndarray, " m"] | Float[Array, " m"], stage_length: int
) -> optax.Schedule:
    r"""Schedule of stages of equal length, the last one held.

    .. math:: \eta_k = r_{\min(\lfloor k / L \rfloor, m - 1)}

    Args:
        rates: learning rates > 0 of the stages, shape ``(m,)``; may be traced.
        stage_length: L, steps of a stage, >= 1.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> schedule = staircase(jnp.array([0.5, 0.25]), 10)
        >>> [float(schedule(k)) for k in (0, 9, 10, 25)]
        [0.5, 0.5, 0.25, 0.25]
    """
    check_interval("rates", rates, 0.0, closed="()")
    check_integer("stage_length", stage_length)
    check_list("rates", rates)

    def schedule(count):
        table = jnp.asarray(rates, jnp.result_type(float))
        stage = jnp.asarray(count).astype(jnp.int32) // stage_length
        return table[jnp.minimum(stage, len(table) - 1)]

    return schedule


def plan_schedule(
    h: Callable[[Any], Any],
    budget: int,
    *,
    grid: Grid,
    p0: Float[np.ndarray, " n"],
    noise_std: float,
    hottest: float,
    coldest: float,
    num_stages: int = 14,
    num_iterations: int = 50,
) -> SchedulePlan:
    r"""Stage temperatures that make :math:`E h` least after a budget of queries.

    .. math:: \min_{T_1, \dots, T_m} \; p_0 P_{T_1}^L \cdots P_{T_m}^L \cdot h, \qquad
        L = N / m

    by L-BFGS on the logarithms, with the exact gradient through the propagated law,
    from ``geomspace(hottest, coldest, num_stages)`` and never outside of these two.
    The plan is for one coordinate; on a separable function it holds for all.

    Args:
        h: the function, entry by entry, in JAX.
        budget: N, gradient queries in all, a multiple of ``num_stages``.
        grid: increasing and uniform, as :func:`~.annealing_oracle.propagate`; an even h
            on a symmetric grid takes an eighth of the time.
        p0: masses of the first law.
        noise_std: :math:`\sigma > 0`.
        hottest: first temperature of the start, and upper bound.
        coldest: last temperature of the start, and lower bound; at least the grid step
            times ``noise_std / 2``.
        num_stages: m.
        num_iterations: at most as many steps of L-BFGS.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> x = np.linspace(-4, 4, 81)
        >>> p0 = np.full(81, 1 / 81)
        >>> plan = plan_schedule(
        ...     lambda x: x**2 / 2, 16, grid=x, p0=p0, noise_std=2.0, hottest=1.0,
        ...     coldest=0.1, num_stages=4,
        ... )
        >>> plan.expected_value < 0.9 * plan.geometric_value
        True
    """
    from scipy.optimize import minimize

    points, step = check_grid(grid)
    p0 = check_law(p0, points)
    check_scalar("noise_std", noise_std)
    check_integer("num_stages", num_stages)
    check_integer("num_iterations", num_iterations)
    check_integer("budget", budget, num_stages)
    if budget % num_stages:
        raise ValueError(
            f"budget must be a multiple of num_stages={num_stages}, got {budget}"
        )
    check_interval("coldest", coldest, 0.0, closed="()")
    check_interval("hottest", hottest, coldest)
    check_interval("noise_std", noise_std, 0.0, closed="()")
    check_rates("2 coldest / noise_std**2", 2 * coldest / noise_std**2, noise_std, step)
    stage_length = budget // num_stages
    heights = tabulate("h", h, points)
    value_and_slope = _objective(h, points, heights, p0, noise_std, stage_length)
    start = np.geomspace(hottest, coldest, num_stages)
    with jax.enable_x64(True):
        geometric, _ = value_and_slope(np.log(start))
        found: Any = minimize(
            value_and_slope,
            np.log(start),
            jac=True,
            method="L-BFGS-B",
            bounds=[(np.log(coldest), np.log(hottest))] * num_stages,
            options={"maxiter": num_iterations},
        )
    temperatures = np.exp(found.x)
    return SchedulePlan(
        temperatures,
        2 * temperatures / noise_std**2,
        stage_length,
        float(np.exp(found.fun) + np.min(heights)),
        float(np.exp(geometric) + np.min(heights)),
    )


def _objective(h, points, heights, p0, noise_std, stage_length):
    """Log of E h above the least h, with its gradient in the log temperatures."""
    try:
        slopes = tabulate("h", jax.vmap(jax.grad(h)), points)
    except jax.errors.TracerArrayConversionError as error:
        message = "h must be made of jax.numpy, to be differentiated, got one of NumPy"
        raise ValueError(message) from error
    even = is_even(points, slopes, heights)
    law = split(np.asarray(p0, np.float64), even)[0]
    excess = (heights - np.min(heights))[-len(law) :]

    @jax.jit
    @jax.value_and_grad
    def log_excess(log_temperatures):
        rates = 2 * jnp.exp(log_temperatures) / noise_std**2
        settings = (jnp.asarray(slopes), rates, noise_std, jnp.asarray(law))
        last = after_stages(jnp.asarray(points), *settings, stage_length, even=even)
        return jnp.log(jnp.sum(last * excess))

    return lambda x: tuple(np.float64(part) for part in log_excess(x))
