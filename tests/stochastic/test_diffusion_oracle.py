"""The Langevin diffusion in one variable, against roots, dense matrices, known laws."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import scipy.optimize
import scipy.sparse.linalg

from jaxopt_suite.problems import rastrigin
from jaxopt_suite.stochastic import annealing_oracle, diffusion_oracle, landscape_1d
from jaxopt_suite.stochastic.diffusion_oracle import gibbs, langevin_generator


def waves(x):
    return x**2 + 1 - np.cos(2 * np.pi * x)


def waves_slope(x):
    return 2 * x + 2 * np.pi * np.sin(2 * np.pi * x)


def waves_bend(x):
    return 2 + 4 * np.pi**2 * np.cos(2 * np.pi * x)


GAP = diffusion_oracle.langevin_spectral_gap


# --- the landscape ------------------------------------------------------------------


def test_extrema_are_the_roots_of_the_derivative():
    found = landscape_1d(waves, -3.3, 3.3)
    signs = np.linspace(-3.3, 3.3, 5000)
    ends = np.flatnonzero(waves_slope(signs[:-1]) * waves_slope(signs[1:]) < 0)
    roots = np.array(
        [scipy.optimize.brentq(waves_slope, signs[i], signs[i + 1]) for i in ends]
    )
    minima = roots[waves_bend(roots) > 0]
    np.testing.assert_allclose(found.minima, minima, atol=1e-7)
    np.testing.assert_allclose(found.minimum_values, waves(minima), atol=1e-12)
    saddles = roots[waves_bend(roots) < 0]
    np.testing.assert_allclose(found.saddles, saddles, atol=1e-7)
    np.testing.assert_allclose(found.saddle_values, waves(saddles), atol=1e-12)


def test_the_reference_landscape_has_its_known_numbers():
    h = rastrigin(1, A=1.0).separable
    assert h is not None
    found = landscape_1d(h, -1.6, 1.6)
    np.testing.assert_allclose(found.minima, [-0.951051, 0, 0.951051], atol=5e-7)
    np.testing.assert_allclose(found.minimum_values, [0.951422, 0, 0.951422], atol=5e-7)
    np.testing.assert_allclose(found.saddles, [-0.526815, 0.526815], atol=5e-7)
    np.testing.assert_allclose(found.saddle_values, [2.263374] * 2, atol=5e-7)
    np.testing.assert_allclose(
        found.barriers, [1.311953, math.inf, 1.311953], atol=5e-7
    )
    customary = landscape_1d(rastrigin(1).separable, -1.6, 1.6)
    np.testing.assert_allclose(customary.barriers[0], 19.26, atol=5e-3)


def test_barriers_are_the_least_climbs_of_a_flood():
    def rough(x):
        bowl = x**2 / 16 * (1 + 10 * np.sin(np.pi * x / 4 + 1) ** 2)
        return bowl + 0.3 * np.sin(5 * x)

    found = landscape_1d(rough, -6.0, 6.0)
    x = np.linspace(-6, 6, 4001)
    heights = rough(x)
    assert len(found.minima) >= 5
    for place, value, barrier in zip(
        found.minima, found.minimum_values, found.barriers, strict=True
    ):
        start = np.argmin(abs(x - place))
        climbs = []
        for side in (heights[start:], heights[start::-1]):
            deeper = np.flatnonzero(side < value - 1e-4)
            if deeper.size:
                climbs.append(side[: deeper[0]].max() - value)
        np.testing.assert_allclose(barrier, min(climbs, default=math.inf), atol=1e-3)


def test_half_of_the_gibbs_measure_is_in_the_well_at_the_critical_temperature():
    found = landscape_1d(waves, -3.0, 3.0)
    T = found.critical_temperature
    edge = found.saddles[len(found.saddles) // 2]
    weight = lambda x: math.exp(-waves(x) / T)  # noqa: E731
    inside = scipy.integrate.quad(weight, -edge, edge)[0]
    whole = scipy.integrate.quad(weight, -3, 3, limit=200)[0]
    np.testing.assert_allclose(inside / whole, 0.5, atol=1e-3)
    # One well, and a well wider than the rest: at every temperature.
    assert landscape_1d(np.square, -1.0, 2.0).critical_temperature == math.inf
    tilted = landscape_1d(lambda x: (x**2 - 1) ** 2 + 0.5 * x, -2.0, 2.0)
    assert tilted.critical_temperature == math.inf


def test_a_function_with_one_minimum_has_no_saddle():
    found = landscape_1d(lambda x: (x - 0.3) ** 2, -1.0, 1.0)
    np.testing.assert_allclose(found.minima, [0.3], atol=1e-9)
    assert found.saddles.size == 0
    np.testing.assert_array_equal(found.barriers, [math.inf])


# --- the diffusion ------------------------------------------------------------------


def test_the_gibbs_measure_is_the_normal_law_of_a_parabola_and_rests():
    grid = np.linspace(-4, 6, 401)
    p = gibbs(lambda x: (x - 1) ** 2 / 2, 0.3, grid)
    np.testing.assert_allclose(p @ grid, 1.0, rtol=1e-9)
    np.testing.assert_allclose(p @ (grid - 1) ** 2, 0.3, rtol=1e-9)
    for T in (0.01, 0.5):
        p = gibbs(waves, T, grid)
        generator = langevin_generator(waves, T, grid)
        scale = abs(generator).max()
        np.testing.assert_allclose(generator.T @ p, 0.0, atol=1e-14 * scale)
        np.testing.assert_allclose(generator.sum(axis=1), 0.0, atol=1e-14 * scale)


def test_the_law_of_an_ornstein_uhlenbeck_process_relaxes_at_its_rate():
    grid, T, time = np.linspace(-6, 6, 301), 0.5, 0.7
    p = gibbs(lambda x: (x - 2) ** 2 / 2, 0.1, grid)
    generator = langevin_generator(lambda x: x**2 / 2, T, grid)
    p = scipy.sparse.linalg.expm_multiply(time * generator.T, p)
    np.testing.assert_allclose(p @ grid, 2 * math.exp(-time), rtol=1e-3)
    spread = T + (0.1 - T) * math.exp(-2 * time)
    np.testing.assert_allclose(p @ grid**2 - (p @ grid) ** 2, spread, rtol=1e-3)


@pytest.mark.parametrize("T", [0.3, 1.0])
def test_the_gap_is_the_second_eigenvalue_of_the_dense_generator(T):
    grid = np.linspace(-3, 3, 121)
    dense = langevin_generator(waves, T, grid).toarray()
    values = np.sort(-scipy.linalg.eigvals(dense).real)
    gap = GAP(waves, T, -3.0, 3.0, 121)
    np.testing.assert_allclose(gap, values[1], rtol=1e-8)
    # Without a barrier: that of the Ornstein-Uhlenbeck process.
    round_gap = GAP(lambda x: 1.7 * x**2 / 2, T, -8.0, 8.0, 2001)
    np.testing.assert_allclose(round_gap, 1.7, rtol=1e-3)


def test_the_gap_follows_the_barrier_as_eyring_and_kramers_say():
    temperatures = np.array([0.25, 0.2, 0.15, 0.12, 0.1])
    gaps = [GAP(waves, T, -6.0, 6.0) for T in temperatures]
    slope = np.polyfit(1 / temperatures, -np.log(gaps), 1)[0]
    assert 1.27 <= slope <= 1.34
    np.testing.assert_allclose(gaps[-1], 1.1842e-5, rtol=0.01)
    side, top = 0.951051, 0.526815
    speed = math.sqrt(waves_bend(side) * -waves_bend(top)) / (2 * math.pi)
    kramers = speed * math.exp(-(waves(top) - waves(side)) / 0.1)
    np.testing.assert_allclose(kramers, 1.2210e-5, rtol=1e-3)
    np.testing.assert_allclose(gaps[-1], kramers, rtol=0.05)


# --- SGD is the diffusion in the limit of small rates -------------------------------


@pytest.mark.slow
def test_the_distance_of_sgd_to_the_annealed_diffusion_is_of_first_order():
    temperatures = np.geomspace(0.6, 0.15, 8)

    def diffused(step):
        grid = np.linspace(-4.4, 4.4, round(8.8 / step) + 1)
        p = gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, grid)
        for T in temperatures:
            generator = langevin_generator(waves, T, grid)
            p = scipy.sparse.linalg.expm_multiply(generator.T, p)
        return grid, p

    grid, coarse = diffused(0.02)
    _, fine = diffused(0.01)
    # Densities at the common points, with the error of second order taken off.
    law = (4 * 2 * fine[::2] - coarse) / 3
    start = gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, grid)
    distances = {}
    for n in (50, 100, 200, 400):
        p = annealing_oracle.propagate_stages(
            waves_slope,
            grid,
            np.full(8, 1 / n),
            np.sqrt(2 * temperatures * n),
            start,
            n,
        )
        distances[n] = annealing_oracle.total_variation(p, law)
    np.testing.assert_allclose(
        list(distances.values()), [0.139, 0.0587, 0.0272, 0.0131], rtol=0.02
    )
    assert distances[200] < 0.035
    assert distances[400] < 0.018
    for n in (100, 200):
        assert 0.4 <= distances[2 * n] / distances[n] <= 0.6


# --- bad input ----------------------------------------------------------------------


SMALL = np.linspace(-1, 1, 11)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gibbs(waves, 0.0, SMALL), "T must be > 0, got 0"),
        (lambda: gibbs(waves, 1.0, SMALL[::-1]), "grid must be increasing"),
        (lambda: langevin_generator(waves, -1.0, SMALL), "T must be > 0, got -1"),
        (lambda: GAP(waves, 0.1, 2.0, 1.0), "hi must be > lo = 2.0, got 1.0"),
        (lambda: GAP(waves, 0.1, -1.0, 1.0, 2), "num must be an integer >= 3, got 2"),
        (lambda: GAP(waves, 0.04, -6.0, 6.0), "T must be higher.*got T=0.04"),
        (lambda: landscape_1d(waves, 0.0, 0.0), "hi must be > lo"),
        (lambda: landscape_1d(waves, 0.0, np.inf), "lo, hi must be finite"),
        (lambda: GAP(waves, 1e-3, -6.0, 6.0, 101), "T must be higher.*too small"),
        (lambda: gibbs(waves, np.ones(2), SMALL), "T must be a single number"),
        (lambda: landscape_1d(np.exp, 0.0, 1.0), "lo, hi must have a minimum"),
        (lambda: landscape_1d(jnp.sum, 0.0, 1.0), "h must act entry by entry"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def double_well(x):
    return (x**2 - 1) ** 2


@pytest.mark.parametrize(
    ("h", "low", "high", "critical"),
    [
        (double_well, -2.0, 2.0, 0.0),
        (double_well, -2.0, 2.1, 0.0),
        (
            lambda x: double_well(x) - 0.2 * np.exp(-50 * (x - 1) ** 2),
            -2.0,
            2.0,
            np.inf,
        ),
    ],
)
def test_ties_have_critical_temperature_0_and_wells_that_keep_half_have_inf(
    h, low, high, critical
):
    assert landscape_1d(h, low, high).critical_temperature == critical


@pytest.mark.parametrize(
    ("h", "low", "high", "ends"),
    [
        (waves, -120.0, 120.0, (-0.526815, 0.526815)),
        # Far out are no other minima, and the tilt is a thousandth of the barrier.
        (lambda x: double_well(x) + 1e-3 * x, -2.0, 2.5, (-2.0, 2.5e-4)),
    ],
)
def test_half_of_the_mass_is_in_the_well_at_the_critical_temperature(
    h, low, high, ends
):
    T = landscape_1d(h, low, high).critical_temperature
    x = np.linspace(max(low, -30), min(high, 30), 400_001)
    inside = (x > ends[0]) & (x < ends[1])
    weights = np.exp(-(h(x) - h(x).min()) / T)
    assert abs(weights[inside].sum() / weights.sum() - 0.5) <= 1e-3


def test_the_edge_of_a_shelf_is_no_minimum():
    # Down to 0, flat from -1 to 1, down to -1 at 2, and up again.
    places = np.array([-3.0, -1.0, 1.0, 2.0, 3.5])
    found = landscape_1d(lambda x: np.interp(x, places, [2, 0, 0, -1, 2]), -3.0, 3.5)
    np.testing.assert_allclose(found.minima, [2.0], atol=1e-4)
    assert found.saddles.size == 0
