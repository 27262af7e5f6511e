"""Resampling against NumPy, and a population against exact Gibbs measures."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.core import optimize
from jaxopt_suite.problems import landscape_problem, quadratic, rastrigin
from jaxopt_suite.stochastic import (
    langevin,
    population_annealing,
    run_chains,
    schedules,
    systematic_resample,
)

KEY = jax.random.key(2)
# Short runs: compiling costs more than running.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
resample = jit(systematic_resample)


# --- resampling ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_indices_are_those_of_shifted_points_on_the_cumulated_weights(seed):
    rng = np.random.default_rng(seed)
    log_weights = rng.normal(0, 3, 50).astype(np.float32)
    key = jax.random.key(seed)
    found = np.asarray(resample(key, log_weights))
    share = np.exp(log_weights.astype(float) - log_weights.max())
    share /= share.sum()
    points = (np.arange(50) + float(jax.random.uniform(key))) / 50
    expected = [int(np.argmax(np.cumsum(share) > p)) for p in points]
    np.testing.assert_array_equal(found, expected)
    copies = np.bincount(found, minlength=50)
    assert np.all(np.abs(copies - 50 * share) < 1)


def test_the_mean_number_of_copies_is_proportional_to_the_weight():
    # A number of copies varies by less than 1 around its mean: 5.5 standard errors.
    share = np.array([0.05, 0.31, 0.02, 0.42, 0.2])
    keys = jax.random.split(KEY, 4000)
    draw = functools.partial(systematic_resample, log_weights=jnp.log(share))
    found = np.asarray(jax.jit(jax.vmap(draw))(keys))
    copies = np.mean(found[:, :, None] == np.arange(5), axis=(0, 1)) * 5
    fraction = 5 * share % 1
    error = np.sqrt(fraction * (1 - fraction) / 4000)
    assert np.all(np.abs(copies - 5 * share) <= 5.5 * error + 1e-6)


def test_what_is_not_finite_has_no_weight_and_nothing_finite_changes_nothing():
    log_weights = jnp.array([jnp.nan, 0.0, -jnp.inf, 0.0, jnp.inf, -500.0])
    for seed in range(5):
        found = np.asarray(resample(jax.random.key(seed), log_weights))
        np.testing.assert_array_equal(found, [1, 1, 1, 3, 3, 3])
        lost = resample(jax.random.key(seed), jnp.full(6, jnp.nan))
        np.testing.assert_array_equal(lost, np.arange(6))


# --- the population -----------------------------------------------------------------


def test_two_stages_by_hand():
    landscape, problem = rastrigin(2, A=1.0), landscape_problem(rastrigin(2, A=1.0))
    temperatures = [1.0, 0.3]

    @jit
    def anneal():
        return population_annealing(
            landscape,
            lambda key, T: langevin(T, 0.01, key),
            KEY,
            temperatures=jnp.array(temperatures),
            steps_per_stage=3,
            num_chains=6,
            target=8.0,
        )

    @jit
    def advance(key, start, now):
        run_key, optimizer_key = jax.random.split(key)
        tx = langevin(now, 0.01, optimizer_key)
        return optimize(tx, problem, run_key, 3, params=start).params

    fold = jax.random.fold_in
    init_key, stage_key = jax.random.split(KEY)
    x = [landscape.sample_init(fold(init_key, c)) for c in range(6)]
    values = [[float(landscape.value(one)) for one in x]]
    for j, now in enumerate(temperatures):
        run_key, resample_key = jax.random.split(fold(stage_key, j))
        x = [advance(fold(run_key, c), one, now) for c, one in enumerate(x)]
        values.append([float(landscape.value(one)) for one in x])
        if j == 0:
            gap = 1 / 0.3 - 1 / 1.0
            weights = np.exp(-gap * (np.array(values[-1]) - np.min(values[-1])))
            share = np.cumsum(weights) / np.sum(weights)
            shift = float(jax.random.uniform(resample_key))
            chosen = [int(np.argmax(share > (c + shift) / 6)) for c in range(6)]
            x = [x[i] for i in chosen]
            size = weights.sum() ** 2 / (weights**2).sum()
    record = anneal()
    np.testing.assert_allclose(record.chains.final, np.stack(x), rtol=2e-5)
    np.testing.assert_allclose(record.chains.value, values, rtol=2e-5)
    np.testing.assert_allclose(record.effective_size, [size], rtol=1e-4)
    np.testing.assert_array_equal(record.chains.queries, [0, 3, 6])
    hits = np.array(values) <= 8.0
    first = np.where(hits.any(0), 3 * hits.argmax(0), -1)
    np.testing.assert_array_equal(record.chains.first_hit, first)


@functools.cache
def reweighted():
    """Exact draws at T = 1, which only resampling takes to T = 1/2 and 1/3."""
    count = 20_000
    draws = np.random.default_rng(0).normal(size=(count, 1)).astype(np.float32)
    return jit(
        lambda starts: population_annealing(
            quadratic(jnp.ones(1)),
            lambda key, T: optax.set_to_zero(),
            KEY,
            temperatures=1 / jnp.array([1.0, 2.0, 3.0]),
            steps_per_stage=1,
            num_chains=count,
            init=starts,
        )
    )(draws)


def test_resampling_carries_the_gibbs_measure_to_the_next_temperature():
    # N(0, T) has E f = T/2 with variance T^2/2. A resampled population is a weighted
    # mean: its error is that of its effective size, 5.5 of them.
    record = reweighted()
    means = np.mean(record.chains.value, axis=1)
    sizes = np.append([20_000], np.asarray(record.effective_size).cumprod())
    for row, now, size in zip((1, 2, 3), (1.0, 1 / 2, 1 / 3), sizes, strict=True):
        size = min(size, 10_000.0)
        assert abs(means[row] - now / 2) <= 5.5 * now / math.sqrt(2 * size)
    np.testing.assert_array_equal(
        np.sort(record.chains.value[-1]),
        np.sort(0.5 * np.square(record.chains.final[:, 0])),
    )


def test_the_effective_size_is_that_of_gaussian_weights():
    # w = exp(-c x^2/2), x ~ N(0, T): (E w)^2 / E w^2 = sqrt(1 + 2cT) / (1 + cT).
    # The weights' moments are known to 1% from 20,000 draws (5 standard errors).
    sizes = np.asarray(reweighted().effective_size) / 20_000
    expected = [math.sqrt(1 + 2 * s) / (1 + s) for s in (1.0, 1 / 2)]
    np.testing.assert_allclose(sizes, expected, rtol=0.02)


def test_a_diverged_chain_is_counted_and_replaced():
    starts = jnp.array([[0.0], [jnp.nan], [0.0], [jnp.inf]])
    record = jit(
        lambda: population_annealing(
            quadratic(jnp.ones(1)),
            lambda key, T: optax.set_to_zero(),
            KEY,
            temperatures=jnp.array([1.0, 0.5]),
            steps_per_stage=1,
            num_chains=4,
            init=starts,
        )
    )()
    assert record.chains.num_diverged == 2
    assert np.isnan(record.chains.value[1, 1])
    np.testing.assert_array_equal(record.chains.final, np.zeros((4, 1)))
    np.testing.assert_allclose(record.effective_size, [2.0])


@pytest.mark.slow
def test_a_population_finds_the_global_well_more_often_than_lone_chains():
    landscape, temperatures = rastrigin(2, A=1.0), jnp.geomspace(0.8, 0.05, 16)

    @jax.jit
    def rates(key):
        population = population_annealing(
            landscape,
            lambda key, T: langevin(T, 0.01, key),
            key,
            temperatures=temperatures,
            steps_per_stage=64,
            num_chains=1000,
        )
        staircase = schedules.stagewise(0.8, (0.05 / 0.8) ** (1 / 15), 64)
        alone = run_chains(
            landscape,
            lambda key: langevin(staircase, 0.01, key),
            key,
            num_steps=1024,
            num_chains=1000,
            record_every=1024,
        )
        return population.chains.in_basin[-1].mean(), alone.in_basin[-1].mean()

    population, alone = rates(KEY)
    # The Gibbs measure at T = .05 is in the well but for 1e-7.
    assert population > 0.95
    assert alone < 0.8


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperatures": jnp.array([1.0, 0.0])}, "temperatures must be > 0"),
        ({"temperatures": jnp.ones((2, 2))}, r"temperatures .*got shape \(2, 2\)"),
        ({"temperatures": jnp.ones(0)}, r"temperatures .*got shape \(0,\)"),
        ({"steps_per_stage": 0}, "steps_per_stage must be .* >= 1, got 0"),
        ({"num_chains": 0}, "num_chains must be an integer >= 1, got 0"),
        ({"target": -1.0}, "target must be >= 0, got -1.0"),
        ({"init": jnp.ones((3, 1))}, "init .*num_chains=2, got 3"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    options = {
        "temperatures": jnp.ones(2),
        "steps_per_stage": 1,
        "num_chains": 2,
    } | changes
    with pytest.raises(ValueError, match=message):
        population_annealing(
            quadratic(jnp.ones(1)), lambda key, T: optax.sgd(0.1), KEY, **options
        )


def test_equal_bfloat16_weights_keep_every_index():
    chosen = systematic_resample(jax.random.key(0), jnp.zeros(1000, jnp.bfloat16))
    np.testing.assert_array_equal(chosen, np.arange(1000))


@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_weights_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"log_weights must have shape \(n,\)"):
        systematic_resample(jax.random.key(0), jnp.zeros(shape))


@pytest.mark.parametrize(
    ("optimizer", "temperatures", "message"),
    [
        (optax.sgd(0.1), [1.0], "optimizer must be a function of a key and a temp"),
        (lambda key, T: optax.sgd(T), [1.0, -0.5], "temperatures must be > 0"),
    ],
)
def test_a_transformation_or_a_cold_list_is_refused(optimizer, temperatures, message):
    with pytest.raises(ValueError, match=message):
        population_annealing(
            quadratic(np.ones(1)),
            optimizer,
            jax.random.key(0),
            temperatures=temperatures,
            steps_per_stage=1,
            num_chains=2,
        )
