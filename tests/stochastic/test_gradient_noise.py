"""Noise on gradients and the tail index, against NumPy transcriptions."""

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from jaxopt_suite.stochastic import (
    add_noise_to_gradient,
    aggregate_median_of_means,
    cauchy,
    gaussian,
    noisy_oracle,
    tail_index_hill,
    tail_index_monitor,
)


def rank_correlation(a, b) -> float:
    found: Any = scipy.stats.spearmanr(a, b)
    return abs(found.statistic)


# --- noise --------------------------------------------------------------------------


def test_every_entry_of_the_updates_gets_a_draw_of_the_law():
    # Kolmogorov-Smirnov below 1e-6: the rate of false alarms.
    gradient = {"a": jnp.full((100, 100), 7.0), "b": jnp.full(10_000, -3.0)}
    transformation: Any = add_noise_to_gradient(cauchy(0.5), jax.random.key(0))
    noisy, _ = jax.jit(transformation.update)(gradient, transformation.init(gradient))
    law = scipy.stats.cauchy(scale=0.5)
    a, b = np.ravel(noisy["a"]) - 7.0, np.ravel(noisy["b"]) + 3.0
    assert scipy.stats.kstest(a, law.cdf).pvalue > 1e-6
    assert scipy.stats.kstest(b, law.cdf).pvalue > 1e-6
    # Independent leaves: 10,000 ranks correlate by less than 5.5 / 100.
    assert rank_correlation(a, b) <= 0.055


def test_every_update_draws_anew_and_the_key_decides():
    transformation: Any = add_noise_to_gradient(gaussian(), jax.random.key(0))
    zeros, update = jnp.zeros(100), jax.jit(transformation.update)
    first, state = update(zeros, transformation.init(zeros))
    second, _ = update(zeros, state)
    again, _ = update(zeros, transformation.init(zeros))
    assert not np.any(first == second)
    np.testing.assert_array_equal(first, again)


def test_it_keeps_dtypes_and_goes_through_scan_and_a_chain():
    optimizer: Any = optax.chain(
        add_noise_to_gradient(gaussian(0.0), jax.random.key(0)), optax.sgd(0.5)
    )
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones([])}

    def step(carry, _) -> Any:
        params, state = carry
        updates, state = optimizer.update(params, state, params)
        return (optax.apply_updates(params, updates), state), None

    carry: Any = (params, optimizer.init(params))
    (last, _), _ = jax.lax.scan(step, carry, length=3)
    np.testing.assert_array_equal(last["b"], 0.125)
    assert last["a"].dtype == jnp.bfloat16


def test_the_oracle_returns_independent_noisy_copies_of_the_gradient():
    params = {"a": jnp.arange(3.0), "b": jnp.array(1.0, jnp.bfloat16)}
    double = lambda tree: jax.tree.map(lambda x: 2 * x, tree)  # noqa: E731
    quiet = jax.jit(noisy_oracle(double, gaussian(0.0), 4))(jax.random.key(0), params)
    np.testing.assert_array_equal(quiet["a"], np.tile([0.0, 2.0, 4.0], (4, 1)))
    assert quiet["b"].shape == (4,)
    assert quiet["b"].dtype == jnp.bfloat16
    noisy = jax.jit(noisy_oracle(double, cauchy(), 20_000))(jax.random.key(0), params)
    noise = np.asarray(noisy["a"]) - 2 * np.arange(3.0)
    for column in noise.T:
        assert scipy.stats.kstest(column, scipy.stats.cauchy.cdf).pvalue > 1e-6
    # 5.5 standard errors of a rank correlation of 20,000, over samples and entries.
    assert rank_correlation(noise[:, 0], noise[:, 1]) <= 0.039
    assert rank_correlation(noise[1:, 0], noise[:-1, 0]) <= 0.039


# --- the tail index -----------------------------------------------------------------


estimate = jax.jit(tail_index_hill, static_argnums=1)


def hill(samples, k):
    """One over the mean log ratio of the k largest sizes to the next."""
    sizes = np.sort(np.abs(np.ravel(samples)))[::-1].astype(np.float64)
    return 1 / np.mean(np.log(sizes[:k] / sizes[k]))


@pytest.mark.parametrize("k", [1, 5, 29])
def test_hills_estimate_equals_its_formula(k):
    samples = np.random.default_rng(k).standard_cauchy((5, 6)).astype(np.float32)
    np.testing.assert_allclose(estimate(samples, k), hill(samples, k), rtol=1e-5)
    narrow = jnp.asarray(samples, jnp.bfloat16)
    assert estimate(narrow, k).dtype == jnp.float32
    expected = hill(np.float32(narrow), k)
    np.testing.assert_allclose(estimate(narrow, k), expected, rtol=1e-5)


@pytest.mark.parametrize("tail", [0.5, 1.6, 3.0])
def test_hills_estimate_finds_the_index_of_pareto_draws(tail):
    # The log ratios are exponential: a standard error of tail / sqrt(k), 5.5 of them.
    draws = np.random.default_rng(0).pareto(tail, 100_000).astype(np.float32) + 1
    for k in (1_000, 50_000):
        assert abs(float(estimate(draws, k)) - tail) <= 5.5 * tail / math.sqrt(k)


def test_hills_estimate_tells_infinite_variance_from_finite():
    rng = np.random.default_rng(0)
    assert estimate(rng.standard_t(1.2, 100_000).astype(np.float32), 1_000) < 1.5
    assert estimate(rng.standard_normal(100_000).astype(np.float32), 1_000) > 4


def tree_batch(rng, batch):
    return {
        "w": jnp.asarray(rng.standard_cauchy((batch, 2)), jnp.float32),
        "b": jnp.asarray(rng.standard_cauchy(batch), jnp.float32),
    }


@pytest.mark.parametrize("batch", [1, 7, 25])
def test_the_monitor_equals_a_ring_of_the_last_norms(batch):
    k, window = 3, 10
    rng = np.random.default_rng(batch)
    transformation: Any = tail_index_monitor(k, window)
    params = {"w": jnp.zeros(2), "b": jnp.zeros([])}
    state, seen = transformation.init(params), []
    update = jax.jit(transformation.update)
    for _ in range(3 * window):
        updates = tree_batch(rng, batch)
        passed, new_state = update(updates, state)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), new_state) == jax.tree.map(
            lambda x: (x.shape, x.dtype), state
        )
        state = new_state
        np.testing.assert_array_equal(passed["w"], updates["w"])
        w, b = np.asarray(updates["w"], float), np.asarray(updates["b"], float)
        seen += list(np.sqrt((w**2).sum(axis=1) + b**2))
        if len(seen) < window:
            assert np.isnan(state.tail_index)
        else:
            expected = hill(seen[-window:], k)
            np.testing.assert_allclose(state.tail_index, expected, rtol=1e-4)
            np.testing.assert_allclose(
                np.sort(state.norms), np.sort(seen[-window:]), rtol=1e-5
            )
        assert state.count < 2 * window


def test_the_monitor_keeps_ten_times_k_norms_unless_told():
    state: Any = tail_index_monitor(4).init(jnp.zeros(2))
    assert state.norms.shape == (40,)


def test_the_monitor_passes_empty_trees():
    transformation: Any = tail_index_monitor(2)
    updates, state = transformation.update({}, transformation.init({}))
    assert updates == {}
    assert state.count == 0


def test_the_monitor_in_front_of_an_aggregator_sees_every_sample():
    optimizer: Any = optax.chain(
        tail_index_monitor(20, 100), aggregate_median_of_means(5)
    )
    params = jnp.zeros([])
    draws = np.random.default_rng(0).pareto(0.8, 100).astype(np.float32)
    median, state = jax.jit(optimizer.update)(draws, optimizer.init(params), params)
    assert median.shape == ()
    np.testing.assert_allclose(state[0].tail_index, hill(draws, 20), rtol=1e-5)


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noisy_oracle(jnp.sin, cauchy(), 0), "batch .*>= 1, got 0"),
        (lambda: tail_index_hill(jnp.ones(5), 0), "k .*>= 1, got 0"),
        (lambda: tail_index_hill(jnp.ones(5), 5), "k must be < .*5, got 5"),
        (lambda: tail_index_monitor(0), "k .*>= 1, got 0"),
        (lambda: tail_index_monitor(5, 5), "window .*>= 6, got 5"),
        (lambda: tail_index_monitor(cast(Any, 2.5)), "k .*integer.*got 2.5"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_updates_are_refused():
    monitor = tail_index_monitor(2)
    with pytest.raises(ValueError, match=r"got 3 at .*\[0\] and 4 at .*\[1\]"):
        monitor.update([jnp.ones(3), jnp.ones(4)], monitor.init([0.0, 0.0]))
    noisy = add_noise_to_gradient(cauchy(), jax.random.key(0))
    with pytest.raises(ValueError, match=r"dtype .*int32"):
        noisy.update(jnp.arange(3), noisy.init(jnp.arange(3)))
