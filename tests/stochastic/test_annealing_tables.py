"""The exact tables of decay against every fixed rate, at full size."""

import jax
import numpy as np
import pytest

from jaxopt_suite.problems import levy_coordinate
from jaxopt_suite.stochastic import annealing_oracle as oracle
from jaxopt_suite.stochastic import schedules
from jaxopt_suite.stochastic.diffusion_oracle import gibbs


def waves(x):
    return x**2 + 1 - np.cos(2 * np.pi * x)


def waves_slope(x):
    return 2 * x + 2 * np.pi * np.sin(2 * np.pi * x)


STD = 10.0


def reference(step):
    grid = np.linspace(-4.4, 4.4, round(8.8 / step) + 1)
    return grid, gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, grid)


@pytest.mark.slow
def test_fixed_rates_of_the_reference_table():
    grid, p0 = reference(0.008)
    for T, target, known in (
        (0.25, 0.2, 30_663),
        (0.2, 0.15, 119_076),
        (0.16, 0.1, 991_582),
        (0.13, 0.08, 7_565_777),
    ):
        at = (np.array([target]), np.array([2 * T / STD**2]))
        found = oracle.fixed_rate_queries(waves, waves_slope, grid, STD, p0, *at)
        np.testing.assert_allclose(found.queries, [known], rtol=1e-5)
        if target == 0.1:
            grid2, p02 = reference(0.004)
            finer = oracle.fixed_rate_queries(waves, waves_slope, grid2, STD, p02, *at)
            np.testing.assert_allclose(finer.queries, found.queries, rtol=1e-3)


@pytest.mark.slow
def test_decay_of_the_reference_table_and_its_distance_to_the_gibbs_measure():
    grid, p0 = reference(0.008)
    targets = np.array([0.2, 0.15, 0.1, 0.08, 0.06, 0.05])
    rates = schedules.rate_for_temperature(np.geomspace(0.6, 0.04, 14), STD)
    found = oracle.schedule_queries(
        waves, waves_slope, grid, STD, p0, targets, rates, tuple(range(7, 16))
    )
    np.testing.assert_array_equal(found.num_queries, 14 * 2 ** np.arange(7, 16))
    known = [0.39634, 0.21720, 0.16275, 0.12878, 0.10115, 0.07935, 0.06268, 0.05035]
    np.testing.assert_allclose(found.expected, [*known, 0.04129], rtol=5e-3)
    known = [4.37e3, 9.13e3, 2.96e4, 5.60e4, 1.317e5, 2.35e5]
    np.testing.assert_allclose(found.queries, known, rtol=5e-3)
    cold = gibbs(waves, 0.04, grid)
    distances = [oracle.total_variation(law, cold) for law in found.law]
    assert distances[6] <= 0.055
    assert distances[8] <= 0.03
    slope = np.polyfit(np.log(found.num_queries[-5:]), np.log(distances[-5:]), 1)[0]
    assert -0.6 <= slope <= -0.35
    # The same number of queries, all at the last temperature.
    stuck = oracle.propagate_stages(
        waves_slope, grid, rates[-1:], STD, p0, int(found.num_queries[-1])
    )
    assert oracle.total_variation(stuck, cold) > 0.999


@pytest.mark.slow
def test_decay_gains_on_an_inner_coordinate_of_levy_too():
    grid = np.linspace(-6, 6, 601)
    p0 = gibbs(lambda x: (x - 2.7) ** 2 / 0.18, 1.0, grid)
    slope = jax.vmap(jax.grad(levy_coordinate))
    targets = np.array([0.15, 0.12, 0.1, 0.08])
    law = (levy_coordinate, slope, grid, 7.0, p0, targets)
    fixed = oracle.fixed_rate_queries(
        *law, schedules.rate_for_temperature(np.geomspace(0.3, 0.08, 16), 7.0)
    )
    known = [8_149, 20_424, 49_076, 206_303]
    np.testing.assert_allclose(fixed.queries, known, rtol=0.02)
    decay = oracle.schedule_queries(
        *law,
        schedules.rate_for_temperature(np.geomspace(0.4, 0.08, 10), 7.0),
        tuple(range(4, 16)),
    )
    ratio = fixed.queries / decay.queries
    assert np.all(ratio >= [1.3, 2.4, 4.5, 11.0])
    assert np.all(np.diff(ratio) > 0)
