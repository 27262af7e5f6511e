"""Gradient queries until SGD in one variable is near its minimum, without simulation.

Part of :mod:`jaxopt_suite.stochastic.annealing_oracle`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.stochastic.sgd_kernel import (
    Grid,
    banded_kernel,
    check_grid,
    check_law,
    check_list,
    check_rates,
    check_scalar,
    is_even,
    join,
    split,
    square,
    tabulate,
)


class FixedRateQueries(NamedTuple):
    """What :func:`fixed_rate_queries` returns; t counts targets and r rates.

    Attributes:
        queries: least number of queries over all rates; inf where none gets there.
        best_rate: the rate that needs it; NaN where none gets there.
        by_rate: least number of queries of every rate.
    """

    queries: Float[np.ndarray, " t"]
    best_rate: Float[np.ndarray, " t"]
    by_rate: Float[np.ndarray, "r t"]


def fixed_rate_queries(
    h: Callable[[Any], Any],
    h_grad: Callable[[Any], Any],
    grid: Grid,
    noise_std: float,
    p0: Float[np.ndarray, " n"],
    targets: Float[np.ndarray, " t"],
    rates: Float[np.ndarray, " r"],
) -> FixedRateQueries:
    r"""Least number of queries after which SGD of a fixed rate is at a target.

    At a target t means :math:`E h \le t`. By repeated squaring, so that 1e9 queries
    are some thirty matrix products: :math:`E h` is looked at after every power of two
    of queries; between the first power at the target and the one before, a binary
    search finds the least number, with :math:`E h` taken to be decreasing there. A rate
    is given up where from no point of the grid :math:`E h` is at the target any more,
    which no later step can mend, or after :math:`2^{60}` queries. An even h on a
    symmetric grid is folded onto :math:`|x|`.

    Args:
        h: the function.
        h_grad: its derivative.
        grid: increasing, uniform, with steps of at most ``rates * noise_std``.
        noise_std: :math:`\sigma > 0`.
        p0: masses of the first law.
        targets: values of :math:`E h`.
        rates: learning rates > 0.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> x = np.linspace(-4, 4, 161)
        >>> p0 = np.zeros(161)
        >>> p0[140] = 1.0  # starts at 3
        >>> found = fixed_rate_queries(
        ...     lambda x: x**2 / 2, lambda x: x, x, 1.0, p0,
        ...     np.array([0.1, 0.01]), np.array([0.1, 0.2]),
        ... )
        >>> found.queries, found.best_rate
        (array([11., inf]), array([0.2, nan]))
    """
    points, step = check_grid(grid)
    p0 = check_law(p0, points)
    check_scalar("noise_std", noise_std)
    check_rates("rates", rates, noise_std, step)
    check_list("rates", rates)
    check_list("targets", targets)
    targets, rates = np.asarray(targets), np.asarray(rates)
    if np.any(np.isnan(targets)):
        raise ValueError(f"targets must be numbers, got {targets}")
    slopes, heights = tabulate("h_grad", h_grad, points), tabulate("h", h, points)
    even = is_even(points, slopes, heights)
    law = split(np.asarray(p0, np.float64), even)[0]
    heights = heights[-len(law) :]
    by_rate = np.empty((len(rates), len(targets)))
    for row, rate in zip(by_rate, rates, strict=True):
        kernel = banded_kernel(points, slopes, rate, noise_std).toarray()
        row[:] = _least_powers(split(kernel, even)[0], law, heights, targets)
    best = np.argmin(by_rate, axis=0)
    queries = by_rate[best, np.arange(len(targets))]
    return FixedRateQueries(
        queries, np.where(np.isinf(queries), np.nan, rates[best]), by_rate
    )


def _least_powers(kernel, law, heights, targets):
    """Least k with law kernel^k heights <= target, for every target."""
    found = np.where(law @ heights <= targets, 0.0, np.inf)
    powers = [kernel]
    for level in range(61):
        now = law @ (powers[-1] @ heights)
        for t in np.flatnonzero((now <= targets) & np.isinf(found)):
            here, count = law, 0
            for i in reversed(range(level)):
                ahead = here @ powers[i]
                if ahead @ heights > targets[t]:
                    here, count = ahead, count + 2**i
            found[t] = count + 1
        open_targets = targets[np.isinf(found)]
        if not np.any(np.min(powers[-1] @ heights) <= open_targets):
            break
        powers.append(square(powers[-1]))
    return found


class ScheduleQueries(NamedTuple):
    """What :func:`schedule_queries` returns; t counts targets and i runs.

    Attributes:
        queries: number of queries at the targets, between two runs by linear
            interpolation of its logarithm in that of :math:`E h`; inf where no run
            gets there, that of the shortest run where it does already.
        num_queries: number of queries of every run.
        expected: :math:`E h` after every run.
        law: masses of the law after every run.
    """

    queries: Float[np.ndarray, " t"]
    num_queries: Float[np.ndarray, " i"]
    expected: Float[np.ndarray, " i"]
    law: Float[np.ndarray, "i n"]


def schedule_queries(
    h: Callable[[Any], Any],
    h_grad: Callable[[Any], Any],
    grid: Grid,
    noise_std: float,
    p0: Float[np.ndarray, " n"],
    targets: Float[np.ndarray, " t"],
    rates: Float[np.ndarray, " m"],
    exponents: tuple[int, ...],
) -> ScheduleQueries:
    r"""Queries that a schedule of m stages needs, from runs with stages of :math:`2^i`.

    A run has :math:`N = m 2^i` queries. All runs share the squarings of a stage, and an
    even h on a symmetric grid is split into its even and odd half.

    Args:
        h: the function, >= 0: subtract its minimum.
        h_grad: its derivative.
        grid: increasing, uniform, with steps of at most ``rates * noise_std``.
        noise_std: :math:`\sigma > 0`.
        p0: masses of the first law.
        targets: values of :math:`E h`, > 0.
        rates: learning rates > 0 of the stages.
        exponents: the i of the runs, increasing.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> x = np.linspace(-4, 4, 161)
        >>> p0 = np.zeros(161)
        >>> p0[140] = 1.0
        >>> found = schedule_queries(
        ...     lambda x: x**2 / 2, lambda x: x, x, 1.0, p0,
        ...     np.array([0.05]), np.array([0.4, 0.1]), (2, 3, 4),
        ... )
        >>> found.num_queries, found.queries.round()
        (array([ 8., 16., 32.]), array([15.]))
    """
    points, step = check_grid(grid)
    p0 = check_law(p0, points)
    check_scalar("noise_std", noise_std)
    check_rates("rates", rates, noise_std, step)
    check_list("rates", rates)
    check_list("targets", targets)
    check_interval("targets", targets, 0.0, closed="()")
    exponents = tuple(exponents)
    for exponent in exponents:
        check_integer("exponents", exponent, 0)
    if not exponents or np.any(np.diff(exponents) <= 0):
        raise ValueError(f"exponents must be increasing, got {exponents}")
    slopes, heights = tabulate("h_grad", h_grad, points), tabulate("h", h, points)
    if np.min(heights) < 0:
        raise ValueError(f"h must be >= 0 on the grid, got {np.min(heights):g}")
    even = is_even(points, slopes, heights)
    laws = [[part] * len(exponents) for part in split(np.asarray(p0, np.float64), even)]
    for rate in rates:
        kernel = banded_kernel(points, slopes, rate, noise_std).toarray()
        powers = split(kernel, even)
        for level in range(exponents[-1] + 1):
            powers = _squares(powers) if level else powers
            if level in exponents:
                run = exponents.index(level)
                for part, power in zip(laws, powers, strict=True):
                    part[run] = part[run] @ power
    law = np.stack([join(list(parts), even) for parts in zip(*laws, strict=True)])
    expected = law @ heights
    num_queries = np.size(rates) * 2.0 ** np.asarray(exponents)
    queries = [_crossing(expected, num_queries, t) for t in targets]
    return ScheduleQueries(np.array(queries), num_queries, expected, law)


def _squares(powers):
    """The squares of a kernel, or of its even and its odd half."""
    first, *rest = powers
    first = square(first)
    if not rest:
        return [first]
    odd = rest[0] @ rest[0]
    # |P(x, y) - P(x, -y)| <= P(x, y) + P(x, -y): else rounding could grow without end.
    bound = first[-len(odd) :, -len(odd) :]
    return [first, np.clip(odd, -bound, bound)]


def _crossing(expected, num_queries, target):
    reached = np.flatnonzero(expected <= target)
    if not reached.size:
        return math.inf
    last = reached[0]
    if not last:
        return num_queries[0]
    share = np.log(expected[last - 1] / target) / np.log(
        expected[last - 1] / expected[last]
    )
    return num_queries[last - 1] * (num_queries[last] / num_queries[last - 1]) ** share
