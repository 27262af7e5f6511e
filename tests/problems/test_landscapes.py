"""Landscapes: minima, curvature and wells in float64, values against other formulas."""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize

from jaxopt_suite.core import optimize
from jaxopt_suite.problems import landscapes

KEY = jax.random.key(0)
FACTORIES = {
    "rastrigin": lambda d: landscapes.rastrigin(d, A=1.0),
    "griewank": landscapes.griewank,
    "ackley": landscapes.ackley,
    "levy": landscapes.levy,
    "styblinski_tang": landscapes.styblinski_tang,
    "double_well": lambda d: landscapes.double_well(d, tilt=0.7),
    "schwefel": landscapes.schwefel,
    "michalewicz": landscapes.michalewicz,
    "quadratic": lambda d: landscapes.quadratic(1.0 + np.arange(d)),
    "perturbed_quadratic": lambda d: landscapes.perturbed_quadratic(d, 0.5, 5.0, KEY),
}
ANY_DIMENSION = list(FACTORIES)
CASES = [(name, 3) for name in ANY_DIMENSION]
FACTORIES["rosenbrock"] = landscapes.rosenbrock
FACTORIES["drop_wave"] = lambda d: landscapes.drop_wave()
FACTORIES["schaffer_n2"] = lambda d: landscapes.schaffer_n2()
FACTORIES["neural_toy"] = lambda d: landscapes.neural_toy(KEY)
CASES += [("rosenbrock", 4), ("drop_wave", 2), ("schaffer_n2", 2), ("neural_toy", 65)]


@pytest.mark.parametrize(("name", "d"), CASES)
def test_the_minimum_the_curvature_and_the_well_are_as_stated(name, d):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        landscape = FACTORIES[name](d)
        best, least = np.asarray(landscape.minimizer), float(landscape.min_value)
        low, high = landscape.domain
        x = rng.uniform(low, high, (10_000, d))
        # Some near the minimizer, where a wrong one would show, and some outside.
        near = best + 0.1 * rng.standard_normal((1000, d))
        smooth = landscape.smoothness is not None

        @jax.jit
        def look(best, x):
            points = jnp.concatenate([best[None], x, near, 3 * x[:1000]])
            hessian = jax.vmap(jax.hessian(landscape.value))
            return (
                jax.vmap(landscape.value)(points),
                jax.grad(landscape.value)(best),
                hessian(x[:1000]) if smooth else jnp.zeros((1, 1, 1)),
                jax.vmap(landscape.in_basin)(jnp.stack([best, best * jnp.nan])),
            )

        values, slope, hessians, inside = map(np.asarray, look(best, x))
        assert best.shape == (d,)
        assert best.dtype == np.float64
        assert np.all((best >= low) & (best <= high))
        assert abs(values[0] - least) <= 1e-6 * (1 + abs(least))
        assert np.linalg.norm(slope) <= 1e-5
        assert values.min() >= least - 1e-9
        assert list(inside) == [True, False]
        if landscape.separable is not None:
            terms = np.asarray(landscape.separable(x)).sum(axis=-1)
            np.testing.assert_allclose(values[1:10_001], terms, rtol=1e-12, atol=1e-12)
        if smooth:
            norms = np.linalg.norm(hessians, ord=2, axis=(-2, -1))
            assert np.max(norms) <= landscape.smoothness


def test_all_of_it_holds_in_one_dimension():
    with jax.enable_x64(True):
        made = [FACTORIES[name](1) for name in ANY_DIMENSION]
        x = np.random.default_rng(0).uniform(-1, 1, (1000, 1))

        @jax.jit
        def look(bests):
            return [
                (
                    landscape.value(best),
                    jax.grad(landscape.value)(best)[0],
                    jax.vmap(landscape.value)(np.mean(landscape.domain) + x),
                    landscape.in_basin(best),
                )
                for landscape, best in zip(made, bests, strict=True)
            ]

        seen = jax.tree.map(np.asarray, look([m.minimizer for m in made]))
        leasts = [float(landscape.min_value) for landscape in made]
    for least, (value, slope, others, inside) in zip(leasts, seen, strict=True):
        assert abs(value - least) <= 1e-6 * (1 + abs(least))
        assert abs(slope) <= 1e-5
        assert others.min() >= least - 1e-9
        assert inside


def test_bounds_on_the_curvature_are_attained_where_they_are_stated_as_equal():
    # At the minimizer or at a corner of the domain.
    places = {"rastrigin": 0.0, "griewank": 0.0, "styblinski_tang": 5.0}
    places |= {"double_well": 2.0, "quadratic": 0.0, "perturbed_quadratic": 0.0}
    with jax.enable_x64(True):
        made = {name: FACTORIES[name](1) for name in places}
        bends = jax.jit(
            lambda: {
                name: jax.hessian(made[name].value)(jnp.full(1, x))[0, 0]
                for name, x in places.items()
            }
        )()
        for name, bend in bends.items():
            np.testing.assert_allclose(bend, made[name].smoothness, rtol=1e-12)


def test_starts_are_where_the_docstrings_say_and_in_the_default_dtype():
    for name, center in (("rastrigin", 3.0), ("griewank", 8.0), ("levy", 7.0)):
        start = FACTORIES[name](400).sample_init(jax.random.key(1))
        assert start.dtype == jnp.float32
        # 5.5 standard errors of a mean of 400 and of a standard deviation.
        assert abs(float(start.mean()) - center) <= 5.5 * 0.5 / 20
        assert abs(float(start.std()) - 0.5) <= 5.5 * 0.5 / math.sqrt(800)
    start = landscapes.schwefel(400).sample_init(jax.random.key(1))
    assert -500 <= start.min() < -400
    assert 400 < start.max() <= 500


# --- values against other formulas --------------------------------------------------


def by_hand(name, x):
    """Transcriptions of the usual definitions, one coordinate after the other."""
    d, total = len(x), 0.0
    if name == "griewank":
        product = math.prod(math.cos(v / math.sqrt(i)) for i, v in enumerate(x, 1))
        return sum(v * v for v in x) / 4000 - product + 1
    if name == "ackley":
        radius = math.sqrt(sum(v * v for v in x) / d)
        waves = math.exp(sum(math.cos(2 * math.pi * v) for v in x) / d)
        return -20 * math.exp(-0.2 * radius) - waves + 20 + math.e
    if name == "levy":
        w = [1 + (v - 1) / 4 for v in x]
        for i in range(d - 1):
            total += (w[i] - 1) ** 2 * (1 + 10 * math.sin(math.pi * w[i] + 1) ** 2)
        total += (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
        return total + math.sin(math.pi * w[0]) ** 2
    if name == "schwefel":
        return 418.9828872724338 * d - sum(v * math.sin(math.sqrt(abs(v))) for v in x)
    if name == "michalewicz":
        for i, v in enumerate(x, 1):
            total -= math.sin(v) * math.sin(i * v * v / math.pi) ** 20
        return total
    if name == "drop_wave":
        square = x[0] ** 2 + x[1] ** 2
        return -(1 + math.cos(12 * math.sqrt(square))) / (0.5 * square + 2)
    assert name == "schaffer_n2"
    wave = math.sin(x[0] ** 2 - x[1] ** 2) ** 2
    return 0.5 + (wave - 0.5) / (1 + 0.001 * (x[0] ** 2 + x[1] ** 2)) ** 2


@pytest.mark.parametrize(
    ("name", "d"),
    [
        ("griewank", 3),
        ("ackley", 3),
        ("levy", 1),
        ("levy", 4),
        ("schwefel", 2),
        ("michalewicz", 5),
        ("drop_wave", 2),
        ("schaffer_n2", 2),
    ],
)
def test_values_are_those_of_the_usual_definition(name, d):
    with jax.enable_x64(True):
        landscape = FACTORIES[name](d)
        low, high = landscape.domain
        x = np.random.default_rng(1).uniform(low, high, (20, d))
        expected = [by_hand(name, row) for row in x.tolist()]
        found = jax.jit(jax.vmap(landscape.value))(x)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_levys_inner_coordinate_is_what_the_coordinates_of_levy_share():
    with jax.enable_x64(True):
        value = landscapes.levy(3, offset=0.0).value
        for x in (-3.0, 1.0, 2.5):
            middle = value(jnp.array([0.0, x, 0.0]))
            h = x**2 / 16 * (1 + 10 * math.sin(math.pi * x / 4 + 1) ** 2)
            np.testing.assert_allclose(middle, h, rtol=1e-12)
            np.testing.assert_allclose(landscapes.levy_coordinate(x), h, rtol=1e-12)


def test_michalewicz_has_its_published_minima_and_they_survive_a_global_search():
    published = {2: -1.8013, 5: -4.687658, 10: -9.66015}
    for d, least in published.items():
        assert abs(landscapes.michalewicz(d).min_value - least) <= 6e-6 * d
    term = lambda x, i: -np.sin(x[0]) * np.sin(i * x[0] ** 2 / np.pi) ** 20  # noqa: E731
    for i, best in enumerate(np.asarray(landscapes.michalewicz(6).minimizer), 1):
        found = scipy.optimize.brute(
            term, [(0, np.pi)], (i,), Ns=4000, finish=scipy.optimize.fmin
        )
        np.testing.assert_allclose(found, best, atol=1e-4)


def test_the_tilted_well_has_the_extrema_of_a_root_finder():
    for tilt in (0.01, 0.5, 1.5):
        left, middle, _ = np.sort(np.roots([4, 0, -4, tilt]).real)
        with jax.enable_x64(True):
            landscape = landscapes.double_well(2, tilt=tilt)
            np.testing.assert_allclose(landscape.minimizer, left, rtol=1e-9)
            for step, inside in ((-1e-6, True), (1e-6, False)):
                assert landscape.in_basin(jnp.array([left, middle + step])) == inside


def test_the_perturbed_quadratic_is_a_rotated_sum():
    x = jnp.array([0.3, -1.0, 2.0, 0.5])

    @jax.jit
    def look(key):
        landscape = landscapes.perturbed_quadratic(4, 0.7, 3.0, key)
        return jax.hessian(landscape.value)(jnp.zeros(4)), landscape.value(x)

    (bend, here), (_, there) = look(KEY), look(jax.random.key(1))
    # The Hessian at 0 is I + a w^2 U^T U, whatever the rotation U.
    np.testing.assert_allclose(bend, (1 + 0.7 * 9) * np.eye(4), atol=1e-5)
    assert abs(here - there) > 1e-3


def test_the_box_has_walls_and_gradients_are_finite_at_the_kinks():
    for landscape in (landscapes.schwefel(2), landscapes.michalewicz(2)):
        low, high = landscape.domain
        points = np.array([[high, high], [high + 3.0, high], [low - 10.0, low - 10.0]])
        value = jax.jit(jax.vmap(landscape.value))(points)
        np.testing.assert_allclose(value[1] - value[0], 9.0, rtol=1e-4)
        assert value[2] > landscape.min_value + 100
        assert not landscape.in_basin(points[1])
    kinks = ("schwefel", "ackley", "drop_wave", "schaffer_n2", "michalewicz")
    values = [FACTORIES[name](2).value for name in kinks]
    slopes = jax.jit(lambda x: [jax.grad(value)(x) for value in values])(jnp.zeros(2))
    np.testing.assert_allclose(slopes, np.zeros((len(kinks), 2)), atol=1e-6)


# --- use ----------------------------------------------------------------------------


def test_parameters_may_be_traced_in_one_compile():
    traces = 0

    @jax.jit
    @jax.vmap
    def run(p):
        nonlocal traces
        traces += 1
        made = [
            landscapes.rastrigin(2, A=p),
            landscapes.griewank(2, scale=p),
            landscapes.ackley(2, a=p, b=p, c=p),
            landscapes.levy(2, offset=p),
            landscapes.double_well(2, tilt=p),
            landscapes.quadratic(jnp.stack([p, 2 * p])),
            landscapes.perturbed_quadratic(2, p, p, KEY),
        ]
        x = jnp.array([0.3, 0.2])
        bounds = [p if m.smoothness is None else m.smoothness for m in made]
        return (
            jnp.stack([m.value(x) for m in made]),
            jnp.stack(bounds),
            made[4].value(made[4].minimizer) - made[4].min_value,
        )

    values, bounds, gaps = run(jnp.array([0.5, 1.0]))
    run(jnp.array([0.7, 1.2]))
    assert traces == 1
    np.testing.assert_allclose(
        values[1, 0], landscapes.rastrigin(2, A=1.0).value(jnp.array([0.3, 0.2]))
    )
    np.testing.assert_allclose(bounds[1, 0], 2 + 4 * math.pi**2, rtol=1e-6)
    np.testing.assert_allclose(gaps, 0.0, atol=1e-6)


def test_its_problem_descends_the_exact_gradient_and_records_value_and_well():
    landscape = landscapes.rastrigin(3, A=1.0)
    problem = landscapes.landscape_problem(landscape)
    x = jnp.array([0.1, 1.2, -0.4])
    exact = 2 * x + 2 * np.pi * jnp.sin(2 * np.pi * x)
    np.testing.assert_allclose(problem.grad(KEY, x), exact, rtol=1e-5)
    descend = jax.jit(
        lambda x: optimize(optax.sgd(0.01), problem, KEY, 200, params=jnp.full(3, x))
    )
    run, stuck = descend(0.3), descend(1.1)
    np.testing.assert_allclose(run.record["value"][-1], 0.0, atol=1e-9)
    assert run.record["in_basin"].all()
    np.testing.assert_allclose(stuck.record["value"][-1], 3 * 0.951422, rtol=1e-5)
    assert not stuck.record["in_basin"].any()
    np.testing.assert_array_equal(problem.init(KEY), landscape.sample_init(KEY))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: landscapes.rastrigin(0), "d must be an integer >= 1, got 0"),
        (lambda: landscapes.rastrigin(2, A=-1.0), "A must be >= 0, got -1"),
        (lambda: landscapes.griewank(2, scale=0.0), "scale must be > 0, got 0"),
        (lambda: landscapes.ackley(0), "d must be an integer >= 1, got 0"),
        (lambda: landscapes.ackley(2, b=-0.2), "b must be > 0, got -0.2"),
        (lambda: landscapes.levy(2, offset=11.0), r"offset must be in \[-10, 10\]"),
        (lambda: landscapes.styblinski_tang(-1), "d must be .* got -1"),
        (lambda: landscapes.double_well(1, tilt=1.6), r"tilt must be in \(0, 1.53"),
        (lambda: landscapes.double_well(1, tilt=0.0), r"tilt must be in .*got 0"),
        (lambda: landscapes.schwefel(cast(Any, 2.0)), "d must be an integer"),
        (lambda: landscapes.michalewicz(2, m=0), "m must be an integer >= 1, got 0"),
        (lambda: landscapes.rosenbrock(1), "d must be an integer >= 2, got 1"),
        (lambda: landscapes.quadratic(np.array([1.0, 0.0])), "eigenvalues must be > 0"),
        (lambda: landscapes.quadratic(np.ones((2, 2))), r"shape \(d,\).*\(2, 2\)"),
        (lambda: landscapes.perturbed_quadratic(2, -1.0, 1.0, KEY), "amplitude .*>= 0"),
        (lambda: landscapes.perturbed_quadratic(2, 1.0, 0.0, KEY), "frequency .*> 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "name",
    ["griewank", "quadratic", "perturbed_quadratic", "neural_toy", "michalewicz"],
)
def test_integer_points_have_the_values_of_floats(name):
    landscape = FACTORIES[name](65)
    if name == "quadratic":
        landscape = landscapes.quadratic(0.5 + np.arange(65))
    point = jnp.arange(65) % 3
    for read in (landscape.value, landscape.in_basin):
        np.testing.assert_allclose(read(point), read(point.astype(float)), rtol=1e-6)


def test_the_box_of_levy_is_inside_the_well_of_every_coordinate():
    with jax.enable_x64(True):
        landscape = landscapes.levy(3)
        for axis in range(3):
            x = np.linspace(-1.5, 2.2, 3701)
            points = 1.0 + x[:, None] * np.eye(3)[axis]
            inside = np.asarray(jax.vmap(landscape.in_basin)(points))
            values = np.asarray(jax.vmap(landscape.value)(points))
            np.testing.assert_allclose(x[inside][[0, -1]], [-0.85, 1.66], atol=2e-3)
            # One well: down to the minimizer, then up.
            falls = np.diff(values[inside]) < 0
            np.testing.assert_array_equal(falls, x[inside][:-1] < -1e-9)
