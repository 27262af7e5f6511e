"""Confidence intervals over seeds, each with the sentence that says how it was made."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.claims import Interval

# Resamples of a bootstrap, and the seed of their generator: the same data give the same
# interval.
NUM_RESAMPLES = 4_999
RESAMPLING_SEED = 0


def bootstrap_interval(
    samples: Any,
    statistic: Callable[..., Any] = np.mean,
    *,
    strata: str | None = None,
    paired: bool = False,
    method: str = "BCa",
    confidence: float = 0.95,
) -> Interval:
    """Bootstrap interval of a statistic of repetitions, by resampling seeds.

    With strata every array is resampled by itself, at its own size, so that each keeps
    its share; ``statistic`` then takes one argument a stratum. With ``paired`` the
    strata are different measurements of the same seeds, which are drawn together.

    Args:
        samples: one array of shape ``(seeds,)``; with ``strata`` or ``paired`` a
            sequence of such arrays.
        statistic: of one or more arrays; where it takes ``axis=`` it is vectorized.
        strata: what the arrays stand for ("class", "method"), for the reader.
        paired: whether position i is the same seed in every array.
        method: ``"BCa"`` (bias corrected and accelerated; for smooth statistics) or
            ``"percentile"`` (for quantiles, where the acceleration means nothing).
        confidence: the coverage aimed at, in (0, 1).

    Returns:
        The interval; both ends NaN where a value is NaN or infinite.

    Raises:
        ValueError: fewer than two repetitions in an array, or ``method`` is unknown.

    Example:
        >>> bootstrap_interval(np.arange(20.0)).method
        '95% BCa bootstrap over 20 seeds'
    """
    if method not in ("BCa", "percentile"):
        raise ValueError(f"method must be BCa or percentile, got {method!r}")
    several = strata is not None or paired
    arrays = _arrays(samples if several else [samples])
    sizes = [len(array) for array in arrays]
    about = f"{sizes[0]} seeds" if paired or not several else "seeds"
    if strata is not None:
        shares = "" if paired else f" ({' + '.join(map(str, sizes))})"
        about += f", {'paired' if paired else 'stratified'} by {strata}{shares}"
    described = f"{confidence:.0%} {method} bootstrap over {about}"
    if not all(np.isfinite(array).all() for array in arrays):
        return Interval(np.nan, np.nan, f"{described}: not all are finite")
    if all(np.ptp(array) == 0 for array in arrays):
        value = float(statistic(*arrays))
        return Interval(value, value, f"{described}: all are equal")
    from scipy import stats

    # A statistic that hardly varies has no acceleration: NaN, which is said below.
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            arrays,
            statistic,
            paired=paired,
            method=method,
            confidence_level=confidence,
            n_resamples=NUM_RESAMPLES,
            batch=max(1, 2_000_000 // sum(sizes)),
            rng=np.random.default_rng(RESAMPLING_SEED),
        ).confidence_interval
    if np.isnan(found).any():
        described += ": undefined, the statistic hardly varies"
    return Interval(float(found.low), float(found.high), described)


def quantile_interval(
    samples: Any, quantile: float = 0.5, *, confidence: float = 0.95
) -> Interval:
    """Exact interval of a quantile, between two order statistics.

    The number of samples below the quantile is binomial whatever the law, so the
    coverage is at least ``confidence`` for every continuous law. Infinite samples are
    in order. An end that so few samples cannot bound is infinite.

    Args:
        samples: shape ``(seeds,)``.
        quantile: in (0, 1).
        confidence: least coverage, in (0, 1).

    Raises:
        ValueError: fewer than two samples.

    Example:
        >>> quantile_interval(np.arange(1.0, 65.0))[:2]
        (24.0, 41.0)
    """
    (array,) = _arrays([samples])
    described = f"{confidence:.0%} order statistics of {len(array)} seeds (binomial)"
    if np.isnan(array).any():
        return Interval(np.nan, np.nan, f"{described}: some are NaN")
    from scipy import stats

    found = stats.quantile_test(array, p=quantile).confidence_interval(confidence)
    low = -np.inf if np.isnan(found.low) else float(found.low)
    high = np.inf if np.isnan(found.high) else float(found.high)
    return Interval(low, high, described)


def proportion_interval(
    successes: int, trials: int, *, confidence: float = 0.95
) -> Interval:
    """Wilson's score interval of a proportion.

    Args:
        successes: how many of ``trials``.
        trials: at least 1.
        confidence: the coverage aimed at, in (0, 1).

    Raises:
        ValueError: ``successes`` is not in ``[0, trials]``, or there is no trial.
    """
    from scipy import stats

    test = stats.binomtest(int(successes), int(trials))
    found = test.proportion_ci(confidence, method="wilson")
    described = f"{confidence:.0%} Wilson over {trials} trials"
    return Interval(float(found.low), float(found.high), described)


def ratio_of_quantiles(
    numerator: Any,
    denominator: Any,
    quantile: float,
    *,
    paired: bool = False,
    confidence: float = 0.95,
) -> tuple[float, Interval]:
    """The ratio of the same quantile of two methods, and its bootstrap interval.

    Args:
        numerator: shape ``(seeds,)``.
        denominator: shape ``(seeds,)``, positive values.
        quantile: in [0, 1].
        paired: whether position i is the same seed in both, so that seeds are drawn
            together; otherwise each method is a stratum.
        confidence: the coverage aimed at, in (0, 1).

    Returns:
        The ratio, and a percentile bootstrap interval.

    Example:
        >>> ratio, interval = ratio_of_quantiles(4.0 * np.ones(9), np.ones(9), 0.95)
        >>> ratio, interval[:2]
        (4.0, (4.0, 4.0))
    """

    def ratio(above, below, axis: Any = -1):
        # Differences of infinite samples: the ratio is NaN then, which is no news.
        with np.errstate(invalid="ignore"):
            return np.divide(*(np.quantile(x, quantile, axis) for x in (above, below)))

    arrays = _arrays([numerator, denominator])
    interval = bootstrap_interval(
        arrays,
        ratio,
        strata="method",
        paired=paired,
        method="percentile",
        confidence=confidence,
    )
    return float(ratio(*arrays)), interval


def _arrays(samples: Sequence[Any]) -> tuple[np.ndarray, ...]:
    arrays = tuple(np.asarray(array, np.float64) for array in samples)
    for array in arrays:
        if array.ndim != 1 or len(array) < 2:
            raise ValueError(
                "samples must hold at least two repetitions along one axis, got shape "
                f"{array.shape}"
            )
    return arrays
