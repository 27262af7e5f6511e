"""Helper mathematics of the step size decay experiment."""

import numpy as np
import pytest

from experiments.step_size_decay import control, quench
from experiments.step_size_decay.landscapes import LEVY, RASTRIGIN


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01])
def test_queries_of_a_fixed_rate_equal_those_of_the_recursion(rate):
    for target in (0.2, 0.06, 0.0026):
        moments = control.second_moments(np.full(2000, rate))
        reached = np.flatnonzero(moments / 2 <= target)
        expected = reached[0] if reached.size else np.inf
        assert control.fixed_rate_queries(np.array([rate]), target) == expected


@pytest.mark.parametrize("coordinate", [RASTRIGIN, LEVY])
def test_grids_are_symmetric_and_just_fine_enough(coordinate):
    for temperature in (0.6, 0.13, 0.08):
        grid = coordinate.coarsest_grid(temperature)
        finest = coordinate.rates(temperature) * coordinate.noise_std
        step = grid[1] - grid[0]
        assert step <= finest * (1 + 1e-9)
        assert step > finest * (1 - finest / coordinate.half_width)
        np.testing.assert_allclose(grid, -grid[::-1], atol=1e-12)
        law = coordinate.start(grid)
        mean = law @ grid
        assert mean == pytest.approx(coordinate.centre, abs=0.01)
        spread = np.sqrt(law @ (grid - mean) ** 2)
        assert spread == pytest.approx(coordinate.spread, rel=0.02)


def test_families_start_hot_end_cold_and_are_the_known_decay_where_geometric():
    found = quench.families(0.04)
    for name, temperatures in found.items():
        assert temperatures[0] == pytest.approx(0.6, rel=1e-6)
        assert temperatures.min() >= 0.04
        if name != "two cycles":
            assert temperatures[-1] == pytest.approx(0.04, rel=1e-5)
            assert np.all(np.diff(temperatures) <= 0)
    np.testing.assert_allclose(found["geometric"], np.geomspace(0.6, 0.04, 14), 1e-6)
