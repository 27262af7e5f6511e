r"""The Langevin diffusion in one variable: barriers, Gibbs measure, spectral gap.

The limit of SGD for small rates, :math:`dX = -h'(X)\,dt + \sqrt{2T}\,dW`, whose law at
rest is :math:`\pi_T \propto e^{-h/T}`. Float64 on the host; ``h`` acts entry by entry
on arrays, as ``landscape.separable`` does.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.stochastic.sgd_kernel import Grid, check_grid, check_scalar, tabulate


def gibbs(h: Callable[[Any], Any], T: float, grid: Grid) -> Float[np.ndarray, " n"]:
    r"""Masses of the Gibbs measure on a uniform grid.

    .. math:: p_i \propto e^{-h(x_i)/T}

    Also the way to write a first law: ``gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, grid)``
    is the normal law around 3 with standard deviation 0.5.

    Args:
        h: the function.
        T: temperature > 0.
        grid: increasing and uniform.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> x = np.linspace(-5, 5, 201)
        >>> float(gibbs(lambda x: x**2 / 2, 0.25, x) @ x**2).__round__(6)
        0.25
    """
    check_interval("T", T, 0.0, closed="()")
    check_scalar("T", T)
    points, _ = check_grid(grid)
    heights = tabulate("h", h, points)
    weights = np.exp((np.min(heights) - heights) / T)
    return weights / np.sum(weights)


def langevin_generator(h: Callable[[Any], Any], T: float, grid: Grid) -> Any:
    r"""Generator of the Langevin diffusion on a grid, a nearest-neighbour jump process.

    .. math:: Q_{i, i \pm 1} = \frac{T}{\Delta^2} e^{-(h_{i \pm 1} - h_i)/2T}, \qquad
        Q_{ii} = -Q_{i,i-1} - Q_{i,i+1}

    Its law at rest is :func:`gibbs` exactly; the law p at time t becomes :math:`p
    e^{Qt}`, with an error of order :math:`\Delta^2`. Nothing leaves the grid.

    Args:
        h: the function.
        T: temperature > 0.
        grid: increasing and uniform, with step :math:`\Delta`.

    Returns:
        A tridiagonal SciPy sparse array of float64; rows sum to 0. For the law after a
        time t: ``scipy.sparse.linalg.expm_multiply(t * Q.T, p)``.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> langevin_generator(np.zeros_like, 2.0, np.linspace(0, 2, 3)).toarray()
        array([[-2.,  2.,  0.],
               [ 2., -4.,  2.],
               [ 0.,  2., -2.]])
    """
    from scipy.sparse import diags_array

    check_interval("T", T, 0.0, closed="()")
    check_scalar("T", T)
    points, step = check_grid(grid)
    up, down = _jump_rates(tabulate("h", h, points), T, step)
    stay = -np.append(up, 0.0) - np.append(0.0, down)
    return diags_array([down, stay, up], offsets=[-1, 0, 1], format="csr")  # pyright: ignore[reportArgumentType]


def _jump_rates(heights, T, step):
    half = np.diff(heights) / (2 * T)
    if np.max(np.abs(half)) > 300:
        raise ValueError(
            f"T must be higher, or the grid finer, got T={T}: it is too small for the "
            "steps of the grid, whose jump rates overflow"
        )
    return tuple(T / step**2 * np.exp(sign * half) for sign in (-1, 1))


def langevin_spectral_gap(
    h: Callable[[Any], Any], T: float, lo: float, hi: float, num: int = 6001
) -> float:
    r"""Rate at which the slowest mode of the Langevin diffusion dies out.

    The second eigenvalue of minus :func:`langevin_generator`, which is symmetric after
    a change of measure, with :math:`-T/\Delta^2` beside the diagonal. One over it is
    the Poincare constant of the Gibbs measure; it falls like :math:`e^{-B/T}`, B the
    largest finite barrier of :func:`landscape_1d`.

    Args:
        h: the function.
        T: temperature > 0.
        lo: left end of the interval, where the diffusion is reflected.
        hi: right end.
        num: number of grid points.

    Raises:
        ValueError: an argument is out of range, or the gap is below the rounding error
            of the largest eigenvalue: T is too small, or the grid too fine for it.

    Example:
        >>> gap = langevin_spectral_gap(lambda x: x**2 / 2, 0.5, -6.0, 6.0, 1001)
        >>> round(gap, 3)
        1.0
    """
    from scipy.linalg import eigh_tridiagonal

    check_interval("T", T, 0.0, closed="()")
    check_scalar("T", T)
    check_integer("num", num, 3)
    points = _interval_grid(lo, hi, num)
    step = points[1] - points[0]
    up, down = _jump_rates(tabulate("h", h, points), T, step)
    leave = np.append(up, 0.0) + np.append(0.0, down)
    beside = np.full(num - 1, -T / step**2)
    gap = eigh_tridiagonal(
        leave, beside, eigvals_only=True, select="i", select_range=(1, 1)
    )[0]
    least = 1e3 * np.finfo(float).eps * np.max(leave)
    if not gap > least:
        raise ValueError(
            f"T must be higher, or num less, for a spectral gap above {least:.2g}, "
            f"where rounding ends, got T={T}, num={num} and a gap of {gap:.2g}"
        )
    return float(gap)


def _interval_grid(lo, hi, num):
    if not lo < hi:
        raise ValueError(f"hi must be > lo = {lo}, got {hi}")
    if not (np.isfinite(lo) and np.isfinite(hi)):
        raise ValueError(f"lo, hi must be finite, got {lo}, {hi}")
    return np.linspace(lo, hi, num)


class Landscape1D(NamedTuple):
    """What :func:`landscape_1d` returns.

    Attributes:
        minima: places of the local minima, from left to right.
        minimum_values: h there.
        saddles: places of the maxima between them.
        saddle_values: h there.
        barriers: for each minimum, the least climb to a lower point; inf for the global
            one. The largest finite one governs the slowest escape at low temperature.
        critical_temperature: where half of the Gibbs measure on the interval is in the
            well of the global minimum, and more below; inf where at least half is at
            every temperature, 0 where another minimum is as low, up to 1e-10 of the
            highest saddle.
    """

    minima: Float[np.ndarray, " m"]
    minimum_values: Float[np.ndarray, " m"]
    saddles: Float[np.ndarray, " m-1"]
    saddle_values: Float[np.ndarray, " m-1"]
    barriers: Float[np.ndarray, " m"]
    critical_temperature: float


def landscape_1d(
    h: Callable[[Any], Any], lo: float, hi: float, num: int = 20_001
) -> Landscape1D:
    r"""Minima, saddles, barriers and critical temperature in one variable.

    At the critical temperature :math:`T_c` a chain crosses the largest finite barrier
    B in a time of order :math:`e^{B/T_c}`, and half of the time it is in the right
    well: a decay should start above. Classical annealing :math:`T_k = c / \log k`
    needs :math:`c \ge B` (Hajek).

    Args:
        h: the function.
        lo: left end of the interval. Its ends are no minima.
        hi: right end.
        num: number of points where extrema are looked for; each must be several apart.

    Raises:
        ValueError: an argument is out of range, or there is no minimum inside.

    Example:
        >>> found = landscape_1d(lambda x: x**4 - 2 * x**2 + 0.25 * x, -2.0, 2.0)
        >>> found.minima.round(3), found.saddles.round(3), found.barriers.round(3)
        (array([-1.03 ,  0.967]), array([0.063]), array([  inf, 0.762]))

    Source: Hajek, "Cooling Schedules for Optimal Annealing" (1988), Mathematics of
    Operations Research 13.
    """
    check_integer("num", num, 5)
    points = _interval_grid(lo, hi, num)
    heights = tabulate("h", h, points)
    bottoms, tops = _turns(np.diff(heights))
    if not bottoms.size:
        raise ValueError(f"lo, hi must have a minimum of h inside, got {lo}, {hi}")
    tops = tops[(tops > bottoms[0]) & (tops < bottoms[-1])]
    reach = points[1] - points[0]
    minima, low = _refined(h, points[bottoms], reach, 1.0)
    saddles, high = _refined(h, points[tops], reach, -1.0)
    places = np.concatenate([points, minima, saddles])
    values = np.concatenate([heights, low, high])
    critical = _critical_temperature(places, values, low, saddles)
    return Landscape1D(minima, low, saddles, high, _climbs(low, high), critical)


def _turns(rises):
    """Indices of local minima and maxima, each in the middle of its flat piece."""
    moves = np.flatnonzero(rises)
    falls = rises[moves] < 0
    middles = (moves[:-1] + 1 + moves[1:]) // 2
    return middles[falls[:-1] & ~falls[1:]], middles[~falls[:-1] & falls[1:]]


def _refined(h, places, reach, sign):
    """Extrema by ever finer grids around them, ended by a parabola."""
    offsets = np.linspace(-1, 1, 21)
    while reach > 2e-5 * max(1.0, np.max(np.abs(places), initial=0.0)):
        near = places[:, None] + reach * offsets
        best = np.argmin(sign * tabulate("h", h, near), axis=1)
        places, reach = near[np.arange(len(places)), best], reach / 5
    left, middle, right = tabulate("h", h, places + reach * np.array([[-1], [0], [1]]))
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / np.where(bend == 0, 1.0, bend)
    places = places + reach * np.where(bend == 0, 0.0, shift.clip(-1, 1))
    return places, tabulate("h", h, places)


def _climbs(low, high):
    """Over the lower of the two ways to a deeper minimum, the highest saddle on it."""
    climbs = np.full(len(low), math.inf)
    for i, value in enumerate(low):
        deeper = np.flatnonzero(
            (low < value) | ((low == value) & (np.arange(len(low)) < i))
        )
        for j in deeper:
            way = high[min(i, j) : max(i, j)]
            climbs[i] = min(climbs[i], np.max(way) - value)
    return climbs


def _critical_temperature(points, heights, low, saddles):
    """On a grid which has the saddles and the minima, of values ``low``."""
    from scipy.optimize import brentq

    order = np.argsort(points)
    points, heights = points[order], heights[order] - np.min(low)
    above = np.delete(low, np.argmin(low)) - np.min(low)
    lowest = points[np.argmin(heights)]
    after = np.searchsorted(saddles, lowest)
    ends = np.concatenate([points[:1], saddles, points[-1:]])[after : after + 2]
    first, last = np.searchsorted(points, ends)
    if not above.size:
        return math.inf
    top = np.max(heights[np.searchsorted(points, saddles)])
    if np.min(above) <= 1e-10 * top:
        return 0.0

    def excess(log_temperature):
        weights = np.exp(-heights / math.exp(log_temperature))
        masses = np.diff(points) * (weights[:-1] + weights[1:])
        # Half, up to the rounding of the places of the saddles.
        return np.sum(masses[first:last]) / np.sum(masses) - 0.5 + 1e-8

    # At the coldest all is in the well: the next minimum has a weight of e^-700.
    cold, hot = np.log(np.min(above) / 700), np.log(1e4 * np.ptp(heights))
    scan = np.linspace(cold, hot, math.ceil(10 * (hot - cold)))
    less = np.flatnonzero(np.array([excess(t) for t in scan]) < 0)
    if not less.size:
        return math.inf
    found: Any = brentq(excess, scan[less[0] - 1], scan[less[0]])
    return math.exp(found)
