"""The figures of merit of the races between fixed rates and decays."""

import numpy as np

from experiments.step_size_decay.races import (
    best_point,
    fixed_rows,
    ratio_of_best,
    schedule_rows,
)
from jaxopt_suite.stochastic import schedules


def test_rows_hold_the_rate_of_every_step():
    rows = schedule_rows(lambda r: schedules.geometric(r, 0.25 * r, 2), [1.0, 4.0], 4)
    np.testing.assert_allclose(rows, [[1, 0.5, 0.25, 0.25], [4, 2, 1, 1]], rtol=1e-6)
    np.testing.assert_array_equal(fixed_rows([1.0, 2.0], 2), [[1, 1], [2, 2]])


def test_a_point_that_diverged_is_never_the_best():
    finals = np.array([[5.0, 7.0], [np.nan, 0.0], [np.inf, 0.0], [4.0, 6.0]])
    assert best_point(finals) == 3


def test_the_ratio_is_of_the_least_means_and_its_interval_draws_seeds_together():
    generator = np.random.default_rng(0)
    seeds = generator.exponential(size=64)
    below = np.stack([3 * seeds, 2 * seeds, np.full(64, np.nan)])
    ratio, interval = ratio_of_best(np.stack([seeds, 9 * seeds]), below)
    # Proportional on every seed: no draw of them changes it.
    np.testing.assert_allclose([ratio, *interval[:2]], 0.5)
