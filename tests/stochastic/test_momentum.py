"""Normalization, and the exact error recursion of recursive momentum."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.stochastic import normalize, storm, symmetric_stable


def applied(transformation: Any, updates, **extra):
    state = transformation.init(updates)
    return jax.jit(transformation.update)(updates, state, **extra)[0]


# --- normalization ------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e30, 4e37])
def test_updates_become_a_unit_vector_over_the_whole_tree(size):
    tree = {
        "w": jnp.float32(size) * jnp.array([[3.0], [0.0]]),
        "b": -4 * jnp.float32(size),
    }
    transformation: Any = normalize(eps=0.0)
    state = transformation.init(tree)
    for update in (transformation.update, jax.jit(transformation.update)):
        unit, _ = update(tree, state)
        np.testing.assert_allclose(unit["w"], [[0.6], [0.0]], rtol=1e-6)
        np.testing.assert_allclose(unit["b"], -0.8, rtol=1e-6)


def test_a_spike_in_one_entry_leaves_a_unit_vector():
    x = jnp.ones(1000).at[7].set(-1e30)
    unit = np.asarray(applied(normalize(), x))
    assert unit[7] == -1.0
    assert np.all(np.isfinite(unit))


@pytest.mark.parametrize("tree", [{}, jnp.zeros(3), {"a": jnp.zeros([])}])
def test_zero_becomes_zero(tree):
    unit = applied(normalize(), tree)
    assert jax.tree.structure(unit) == jax.tree.structure(tree)
    for leaf in jax.tree.leaves(unit):
        np.testing.assert_array_equal(leaf, jnp.zeros_like(leaf))


def test_up_to_eps_a_norm_counts_as_zero():
    x = jnp.array([3.0, 4.0])
    np.testing.assert_array_equal(applied(normalize(eps=5.0), x), jnp.zeros(2))
    np.testing.assert_allclose(applied(normalize(eps=4.99), x), [0.6, 0.8], rtol=1e-6)
    sweep = jax.jit(jax.vmap(lambda eps: applied(normalize(eps), x)))
    swept = sweep(jnp.array([4.99, 5.0]))
    np.testing.assert_allclose(swept, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


def test_the_state_holds_the_norm_and_dtypes_are_kept():
    tree = {"a": jnp.full(2, 3.0, jnp.bfloat16), "b": jnp.array(4.0)}
    transformation: Any = normalize()
    unit, state = transformation.update(tree, transformation.init(tree))
    np.testing.assert_allclose(state.norm, np.sqrt(34.0), rtol=1e-6)
    assert state.norm.dtype == jnp.float32
    assert unit["a"].dtype == jnp.bfloat16
    with jax.enable_x64(True):
        x = jnp.array([3.0, 4.0], jnp.float64)
        unit, state = transformation.update(x, transformation.init(x))
        assert unit.dtype == state.norm.dtype == jnp.float64


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_values_that_are_not_finite_are_not_hidden(bad):
    assert jnp.isnan(applied(normalize(), jnp.array([1.0, bad]))).any()


# --- recursive momentum -------------------------------------------------------------


def recursion_errors(beta, noise, drift=0.3):
    """v_t - G(w_t) for G = sin and parameters that keep moving, one row a step."""
    transformation: Any = storm(beta)
    points = drift * jnp.arange(len(noise), dtype=noise.dtype)

    def step(state, inputs):
        w, w_prev, eps = inputs
        v, state = transformation.update(
            jnp.sin(w) + eps, state, updates_prev=jnp.sin(w_prev) + eps
        )
        return state, v - jnp.sin(w)

    inputs = (points, jnp.roll(points, 1), noise)
    state = transformation.init(noise[0])
    return jax.jit(lambda inputs: jax.lax.scan(step, state, inputs)[1])(inputs)


@pytest.mark.parametrize("beta", [0.1, lambda count: 1 / (1.0 + count), 1.0])
def test_the_error_follows_its_recursion_exactly(beta):
    noise = np.random.default_rng(0).standard_cauchy((200, 3))
    with jax.enable_x64(True):
        found = np.asarray(recursion_errors(beta, jnp.asarray(noise)))
    assert found.dtype == np.float64
    expected = noise[0]
    for t, eps in enumerate(noise):
        weight: Any = beta(t) if callable(beta) else beta
        expected = eps if t == 0 else (1 - weight) * expected + weight * eps
        size = 1 + np.abs(noise[: t + 1]).max()
        np.testing.assert_allclose(found[t], expected, atol=1e-10 * size, rtol=0)


def test_beta_one_returns_the_gradient_itself():
    transformation: Any = storm(1.0)
    state = transformation.init(jnp.zeros(2))
    for _ in range(3):
        v, state = transformation.update(
            jnp.array([1.0, 1e30]), state, updates_prev=jnp.array([7.0, -3.0])
        )
        np.testing.assert_array_equal(v, jnp.array([1.0, 1e30]))


def test_the_first_call_ignores_the_previous_gradient():
    v = applied(storm(0.1), jnp.ones(2), updates_prev=jnp.full(2, jnp.nan))
    np.testing.assert_array_equal(v, jnp.ones(2))


def test_beta_may_be_traced_and_a_tree_keeps_its_dtypes():
    tree = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones([])}

    def second(beta):
        transformation: Any = storm(beta)
        state = transformation.init(tree)
        _, state = transformation.update(tree, state, updates_prev=tree)
        prev = jax.tree.map(lambda x: 3 * x, tree)
        return transformation.update(tree, state, updates_prev=prev)

    # v = 1 + (1 - beta) (1 - 3).
    swept, states = jax.jit(jax.vmap(second))(jnp.array([0.25, 1.0]))
    np.testing.assert_array_equal(swept["b"], [-0.5, 1.0])
    np.testing.assert_array_equal(states.count, [2, 2])
    alone, state = jax.jit(lambda: second(0.25))()
    assert alone["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(alone["a"], swept["a"][0])
    assert {x.dtype for x in jax.tree.leaves(state.estimate)} == {jnp.dtype("float32")}


def test_it_works_in_a_chain_that_passes_the_previous_gradient_on():
    optimizer = optax.chain(storm(0.5), normalize(), optax.sgd(1.0))
    x = jnp.array([3.0, 4.0])
    update = jax.jit(optimizer.update)
    updates, _ = update(x, optimizer.init(x), x, updates_prev=x)
    np.testing.assert_allclose(updates, [-0.6, -0.8], rtol=1e-6)


def stationary_ratio(beta, chains, agents=1, seed=0):
    """Median |error| of agent means after 12 / beta steps over the median |noise|."""
    noise = symmetric_stable(1.5)
    transformation: Any = storm(beta)
    zeros = jnp.zeros((agents, chains))

    def step(state, key):
        eps = noise(key, zeros.shape)
        _, state = transformation.update(eps, state, updates_prev=eps)
        return state, None

    @jax.jit
    def run(key):
        keys = jax.random.split(key, round(12 / beta))
        state, _ = jax.lax.scan(step, transformation.init(zeros), keys)
        return jnp.median(jnp.abs(jnp.mean(state.estimate, axis=0)))

    # The median of |X| for index 1.5 and scale 1 is 0.9689 (scipy.stats.levy_stable).
    return float(run(jax.random.key(seed))) / 0.96890


@pytest.mark.parametrize(
    ("beta", "known"),
    [
        (0.5, 0.669),
        pytest.param(0.1, 0.360, marks=pytest.mark.slow),
        pytest.param(0.03, 0.238, marks=pytest.mark.slow),
    ],
)
def test_the_stationary_error_has_the_scale_of_a_stable_law(beta, known):
    # Median of 100,000: standard error 0.6 %, so that 3 % are five of them.
    expected = beta / (1 - (1 - beta) ** 1.5) ** (1 / 1.5)
    assert abs(expected - known) <= 5e-4
    assert abs(stationary_ratio(beta, 100_000) / expected - 1) <= 0.03


@pytest.mark.slow
def test_the_error_of_the_mean_of_agents_falls_with_their_stable_power():
    # The slope has a standard error of 0.003.
    agents = np.array([1, 4, 16, 64])
    errors = [stationary_ratio(0.5, 20_000, n, seed=n) for n in agents]
    slope = np.polyfit(np.log(agents), np.log(errors), 1)[0]
    assert abs(slope + (1 - 1 / 1.5)) <= 0.03


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: normalize(-1.0), "eps must be >= 0, got -1.0"),
        (lambda: storm(0.0), r"beta must be in \(0, 1\], got 0.0"),
        (lambda: storm(1.5), r"beta must be in \(0, 1\], got 1.5"),
        (lambda: applied(storm(0.5), jnp.ones(2)), "storm needs updates_prev=.*None"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
