"""Intervals against exact coverage, closed forms and a plain resampling."""

import numpy as np
import pytest
from scipy import stats

from experiments.statistics import (
    bootstrap_interval,
    proportion_interval,
    quantile_interval,
    ratio_of_quantiles,
)


@pytest.mark.parametrize(("size", "q"), [(16, 0.5), (64, 0.5), (64, 0.9), (128, 0.95)])
def test_order_statistics_cover_as_the_binomial_law_says(size, q):
    # With the data 1..n an end is its own rank, and #{X <= quantile} ~ Bin(n, q).
    low, high, method = quantile_interval(np.arange(1.0, size + 1), q)
    ranks = stats.binom(size, q)
    below, above = ranks.cdf(low - 1), ranks.sf(high - 1)
    assert below <= 0.025
    assert above <= 0.025
    # The next order statistic inwards would miss too often.
    assert ranks.cdf(low) > 0.025
    assert ranks.sf(high - 2) > 0.025
    assert f"{size} seeds" in method


def test_an_end_that_so_few_seeds_cannot_bound_is_infinite():
    low, high, _ = quantile_interval(np.arange(16.0), 0.95)
    assert np.isfinite(low)
    assert high == np.inf
    diverged = quantile_interval([*np.arange(40.0), np.inf], 0.5)
    assert np.isfinite(diverged[:2]).all()
    assert np.isnan(quantile_interval([1.0, np.nan, 2.0])[:2]).all()


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (7, 10), (198, 200)])
def test_proportions_have_wilsons_interval(successes, trials):
    z, p = stats.norm.ppf(0.975), successes / trials
    centre = (p + z**2 / (2 * trials)) / (1 + z**2 / trials)
    spread = np.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    half = z * spread / (1 + z**2 / trials)
    expected = [max(centre - half, 0.0), min(centre + half, 1.0)]
    found = proportion_interval(successes, trials)
    np.testing.assert_allclose(found[:2], expected, atol=1e-12)


@pytest.mark.parametrize("method", ["BCa", "percentile"])
def test_the_bootstrap_covers_the_mean_about_as_often_as_it_says(method):
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        low, high, _ = bootstrap_interval(rng.exponential(size=40), method=method)
        covered += low <= 1.0 <= high
    # True coverage is about 0.93 here; outside these bounds with probability 1e-5.
    assert 168 <= covered <= 199


def test_strata_are_resampled_each_by_itself():
    rng = np.random.default_rng(2)
    strata = [rng.normal(0, 1e-3, 10), rng.normal(1, 1e-3, 30)]

    def pooled_mean(low, high, axis=-1):
        return np.concatenate([low, high], axis).mean(axis)

    low, high, method = bootstrap_interval(strata, pooled_mean, strata="class")
    # Resampling the pool would move the shares: a spread of 0.07, not 2e-4.
    assert high - low < 1e-3
    assert low < 0.75 < high
    assert method == "95% BCa bootstrap over seeds, stratified by class (10 + 30)"


def test_the_ratio_of_quantiles_agrees_with_a_plain_resampling():
    rng = np.random.default_rng(3)
    above, below = np.exp(rng.normal(2, 1, 64)), np.exp(rng.normal(0, 1, 50))
    ratio, (low, high, _) = ratio_of_quantiles(above, below, 0.8)
    assert ratio == np.quantile(above, 0.8) / np.quantile(below, 0.8)

    def resampled(x):
        rows = x[rng.integers(0, len(x), (20_000, len(x)))]
        return np.quantile(rows, 0.8, axis=1)

    expected = np.quantile(resampled(above) / resampled(below), [0.025, 0.975])
    # An end of 4,999 resamples has a standard error of about 2% here.
    np.testing.assert_allclose([low, high], expected, rtol=0.1)


def test_pairing_draws_the_same_seeds_in_both():
    samples = np.exp(np.random.default_rng(4).normal(size=32))
    _, paired = ratio_of_quantiles(2 * samples, samples, 0.5, paired=True)
    _, alone = ratio_of_quantiles(2 * samples, samples, 0.5)
    np.testing.assert_allclose(paired[:2], 2.0, rtol=1e-12)
    assert alone.high - alone.low > 0.5
    assert "paired by method" in paired.method


def test_the_same_data_give_the_same_interval_and_odd_data_say_so():
    samples = np.random.default_rng(5).normal(size=20)
    assert bootstrap_interval(samples) == bootstrap_interval(samples)
    assert bootstrap_interval(np.ones(5))[:2] == (1.0, 1.0)
    low, high, method = bootstrap_interval([1.0, 2.0, np.inf])
    assert np.isnan([low, high]).all()
    assert method.endswith("not all are finite")
    ratio, interval = ratio_of_quantiles([1.0, np.inf, np.inf], [1.0, 1.0, 2.0], 0.9)
    assert np.isnan([ratio, *interval[:2]]).all()
    constant = bootstrap_interval([1.0] * 9 + [2.0], lambda x, axis: x.min(axis))
    assert constant.method.endswith("hardly varies")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bootstrap_interval([1.0]), r"at least two repetitions.*\(1,\)"),
        (lambda: bootstrap_interval(np.ones((2, 2))), r"along one axis.*\(2, 2\)"),
        (lambda: bootstrap_interval([1, 2], method="t"), r"BCa or percentile, got 't'"),
        (lambda: quantile_interval([]), r"at least two repetitions"),
    ],
)
def test_bad_samples_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
