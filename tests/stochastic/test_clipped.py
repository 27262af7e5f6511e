"""Scheduled clipping, clipped SGD and normalized momentum."""

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from optax.experimental import aggregating

from jaxopt_suite.stochastic import (
    cauchy,
    clip_by_scheduled_norm,
    clipped_sgd,
    mom_clipped_sgd,
    noisy_oracle,
    normalized_sgd_momentum,
)

FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


def applied(transformation: Any, updates, params=None):
    return transformation.update(updates, transformation.init(updates), params)[0]


# --- clipping -----------------------------------------------------------------------


@jax.jit
def clip_both_ways(tree, max_norm):
    ours, theirs = clip_by_scheduled_norm(max_norm), optax.clip_by_global_norm(max_norm)
    return applied(ours, tree), applied(theirs, tree)


@given(
    x=hnp.arrays(np.float32, 5, elements=FLOATS),
    max_norm=st.floats(2.0**-10, 2.0**20, width=32),
)
@settings(deadline=None, max_examples=50)
def test_a_constant_bound_is_optax_clip_by_global_norm(x, max_norm):
    tree = {"a": jnp.asarray(x[:2]), "b": jnp.asarray(x[2:])}
    ours, theirs = clip_both_ways(tree, max_norm)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-30)


def test_the_bound_follows_a_schedule_of_the_count():
    bounds = np.array([4.0, 1.0, 10.0, 0.25], np.float32)
    transformation: Any = clip_by_scheduled_norm(
        lambda count: jnp.asarray(bounds)[count]
    )
    state = transformation.init(jnp.zeros(2))
    for count, bound in enumerate(bounds):
        assert state.count == count
        clipped, state = transformation.update(jnp.array([3.0, -4.0]), state)
        expected = np.array([3.0, -4.0]) * min(1.0, bound / 5.0)
        np.testing.assert_allclose(clipped, expected, rtol=1e-6)


def test_zero_stays_zero_and_no_bound_changes_nothing():
    np.testing.assert_array_equal(
        applied(clip_by_scheduled_norm(1.0), jnp.zeros(3)), jnp.zeros(3)
    )
    x = jnp.array([1e30, -3.0])
    np.testing.assert_array_equal(applied(clip_by_scheduled_norm(jnp.inf), x), x)
    assert applied(clip_by_scheduled_norm(1.0), {}) == {}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [1e20, 1e30, 8e37])
@pytest.mark.parametrize("max_norm", [1.0, 1e-3])
def test_a_finite_update_whose_squares_overflow_keeps_its_direction(
    size, max_norm, compiled
):
    x = jnp.float32(size) * jnp.array([3.0, -4.0]) / 4
    clip = lambda x: applied(clip_by_scheduled_norm(max_norm), x)  # noqa: E731
    clipped = jax.jit(clip)(x) if compiled else clip(x)
    np.testing.assert_allclose(clipped, max_norm * np.array([0.6, -0.8]), rtol=1e-5)


def test_a_nan_is_not_hidden():
    clipped = applied(clip_by_scheduled_norm(1.0), jnp.array([jnp.nan, 1.0]))
    assert jnp.isnan(clipped).any()


# --- clipped SGD --------------------------------------------------------------------


def test_clipped_sgd_follows_its_recursion_with_schedules():
    rates, bounds = np.array([0.5, 0.1, 0.2]), np.array([1.0, 100.0, 0.3])
    optimizer: Any = clipped_sgd(
        lambda count: jnp.asarray(rates)[count],
        lambda count: jnp.asarray(bounds)[count],
    )
    gradients = np.array([[3.0, 4.0], [1.0, -2.0], [0.1, 0.1]])
    x, state = jnp.zeros(2), optimizer.init(jnp.zeros(2))
    expected = np.zeros(2)
    for g, rate, bound in zip(gradients, rates, bounds, strict=True):
        updates, state = optimizer.update(jnp.asarray(g), state, x)
        x = optax.apply_updates(x, updates)
        expected = expected - rate * g * min(1.0, bound / np.linalg.norm(g))
        np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-5)


def test_mom_clipped_sgd_clips_the_median_of_means():
    rng = np.random.default_rng(0)
    samples = rng.standard_cauchy((20, 3)).astype(np.float32)
    optimizer: Any = mom_clipped_sgd(0.5, 0.1, 5)
    assert isinstance(optimizer, aggregating.Aggregator)
    updates, _ = optimizer.update(samples, optimizer.init(jnp.zeros(3)))
    median = np.median(samples.reshape(5, 4, 3).mean(axis=1), axis=0)
    expected = -0.5 * 0.1 * median / np.linalg.norm(median)
    np.testing.assert_allclose(np.asarray(updates), expected, rtol=1e-5)


def one_run(key, learning_rate, max_norm, steps=25):
    """The last iterate on |x - 1|^2 / 2 with Cauchy noise, 5 samples a step."""
    optimizer: Any = mom_clipped_sgd(learning_rate, max_norm, 5)
    oracle = noisy_oracle(lambda x: x - 1.0, cauchy(0.3), 5)

    def step(carry, key):
        x, state = carry
        updates, state = optimizer.update(oracle(key, x), state, x)
        return (optax.apply_updates(x, updates), state), None

    x = jnp.zeros(2)
    keys = jax.random.split(key, steps)
    return jax.lax.scan(step, (x, optimizer.init(x)), keys)[0][0]


def test_seeds_and_hyperparameters_swept_together_equal_the_loop_in_one_trace():
    traces = 0

    def counted(*arguments):
        nonlocal traces
        traces += 1
        return one_run(*arguments)

    keys = jax.random.split(jax.random.key(0), 64)
    rates, norms = jnp.meshgrid(
        jnp.array([0.01, 0.03, 0.1, 0.3]), jnp.array([1.0, 3.0, 10.0, jnp.inf])
    )
    rates, norms = rates.ravel(), norms.ravel()
    over_pairs = jax.vmap(counted, (None, 0, 0))
    swept = jax.jit(jax.vmap(over_pairs, (0, None, None)))(keys, rates, norms)
    assert swept.shape == (64, 16, 2)
    assert traces == 1
    alone = jax.jit(one_run)
    for lane in range(0, 64 * 16, 13):
        i, j = divmod(lane, 16)
        expected = alone(keys[i], rates[j], norms[j])
        np.testing.assert_allclose(swept[i, j], expected, rtol=1e-4, atol=1e-5)


def test_hyperparameters_may_be_injected():
    factory = optax.inject_hyperparams(clipped_sgd)
    optimizer: Any = factory(
        learning_rate=optax.linear_schedule(1.0, 0.0, 2), max_norm=1.0
    )
    x = jnp.array([3.0, 4.0])
    state = optimizer.init(x)
    first, state = optimizer.update(x, state)
    np.testing.assert_allclose(first, [-0.6, -0.8], rtol=1e-6)
    state.hyperparams["max_norm"] = jnp.asarray(2.5)
    second, _ = optimizer.update(x, state)
    np.testing.assert_allclose(second, 0.5 * 2.5 * first, rtol=1e-6)


# --- normalized momentum ------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_normalized_momentum_follows_its_recursion(dtype, unit):
    gradients = np.random.default_rng(0).standard_cauchy((8, 3))
    with jax.enable_x64(dtype == np.float64):
        optimizer: Any = normalized_sgd_momentum(
            lambda count: 0.5 / (count + 1), b1=0.7
        )
        state, update = optimizer.init(jnp.zeros(3, dtype)), jax.jit(optimizer.update)
        v = np.zeros(3)
        for t, g in enumerate(gradients):
            updates, state = update(jnp.asarray(g, dtype), state)
            v = 0.7 * v + 0.3 * g
            expected = -0.5 / (t + 1) * v / np.linalg.norm(v)
            np.testing.assert_allclose(updates, expected, rtol=unit, atol=unit)
            assert updates.dtype == dtype


def test_every_step_of_normalized_momentum_has_the_same_length():
    optimizer: Any = normalized_sgd_momentum(0.1)
    state = optimizer.init(jnp.zeros(2))
    for g in ([1.0, 2.0], [1e30, -1e30], [1e-20, 0.0]):
        updates, state = optimizer.update(jnp.asarray(g), state)
        np.testing.assert_allclose(np.linalg.norm(updates), 0.1, rtol=1e-5)


def test_the_momentum_may_be_traced():
    run = lambda b1: applied(normalized_sgd_momentum(0.1, b1), jnp.ones(4))  # noqa: E731
    np.testing.assert_allclose(
        jax.jit(jax.vmap(run))(jnp.array([0.0, 0.9])),
        -0.05 * np.ones((2, 4)),
        rtol=1e-6,
    )


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: clip_by_scheduled_norm(0.0), "max_norm must be > 0, got 0.0"),
        (lambda: clip_by_scheduled_norm(-1), "max_norm must be > 0, got -1"),
        (lambda: clip_by_scheduled_norm(jnp.nan), "max_norm must be > 0, got nan"),
        (lambda: clipped_sgd(0.1, 0.0), "max_norm must be > 0, got 0.0"),
        (lambda: mom_clipped_sgd(0.1, -2.0, 3), "max_norm must be > 0, got -2.0"),
        (lambda: mom_clipped_sgd(0.1, 1.0, 4), "num_groups .*odd.*got 4"),
        (lambda: mom_clipped_sgd(0.1, 1.0, 3, smoothing=1.0), "smoothing .*key"),
        (lambda: normalized_sgd_momentum(0.1, 1.0), r"b1 .*\[0, 1\), got 1.0"),
        (lambda: normalized_sgd_momentum(0.1, -0.1), r"b1 .*\[0, 1\), got -0.1"),
    ],
)
def test_bad_arguments_are_refused(factory, message):
    with pytest.raises(ValueError, match=message):
        factory()
