"""The scaling fits: their settings, slopes, spreads, and what makes a point."""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from experiments.claims import Interval
from experiments.dars_dbco.config import Config
from experiments.dars_dbco.runs import Case, equal_starts

TOLERANCE, WIDE = 0.04, 0.05
Options = dict[str, Any]


class Point(NamedTuple):
    """One point of a fit: its position, the run, and the delay."""

    x: float
    case: Case
    delay: int = 0


class Fit(NamedTuple):
    """One log-log fit.

    Attributes:
        name: number of the row, with a letter where a row has several.
        what: the sentence of its claim.
        variable: the letter along the x axis.
        points: its points; empty where they are no runs of DARS.
        slope: the predicted slope.
        y: "regret", "minus bias", "price" or "per log".
        seeds: seeds of a point.
        tolerance: distance of the measured slope that bears the claim out.
    """

    name: str
    what: str
    variable: str
    points: tuple[Point, ...]
    slope: float
    y: str = "regret"
    seeds: int = 8
    tolerance: float = TOLERANCE

    @property
    def row(self) -> int:
        """Number of the row."""
        return int(self.name.rstrip("ab"))


def fits(config: Config) -> list[Fit]:
    """The fits over runs of DARS that ``config`` asks for."""
    found = [*_convex(config), *_strong(config)]
    return [fit for fit in found if fit.row in config.rows]


def _by_segments(horizon, counts, delay=0, **options):
    return tuple(
        Point(m, Case(horizon, equal_starts(horizon, m), **options), delay)
        for m in counts
    )


def _convex(config):
    scale, few = 2**config.log2_scale, Options(k_scale=0.02)
    seeds = config.num_seeds
    long, less = 2**20 * scale, max(2, seeds // 4)
    half, delay = 2**19 * scale, 2**13 * scale
    over_t = tuple(Point(t, Case(t)) for t in config.horizons)
    yield Fit("1", "convex, no delay: regret over T", "T", over_t, 3 / 4, seeds=seeds)
    over_n = tuple(Point(n, Case(long, n=n)) for n in config.dimensions)
    yield Fit("2", "convex: regret over n", "n", over_n, 1 / 2, seeds=less)
    over_m = _by_segments(half, config.segments)
    yield Fit(
        "3", "convex: regret over m", "m", over_m, 1 / 4, seeds=max(2, seeds // 2)
    )
    over_d = tuple(
        Point(delay * 2**k, Case(long, **few), delay * 2**k) for k in range(5)
    )
    part = Options(y="minus bias", seeds=seeds)
    yield Fit("4", "convex: price over d", "d", over_d, 1 / 2, **part)
    over_m = _by_segments(long, config.segments[:4], delay, **few)
    yield Fit("5", "convex, long delays: price over m", "m", over_m, 1 / 2, **part)
    horizons = [2**k * scale for k in range(17, 22)]
    over_t = tuple(Point(t, Case(t, **few), delay) for t in horizons)
    yield Fit("6", "convex, long delays: price over T", "T", over_t, 1 / 2, **part)
    for letter, late in zip("ab", (2**15 * scale, 2**16 * scale), strict=True):
        over_n = tuple(Point(n, Case(long, n=n, **few), late) for n in (2, 4, 8))
        yield Fit(
            f"15{letter}",
            f"convex, delay 2^{late.bit_length() - 1}: price over n",
            "n",
            over_n,
            0.0,
            "minus bias",
            max(2, 3 * seeds // 4),
            WIDE,
        )


def _strong(config):
    scale, strong = 2**config.log2_scale, Options(strong=True)
    seeds, delay = config.num_seeds, 2**13 * scale
    long, half = 2**20 * scale, 2**19 * scale
    over_t = tuple(Point(t, Case(t, **strong)) for t in config.horizons)
    part = Options(y="per log")
    yield Fit(
        "7",
        "strong, no delay: regret over T",
        "T",
        over_t,
        2 / 3,
        seeds=2 * seeds,
        **part,
    )
    over_n = tuple(Point(n, Case(long, n=n, **strong)) for n in config.dimensions)
    less = max(2, seeds // 4)
    yield Fit("8", "strong: regret over n", "n", over_n, 2 / 3, seeds=less, **part)
    over_m = _by_segments(half, config.segments, **strong)
    yield Fit("9", "strong: regret over m", "m", over_m, 1 / 3, seeds=seeds, **part)
    late = [delay // 2 * 2**k for k in range(5)]
    over_d = tuple(Point(d, Case(long, **strong), d) for d in late)
    yield Fit("10", "strong: price over d", "d", over_d, 1.0, "price", seeds, WIDE)
    counts = np.asarray(config.segments[:4], float)
    yield Fit(
        "11",
        "strong, long delays: price over m",
        "m",
        _by_segments(long, config.segments[:4], delay, **strong),
        # The guarantee is m log(eT/m), whose own slope over so few m is not 1.
        slope(counts, counts * np.log(np.e * long / counts)),
        "price",
        # One segment's price is noisy: fewer seeds could not tell 0.04 apart.
        4 * seeds,
    )


def lower_bound_fits(config: Config) -> list[Fit]:
    """The fits over lower-bound problems, whose points are computed elsewhere."""
    walks = "any policy on random blocks: regret over"
    first = "strong, first d rounds of all segments: regret over"
    found = [
        Fit("12", f"{walks} d", "d", (), 1 / 2),
        Fit("13", f"{walks} m", "m", (), 1 / 2),
        Fit("14a", f"{first} d", "d", (), 1.0),
        Fit("14b", f"{first} m", "m", (), 1.0),
    ]
    return [fit for fit in found if fit.row in config.rows]


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Slope of the least-squares line through ``(log x, log y)``.

    Example:
        >>> round(slope(np.array([1.0, 2.0, 4.0]), np.array([3.0, 6.0, 12.0])), 6)
        1.0
    """
    return float(_weights(x) @ np.log(y))


def _weights(x: np.ndarray) -> np.ndarray:
    """The slope as a linear function of ``log y``."""
    centred = np.log(x) - np.mean(np.log(x))
    return centred / np.sum(centred**2)


def slope_with_spread(x: np.ndarray, samples: np.ndarray) -> tuple[float, Interval]:
    """Slope of the mean of ``samples``, (points, seeds), and its 95% interval.

    The slope is linearized in the samples, so that points that share seeds may be
    correlated. A mean that is not positive has no logarithm: the slope is NaN then.
    """
    method = f"95% t over {samples.shape[1]} seeds, linearized"
    means = samples.mean(axis=1)
    if not np.all(means > 0):
        return np.nan, Interval(np.nan, np.nan, f"{method}: a mean is not positive")
    found = slope(x, means)
    per_seed = _weights(x) @ (samples / means[:, None])
    degrees = samples.shape[1] - 1
    reach = stats.t.ppf(0.975, degrees) * per_seed.std(ddof=1) / np.sqrt(degrees + 1)
    return found, Interval(found - float(reach), found + float(reach), method)
