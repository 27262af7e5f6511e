"""The helper mathematics of the experiment on delayed bandit convex optimization."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.dars_dbco import benchmarks, explicit_bound, fits, restarts
from experiments.dars_dbco.config import SCALES
from experiments.dars_dbco.runs import Case, equal_starts, play, switching_losses
from jaxopt_suite.problems.bco_losses import norm_segments, strong_segments


def test_the_slope_is_that_of_least_squares_in_logarithms():
    x, y = np.array([1.0, 2.0, 4.0, 8.0, 16.0]), np.array([3.0, 3.5, 7.0, 9.0, 11.0])
    expected = np.polyfit(np.log(x), np.log(y), 1)[0]
    np.testing.assert_allclose(fits.slope(x, y), expected, rtol=1e-12)


def test_the_spread_of_the_slope_covers_it():
    """400 intervals of 95%: a share below 0.9 or above 0.99 has chance < 2e-5."""
    rng, x, hits = np.random.default_rng(0), 2.0 ** np.arange(5), 0
    for _ in range(400):
        shared = rng.normal(0, 0.05, 8)  # seeds that points have in common
        noise = rng.normal(0, 0.05, (5, 8))
        samples = x[:, None] ** 0.5 * (1 + noise + shared)
        _, interval = fits.slope_with_spread(x, samples)
        hits += interval.low <= 0.5 <= interval.high
    assert 0.9 <= hits / 400 <= 0.99


def test_a_mean_without_a_logarithm_has_no_slope():
    found, interval = fits.slope_with_spread(
        np.array([1.0, 2.0]), np.array([[1.0, 2.0], [-1.0, -2.0]])
    )
    assert np.isnan(found)
    assert np.isnan(interval.low)


@pytest.mark.parametrize("strong", [False, True])
def test_switching_losses_are_the_segments_of_the_library(strong):
    ours = switching_losses(3, strong, 4)
    theirs = (strong_segments if strong else norm_segments)(16, 3, 4)
    rounds = jnp.arange(16)
    points = jax.random.normal(jax.random.key(0), (16, 3))
    for function in (
        lambda s: jax.vmap(s.value)(points, rounds),
        lambda s: jax.vmap(s.minimizer)(rounds),
        lambda s: jax.vmap(s.min_value)(rounds),
    ):
        np.testing.assert_array_equal(function(ours), function(theirs))


def test_a_long_run_begins_with_the_shorter_one():
    """What lets one run stand for every number of segments."""
    keys = jax.random.split(jax.random.key(0), 2)
    long = play(Case(2048, equal_starts(2048, 4)), keys, delays=(16,), checkpoints=4)
    short = play(Case(1024, equal_starts(1024, 2)), keys, delays=(16,), checkpoints=2)
    np.testing.assert_allclose(long[:, 0, :2], short[:, 0], rtol=1e-6)


def test_the_explicit_bound_of_one_segment_by_hand():
    run = Case(4096, k_scale=1.0, true_constants=True)
    schedule = run.schedule(64)
    expected = 3 * schedule.delta[0] * 4096
    expected += 2 * np.sqrt(4096 * (1.5 * schedule.K[0] + 64))
    np.testing.assert_allclose(explicit_bound.explicit_bound(run, 64), expected)


def test_every_fit_but_those_of_lower_bounds_has_points():
    config = SCALES["default"]
    with_points = fits.fits(config)
    assert all(len(fit.points) >= 3 for fit in with_points)
    rows = {fit.row for fit in with_points + fits.lower_bound_fits(config)}
    assert rows == set(range(1, 16))
    eleven = next(fit for fit in with_points if fit.name == "11")
    assert eleven.slope == pytest.approx(0.927, abs=1e-3)


def test_late_restarts_are_late_but_for_the_first():
    starts = restarts.schedules(SCALES["smoke"])["5% of L late"]
    assert starts[:2] == (0, 4096 + 205)


def test_theory_tunings_at_the_benchmark_of_record():
    delta, eta = benchmarks.theory_tuning(2**17, 2, 64)
    assert delta == pytest.approx(2**0.5 * 2**-4.25)
    assert eta == pytest.approx((2**17 * (4 / delta**2 + 128)) ** -0.5)
