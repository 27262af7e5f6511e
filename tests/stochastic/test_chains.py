"""Many chains on one landscape: loops, NumPy, SciPy and closed forms."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from jaxopt_suite.core import device_mesh, optimize, shard_leading, sweep
from jaxopt_suite.problems import landscape_problem, quadratic, rastrigin
from jaxopt_suite.stochastic import (
    ChainRecord,
    annealed_sgd,
    annealing_oracle,
    queries_to_target,
    replica_summary,
    run_chains,
    schedules,
)

LANDSCAPE = rastrigin(3, A=1.0)
SCHEDULE = schedules.geometric(0.012, 0.001, 48)
KEY = jax.random.key(4)
# Short runs: compiling costs more than running.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def noisy(key):
    return annealed_sgd(SCHEDULE, 10.0, key)


def chains(init=None, num_chains=8):
    return run_chains(
        LANDSCAPE,
        noisy,
        KEY,
        num_steps=48,
        num_chains=num_chains,
        record_every=16,
        init=init,
        target=6.0,
    )


@functools.cache
def eight_chains():
    return jit(chains)()


@jit
def own_starts():
    """Where eight chains start by themselves."""
    keys = jax.vmap(functools.partial(jax.random.fold_in, KEY))(jnp.arange(8))
    first = lambda key: jax.random.split(jax.random.split(key)[0])[0]  # noqa: E731
    return jax.vmap(lambda key: LANDSCAPE.sample_init(first(key)))(keys)


def assert_same(got: ChainRecord, expected: ChainRecord):
    for name, a, b in zip(ChainRecord._fields, got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=name)


# --- chains are independent runs ----------------------------------------------------


def test_chains_equal_a_loop_over_their_keys():
    record, problem = eight_chains(), landscape_problem(LANDSCAPE)

    @jit
    def one(c):
        run_key, optimizer_key = jax.random.split(jax.random.fold_in(KEY, c))
        return optimize(noisy(optimizer_key), problem, run_key, 48, record_every=16)

    for c in range(8):
        alone = one(c)
        np.testing.assert_allclose(record.final[c], alone.params, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            record.value[:, c], alone.record["value"], rtol=1e-6, atol=1e-6
        )
        np.testing.assert_array_equal(record.in_basin[:, c], alone.record["in_basin"])


def test_every_chain_has_its_own_noise_and_keeps_it_in_a_larger_crowd():
    starts = jnp.concatenate([own_starts(), jnp.zeros((32, 3))])
    crowd = jit(functools.partial(chains, num_chains=40))(starts)
    few = eight_chains().value
    np.testing.assert_allclose(crowd.value[:, :8], few, rtol=1e-6, atol=1e-6)
    # 32 chains from one point end at 96 different numbers.
    assert len(np.unique(crowd.final[8:])) == 96


def test_sharding_the_chains_over_devices_gives_the_same_record():
    starts = shard_leading(own_starts(), device_mesh("chains", 8), "chains")
    run = jit(chains).lower(starts).compile()
    record = run(starts)
    assert_same(record, eight_chains())
    assert record.final.addressable_shards[0].data.shape == (1, 3)
    # No device waits for another inside the loop.
    body = run.as_text().split("ENTRY")[0]
    assert not any(word in body for word in ("all-gather", "collective-permute"))


def test_chains_go_through_a_sweep_in_one_compile():
    traces = 0

    def run(key, rate):
        nonlocal traces
        traces += 1
        return run_chains(
            quadratic(jnp.ones(2)),
            lambda key: annealed_sgd(rate, 0.0, key),
            key,
            num_steps=2,
            num_chains=3,
            record_every=1,
            init=jnp.ones((3, 2)),
        ).value

    keys = jax.random.split(KEY, 2)
    values = sweep(run, keys, {"rate": jnp.array([0.5, 0.75])})
    assert traces == 1
    assert values.shape == (2, 2, 3, 3)
    for i, shrink in enumerate((0.5, 0.25)):
        expected = np.float32(shrink) ** (2 * np.arange(3.0))
        np.testing.assert_allclose(values[i, 1, :, 2], expected, rtol=1e-6)


def test_memory_does_not_grow_with_the_number_of_steps():
    def temporary(num_steps):
        run = functools.partial(
            run_chains,
            LANDSCAPE,
            noisy,
            num_steps=num_steps,
            num_chains=8,
            record_every=num_steps // 4,
        )
        analysis: Any = jit(run).lower(KEY).compile().memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    assert temporary(64) == temporary(64_000)


# --- the record ---------------------------------------------------------------------


@jit
def descend(rates, starts, target=None):
    """Gradient descent on x^2/2 in one dimension, every step recorded."""
    return run_chains(
        quadratic(jnp.ones(1)),
        optax.sgd(lambda count: rates[count]),
        KEY,
        num_steps=len(rates),
        num_chains=len(starts),
        record_every=1,
        init=starts[:, None],
        target=target,
    )


def test_the_record_of_two_descents_worked_by_hand():
    # x goes 1, 1/2, -1, 1/2, 1/8, -1/4, -1/8.
    rates = np.array([0.5, 3.0, 1.5, 0.75, 3.0, 0.5], np.float32)
    x = np.array([1.0, 0.5, -1.0, 0.5, 0.125, -0.25, -0.125])
    starts = np.array([1.0, 4.0], np.float32)
    record = descend(rates, starts, 0.125)
    value = np.stack([x**2 / 2, 16 * x**2 / 2], axis=1)
    np.testing.assert_allclose(record.value, value, rtol=1e-6)
    np.testing.assert_allclose(
        record.best_value, np.minimum.accumulate(value), rtol=1e-6
    )
    np.testing.assert_array_equal(record.first_hit, [1, 4])
    np.testing.assert_array_equal(record.queries, np.arange(7))
    np.testing.assert_allclose(record.final[:, 0], [-0.125, -0.5], rtol=1e-6)
    assert record.min_value == 0.0
    assert record.num_diverged == 0
    assert record.first_hit.dtype == record.queries.dtype == jnp.int32
    assert np.all(descend(rates, starts, 0.0).first_hit == -1)


def test_divergence_is_counted_and_stays_in_the_values():
    # The second chain overflows; the third is NaN from the start.
    record = descend(np.full(6, -1e6, np.float32), np.float32([0.0, 1.0, np.nan]))
    assert record.num_diverged == 2
    assert np.all(record.first_hit == -1)
    assert np.all(record.value[:, 0] == 0)
    assert np.isinf(record.value[-1, 1])
    assert np.all(np.isnan(record.value[:, 2]))
    assert np.all(np.isnan(record.best_value[:, 2]))
    assert np.isnan(summarize(record).mean[-1])


def test_starts_come_from_a_function_of_the_key():
    def init(key):
        return jax.random.uniform(key, (3,), minval=7.0, maxval=8.0)

    final = jit(
        lambda: run_chains(
            LANDSCAPE,
            optax.set_to_zero(),
            KEY,
            num_steps=1,
            num_chains=8,
            record_every=1,
            init=init,
        )
    )().final
    assert np.all((final >= 7) & (final < 8))
    assert len(np.unique(final)) == 24


# --- what a record is read for ------------------------------------------------------


summarize = jit(
    functools.partial(replica_summary, quantiles=(0.25, 0.5, 0.9), confidence=0.99)
)


def made_record(value, in_basin=None):
    value = np.asarray(value, np.float32)
    rows, count = value.shape
    return ChainRecord(
        final=jnp.zeros((count, 1)),
        value=jnp.asarray(value),
        best_value=jnp.asarray(np.minimum.accumulate(value)),
        in_basin=jnp.asarray(value < 0.5 if in_basin is None else in_basin),
        first_hit=jnp.full(count, -1),
        queries=jnp.arange(rows) * 10,
        min_value=jnp.float32(0.25),
        num_diverged=jnp.int32(0),
    )


@pytest.mark.parametrize("quantile", [0.1, 0.2, 0.5, 0.75, 0.9, 1.0])
def test_queries_to_target_is_the_first_row_whose_quantile_is_there(quantile):
    rng = np.random.default_rng(0)
    value = 0.25 + rng.exponential(size=(40, 10)) * np.linspace(2, 0.01, 40)[:, None]
    record = made_record(value)
    for target in (1.0, 0.3, 0.05, 1e-4):
        excess = np.asarray(record.value) - 0.25
        level = np.quantile(excess, quantile, axis=1, method="inverted_cdf")
        rows = np.flatnonzero(level <= target)
        expected = 10 * rows[0] if rows.size else math.inf
        found = queries_to_target(record, target, quantile)
        assert found == expected
        assert isinstance(found, int) or found == math.inf


def test_a_diverged_chain_is_never_at_the_target():
    record = made_record([[0.25, 0.25, np.nan, np.inf]])
    assert queries_to_target(record, 0.1, 0.5) == 0
    assert queries_to_target(record, 0.1, 0.51) == math.inf


def test_the_summary_is_that_of_numpy_and_the_interval_that_of_scipy():
    rng = np.random.default_rng(1)
    value = rng.normal(size=(4, 20))
    successes = np.array([0, 7, 19, 20])
    in_basin = np.arange(20) < successes[:, None]
    record = made_record(value, in_basin)
    summary = summarize(record)
    np.testing.assert_allclose(summary.mean, value.mean(1), rtol=1e-4)
    error = value.std(1, ddof=1) / math.sqrt(20)
    np.testing.assert_allclose(summary.standard_error, error, rtol=1e-5)
    np.testing.assert_allclose(summary.median, np.median(value, 1), rtol=1e-5)
    quantiles = np.quantile(value, (0.25, 0.5, 0.9), axis=1).T
    np.testing.assert_allclose(summary.quantiles, quantiles, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(summary.success_rate, successes / 20, rtol=1e-6)
    for k, interval in zip(successes, summary.success_interval, strict=True):
        test = scipy.stats.binomtest(int(k), 20)
        expected = test.proportion_ci(0.99, method="wilson")
        np.testing.assert_allclose(interval, expected, rtol=1e-5, atol=1e-6)


# --- against the exact law ----------------------------------------------------------


@pytest.mark.slow
def test_simulated_chains_follow_the_exact_law_of_a_coordinate():
    # At most 64 comparisons of 5 standard errors: a false alarm in 4e-5.
    def h(x):
        return x**2 + 1 - jnp.cos(2 * jnp.pi * x)

    def h_grad(x):
        return 2 * x + 2 * jnp.pi * jnp.sin(2 * jnp.pi * x)

    staircase = schedules.stagewise(0.6265, (0.06 / 0.6265) ** (1 / 63), 64)
    runs = [schedules.from_temperature(T, 10.0) for T in (staircase, 0.49, 0.24, 0.12)]
    landscape = rastrigin(16, A=1.0)._replace(in_basin=lambda x: jnp.abs(x) < 0.5)

    @jax.jit
    @jax.vmap
    def simulate(rates):
        return run_chains(
            landscape,
            lambda key: annealed_sgd(lambda count: rates[count], 10.0, key),
            jax.random.key(0),
            num_steps=4096,
            num_chains=128,
            record_every=512,
        )

    counts = jnp.arange(4096)
    record = simulate(jnp.stack([jax.vmap(run)(counts) for run in runs]))
    means = record.value.mean(2) / 16
    errors = record.value.std(2, ddof=1) / 16 / math.sqrt(128)
    shares = record.in_basin.mean((2, 3))

    grid = np.linspace(-6, 6, 1001)
    start = np.exp(-((grid - 3) ** 2) / 0.5)
    compared = 0
    for i, run in enumerate(runs):
        law = start / start.sum()
        for row in range(1, 9):
            later = lambda k, run=run, row=row: run(k + 512 * (row - 1))  # noqa: E731
            law = annealing_oracle.propagate(h_grad, grid, later, 10.0, law, 512)
            expected = float(annealing_oracle.expected_value(law, h, grid))
            assert abs(means[i, row] - expected) <= 5 * errors[i, row], (i, row)
            share = float(annealing_oracle.well_mass(law, grid, (-0.5, 0.5)))
            variance = share * (1 - share) / 2048
            if variance * 2048**2 >= 20:
                compared += 1
                assert abs(shares[i, row] - share) <= 5 * math.sqrt(variance), (i, row)
    assert compared >= 16


def run_two(optimizer=None, **settings):
    optimizer = optax.sgd(0.5) if optimizer is None else optimizer
    return run_chains(
        quadratic(jnp.ones(2)),
        optimizer,
        jax.random.key(0),
        num_steps=2,
        num_chains=2,
        record_every=1,
        **settings,
    )


def test_a_record_of_a_sweep_is_read_run_by_run():
    record = run_two()
    swept = jax.tree.map(lambda x: jnp.stack([x, x]), record)
    for read in (lambda r: queries_to_target(r, 1.0), replica_summary):
        with pytest.raises(ValueError, match="record must be of one run"):
            read(swept)
    mean = jax.vmap(replica_summary)(swept).mean
    np.testing.assert_array_equal(mean[1], replica_summary(record).mean)


def test_a_confidence_near_one_and_a_single_quantile():
    summary = replica_summary(run_two(), quantiles=0.5, confidence=1 - 1e-8)
    np.testing.assert_array_equal(summary.quantiles[:, 0], summary.median)
    # All of 2 chains succeed: the lower end is n / (n + z^2).
    z = scipy.stats.norm.isf(0.5e-8)
    np.testing.assert_allclose(
        summary.success_interval[-1], [2 / (2 + z**2), 1.0], rtol=1e-4
    )
