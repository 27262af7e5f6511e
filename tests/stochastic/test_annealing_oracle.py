"""The law of SGD on a grid, against quadrature, recursions, simulation, brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxopt_suite.problems import rastrigin
from jaxopt_suite.stochastic import annealing_oracle as oracle
from jaxopt_suite.stochastic import schedules
from jaxopt_suite.stochastic.diffusion_oracle import gibbs


def waves(x):
    return x**2 + 1 - np.cos(2 * np.pi * x)


def waves_slope(x):
    return 2 * x + 2 * np.pi * np.sin(2 * np.pi * x)


def waves_slope_jax(x):
    return 2 * x + 2 * jnp.pi * jnp.sin(2 * jnp.pi * x)


def tilted(x):
    return waves(x) + 0.3 * x + 0.1


def tilted_slope(x):
    return waves_slope(x) + 0.3


GRID = np.linspace(-4.4, 4.4, 177)
START = gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, GRID)


def kernel_by_hand(slope, grid, lr, std):
    logs = -0.5 * ((grid - (grid - lr * slope(grid))[:, None]) / (lr * std)) ** 2
    rows = np.exp(logs - logs.max(axis=1, keepdims=True))
    return rows / rows.sum(axis=1, keepdims=True)


# --- the kernel and the law ---------------------------------------------------------


@pytest.mark.parametrize("lr", [0.006, 0.012, 0.5])
def test_the_kernel_is_the_row_normalized_gaussian(lr):
    # The steps of the last rate lead far outside the grid and stop at its ends.
    found = oracle.transition_matrix(waves_slope, GRID, lr, 10.0)
    np.testing.assert_allclose(
        found, kernel_by_hand(waves_slope, GRID, lr, 10.0), rtol=1e-9, atol=1e-21
    )
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)


def test_a_jax_derivative_is_taken_in_float64_whatever_the_default():
    h = rastrigin(1, A=1.0).separable
    assert h is not None
    np.testing.assert_allclose(
        oracle.transition_matrix(jax.vmap(jax.grad(h)), GRID, 0.006, 10.0),
        oracle.transition_matrix(waves_slope, GRID, 0.006, 10.0),
        atol=1e-13,
    )
    gaps = oracle.expected_value(START, h, GRID) - START @ waves(GRID)
    assert abs(gaps) <= 1e-12


def test_three_steps_equal_nested_gauss_hermite_quadrature():
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    places, masses = np.array([1.0]), np.array([1.0])
    for lr in (0.008, 0.006, 0.005):
        moved = places - lr * waves_slope(places)
        places = (moved[:, None] + lr * 10.0 * nodes).ravel()
        masses = (masses[:, None] * weights).ravel()
    expected = masses @ waves(places)
    grid = np.linspace(-2, 4, 151)
    point = np.where(np.isclose(grid, 1.0), 1.0, 0.0)
    rates = jnp.array([0.008, 0.006, 0.005])
    found = oracle.propagate(waves_slope, grid, lambda k: rates[k], 10.0, point, 3)
    # The quadrature of the grid, exp(-2 pi^2 (std / step)^2) at the coldest step.
    assert abs(oracle.expected_value(found, waves, grid) - expected) <= 1e-8


def test_moments_on_a_quadratic_obey_their_recursion_in_numpy_and_in_jax():
    grid, curvature, std, steps = np.linspace(-6, 6, 241), 1.3, 2.0, 40
    schedule = schedules.polynomial(0.5, 10.0, 1.0)
    mean, square = 2.0, 4.0
    for k in range(steps):
        lr = 0.5 / (1 + k / 10)
        mean = (1 - lr * curvature) * mean
        square = (1 - lr * curvature) ** 2 * square + lr**2 * std**2
    point = np.where(np.isclose(grid, 2.0), 1.0, 0.0)
    slope = lambda x: curvature * x  # noqa: E731
    with jax.enable_x64(True):
        for p0 in (point, jnp.asarray(point)):
            p = oracle.propagate(slope, grid, schedule, std, p0, steps)
            assert isinstance(p, np.ndarray) == isinstance(p0, np.ndarray)
            np.testing.assert_allclose(p @ grid, mean, atol=1e-9)
            np.testing.assert_allclose(p @ grid**2, square, rtol=1e-7)
    narrow = oracle.propagate(
        slope, grid, schedule, std, jnp.asarray(point, jnp.float32), steps
    )
    assert narrow.dtype == jnp.float32
    np.testing.assert_allclose(narrow @ grid.astype(np.float32) ** 2, square, rtol=1e-4)


def test_a_simulation_has_the_mean_and_the_share_in_the_well_of_the_law():
    rng = np.random.default_rng(0)
    x = 3 + 0.5 * rng.standard_normal(100_000)
    p, std = START, 10.0
    np.testing.assert_array_equal(
        oracle.propagate(waves_slope, GRID, 1.0, std, p, 0), p
    )
    for lr in (0.012, 0.008):
        for _ in range(40):
            x = x - lr * (waves_slope(x) + std * rng.standard_normal(x.shape))
        p = oracle.propagate(waves_slope, GRID, lr, std, p, 40)
        # 5.5 standard errors, four times: a false alarm in 1e7 seeds.
        error = np.std(waves(x)) / np.sqrt(x.size)
        assert (
            abs(waves(x).mean() - oracle.expected_value(p, waves, GRID)) < 5.5 * error
        )
        share = oracle.well_mass(p, GRID, (-0.5, 0.5))
        error = np.sqrt(share * (1 - share) / x.size)
        assert abs(np.mean(np.abs(x) < 0.5) - share) < 5.5 * error + 2e-4


@pytest.mark.parametrize("length", [3, 1000])
def test_stages_equal_matrix_powers_the_staircase_and_jax(length):
    # The longer stage is squared, the shorter one done step by step.
    rates = np.array([0.012, 0.006])
    powers = [
        np.linalg.matrix_power(kernel_by_hand(tilted_slope, GRID, lr, 10.0), length)
        for lr in rates
    ]
    expected = START @ powers[0] @ powers[1]
    found = oracle.propagate_stages(tilted_slope, GRID, rates, 10.0, START, length)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    table = jnp.asarray(rates)
    staircase = lambda k: table[k // length]  # noqa: E731
    with jax.enable_x64(True):
        table = jnp.asarray(rates)
        found = oracle.propagate(tilted_slope, GRID, staircase, 10.0, START, 2 * length)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        slope = lambda x: 2 * x + 2 * jnp.pi * jnp.sin(2 * jnp.pi * x) + 0.3  # noqa: E731
        found = oracle.propagate_stages(
            slope, GRID, rates, 10.0, jnp.asarray(START), length
        )
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("stages", [False, True])
def test_gradients_through_the_law_are_those_of_finite_differences(stages):
    slope = lambda x: 2 * x + 2 * jnp.pi * jnp.sin(2 * jnp.pi * x)  # noqa: E731
    h = lambda x: x**2 + 1 - jnp.cos(2 * jnp.pi * x)  # noqa: E731
    grid, traces = np.linspace(-2.2, 2.2, 89), 0
    start = gibbs(lambda x: (x - 1) ** 2, 0.1, grid)

    def expected(lr, std, p0):
        if stages:
            rates = lr * jnp.array([1.0, 0.9])
            p = oracle.propagate_stages(slope, grid, rates, std, p0, 5)
        else:
            p = oracle.propagate(slope, grid, lambda k: lr / (1 + k), std, p0, 2)
        return oracle.expected_value(p, h, grid)

    @jax.jit
    @jax.grad
    def gradient(at):
        nonlocal traces
        traces += 1
        return expected(*at, jnp.asarray(start))

    with jax.enable_x64(True):
        at, steps = np.array([0.012, 10.0]), np.diag([1e-6, 1e-4])
        differences = [
            (expected(*(at + step), start) - expected(*(at - step), start))
            / (2 * step.sum())
            for step in steps
        ]
        np.testing.assert_allclose(gradient(at), differences, rtol=1e-6)
        gradient(at * 1.1)
        assert traces == 1


def test_masses_and_distances_of_normal_laws():
    grid = np.linspace(-6, 6, 601)
    law = scipy.stats.norm.pdf(grid) * 0.02
    mass = oracle.well_mass(law, grid, (-0.503, 1.207))
    expected = scipy.stats.norm.cdf(1.207) - scipy.stats.norm.cdf(-0.503)
    # Per end, step^2 (1/8 + 1/12) of the slope of the density, 0.24 at most.
    assert abs(mass - expected) <= 4e-5
    shifted = scipy.stats.norm.pdf(grid - 1) * 0.02
    # Two unit normals one apart: 2 Phi(1/2) - 1.
    distance = oracle.total_variation(law, shifted)
    assert abs(distance - (2 * scipy.stats.norm.cdf(0.5) - 1)) <= 1e-4


# --- queries ------------------------------------------------------------------------


@pytest.mark.parametrize("h", [waves, tilted])
def test_least_queries_equal_those_of_stepping(h):
    # Folded where even; the targets: reached at once, later, by one rate, by none.
    slope = waves_slope if h is waves else tilted_slope
    targets, rates = np.array([20.0, 2.0, 1.0, 0.01]), np.array([0.008, 0.03, 0.02])
    found = oracle.fixed_rate_queries(h, slope, GRID, 10.0, START, targets, rates)
    expected = np.full((3, 4), np.inf)
    for i, lr in enumerate(rates):
        kernel, p = kernel_by_hand(slope, GRID, lr, 10.0), START
        for k in range(600):
            for j in np.flatnonzero(np.isinf(expected[i]) & (p @ h(GRID) <= targets)):
                expected[i, j] = k
            p = p @ kernel
    assert np.isfinite(expected).sum(axis=0)[0] == 3
    assert np.isinf(expected[:, 3]).all()
    assert np.isfinite(expected[:, 2]).any()
    # The coldest rate gets to 1 too, but after the stepping has stopped.
    stepped = np.where(
        np.isinf(expected) & (found.by_rate >= 600), found.by_rate, expected
    )
    np.testing.assert_array_equal(found.by_rate, stepped)
    np.testing.assert_array_equal(found.queries, found.by_rate.min(axis=0))
    best = rates[found.by_rate.argmin(axis=0)]
    np.testing.assert_array_equal(found.best_rate, [*best[:3], np.nan])


def test_a_rate_on_the_reference_landscape_needs_its_known_number_of_queries():
    found = oracle.fixed_rate_queries(
        waves, waves_slope, GRID, 10.0, START, np.array([0.2]), np.array([0.005])
    )
    np.testing.assert_allclose(found.queries, [30_663], rtol=1e-3)


@pytest.mark.parametrize(("h", "num"), [(waves, 177), (waves, 178), (tilted, 177)])
def test_runs_of_a_schedule_equal_stages_one_by_one(h, num):
    slope = waves_slope if h is waves else tilted_slope
    grid = np.linspace(-4.4, 4.4, num)
    start = gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, grid)
    rates = np.array([0.02, 0.01, 0.006])
    laws = [
        oracle.propagate_stages(slope, grid, rates, 10.0, start, 2**i)
        for i in (2, 5, 6)
    ]
    values = np.array([law @ h(grid) for law in laws])
    middle = np.sqrt(values[0] * values[1])
    found = oracle.schedule_queries(
        h, slope, grid, 10.0, start, np.array([20.0, middle, 0.01]), rates, (2, 5, 6)
    )
    np.testing.assert_allclose(found.law, laws, atol=1e-12)
    np.testing.assert_allclose(found.expected, values, rtol=1e-10)
    np.testing.assert_array_equal(found.num_queries, [12, 96, 192])
    # Half way between two runs in the logarithm of E h, so in that of N too.
    np.testing.assert_allclose(found.queries, [12, np.sqrt(12 * 96), np.inf])


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": GRID[::-1]}, "grid must be increasing and uniform"),
        ({"grid": GRID**3}, "grid must be increasing and uniform"),
        ({"grid": np.zeros((2, 2))}, r"grid must have shape \(n,\), .*\(2, 2\)"),
        ({"rates": np.array([0.004])}, "steps of at most rates .*= 0.04, got 0.05"),
        ({"rates": np.array([0.01, 0.0])}, "rates must be > 0, got"),
        ({"noise_std": -1.0}, "noise_std must be > 0, got -1"),
        ({"noise_std": 0.0}, "noise_std must be > 0, got 0"),
        ({"p0": START[1:]}, r"law must have the shape of the grid \(177,\)"),
        ({"p0": 2 * START}, "sum to 1, .* sum of 2"),
        ({"p0": -START}, "masses >= 0"),
        ({"h_grad": lambda x: 1.0}, r"h_grad must act entry by entry, got shape \(\)"),
        ({"h_grad": lambda x: x + np.inf}, "h_grad must be finite .* at -4.4"),
        ({"stage_length": 0}, "stage_length must be an integer >= 1, got 0"),
        ({"rates": np.array([[0.01]])}, r"rates must have shape \(m,\)"),
    ],
)
def test_bad_arguments_of_stages_are_refused(change, message):
    good = {"h_grad": waves_slope, "grid": GRID, "rates": np.array([0.01])}
    good |= {"noise_std": 10.0, "p0": START, "stage_length": 2}
    with pytest.raises(ValueError, match=message):
        oracle.propagate_stages(**(good | change))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: oracle.transition_matrix(waves_slope, GRID, 0.001, 10.0),
            "steps of at most lr .*= 0.01, got 0.05: use",
        ),
        (
            lambda: oracle.propagate(waves_slope, GRID, 0.01, 10.0, START, -1),
            "num_steps must be an integer >= 0, got -1",
        ),
        (
            lambda: oracle.propagate(
                waves_slope, GRID, lambda k: 0.01 / (k + 1), 10.0, START, 5
            ),
            "steps of at most schedule .*= 0.02, got 0.05",
        ),
        (
            lambda: oracle.propagate(
                waves_slope, GRID, 0.001, 10.0, jnp.asarray(START), 5
            ),
            "steps of at most schedule",
        ),
        (lambda: oracle.well_mass(START, GRID, (1.0, 1.0)), "interval must be"),
        (
            lambda: oracle.fixed_rate_queries(
                waves, waves_slope, GRID, 10.0, START, np.ones(1), np.ones(0)
            ),
            r"rates must have shape \(m,\), m >= 1, got shape \(0,\)",
        ),
        (lambda: oracle.expected_value(START[1:], waves, GRID), "shape of the grid"),
        (
            lambda: oracle.schedule_queries(
                tilted, tilted_slope, GRID, 10.0, START, np.ones(1), np.ones(1), (2, 1)
            ),
            "exponents must be increasing",
        ),
        (
            lambda: oracle.schedule_queries(
                tilted, tilted_slope, GRID, 10.0, START, np.zeros(1), np.ones(1), (1,)
            ),
            "targets must be > 0",
        ),
        (
            lambda: oracle.schedule_queries(
                np.sin, np.cos, GRID, 10.0, START, np.ones(1), np.ones(1), (1,)
            ),
            "h must be >= 0 on the grid, got -",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_float32_law_keeps_its_sum_and_integers_are_no_law():
    start = jnp.asarray(START, jnp.float32)
    run = jax.jit(
        lambda law: oracle.propagate(waves_slope_jax, GRID, 0.006, 10.0, law, 4096)
    )
    assert abs(float(run(start).sum()) - 1) <= 2e-6
    ones = jnp.zeros(GRID.size, int).at[3].set(1)
    for call in (
        lambda: oracle.propagate(waves_slope_jax, GRID, 0.006, 10.0, ones, 1),
        lambda: oracle.expected_value(ones, jnp.square, GRID),
    ):
        with pytest.raises(ValueError, match="law must have a floating dtype, got int"):
            call()


def test_a_large_exponent_loses_no_mass():
    # exp(-12 * 1.3 / 0.3) is far below rounding: the odd half dies of nothing else.
    for shift in (0.0, 0.1):
        x = np.linspace(-4, 4, 161)
        found = oracle.schedule_queries(
            lambda x, s=shift: (x - s) ** 2 / 2,
            lambda x, s=shift: x - s,
            x,
            1.0,
            np.full(161, 1 / 161),
            [0.1],
            [0.2],
            np.array([10, 40, 58]),
        )
        np.testing.assert_allclose(found.law.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(found.expected, 0.5 * 0.2 / 1.8, rtol=1e-6)


def test_lists_are_taken_as_arrays():
    listed = oracle.propagate(waves_slope, GRID, 0.006, 10.0, list(START), 3)
    array = oracle.propagate(waves_slope, GRID, 0.006, 10.0, START, 3)
    np.testing.assert_array_equal(listed, array)
    assert isinstance(oracle.expected_value(list(START), waves, GRID), np.floating)


def test_the_mass_of_everything_is_one():
    for law in (np.full(3, 1 / 3), jnp.full(3, 1 / 3)):
        x = np.linspace(-1, 1, 3)
        for interval, mass in (((-9, 9), 1.0), ((-9, 0), 0.5), ((-1, 0), 1 / 3)):
            np.testing.assert_allclose(
                oracle.well_mass(law, x, interval), mass, rtol=1e-6
            )
