"""The running ridge regression against direct solves in NumPy's float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.ridge import (
    ridge_init,
    ridge_predictions,
    ridge_radius,
    ridge_refactor,
    ridge_update,
    ridge_update_batch,
    ridge_widths,
)


def sphere_rows(d, horizon, length=1.0, seed=0):
    """Rows of a given length and noisy linear rewards, in float64."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(horizon, d))
    X *= length / np.linalg.norm(X, axis=1, keepdims=True)
    theta = rng.normal(size=d)
    return X, X @ theta / np.linalg.norm(theta) + 0.1 * rng.normal(size=horizon)


def direct(X, r, lam=1.0, weights=None):
    """``V``, ``theta`` and ``logdet`` by one solve."""
    weights = np.ones(len(X)) if weights is None else weights
    V = lam * np.eye(X.shape[1]) + (X * weights[:, None]).T @ X
    logdet = np.linalg.slogdet(V)[1] - X.shape[1] * np.log(lam)
    return V, np.linalg.solve(V, X.T @ (weights * r)), logdet


update = jax.jit(ridge_update)
update_batch = jax.jit(ridge_update_batch)
refactor = jax.jit(ridge_refactor)


@jax.jit
def learn_all(state, X, r):
    def step(state, row):
        return ridge_update(state, *row), None

    return jax.lax.scan(step, state, (X, r))[0]


def relative(got, wanted):
    return np.linalg.norm(np.asarray(got) - wanted) / np.linalg.norm(wanted)


def assert_matches(state, X, r, lam, tolerance, blocks=None):
    """One state against direct solves, one for each block."""
    per_arm = [np.ones(len(X), bool)] if blocks is None else blocks
    logdet = 0.0
    for k, mine in enumerate(per_arm):
        V, theta, growth = direct(X[mine], r[mine], lam)
        index = () if blocks is None else k
        logdet += growth
        np.testing.assert_allclose(
            state.V_inv[index], np.linalg.inv(V), atol=tolerance, rtol=tolerance
        )
        np.testing.assert_allclose(state.theta[index], theta, atol=tolerance)
        np.testing.assert_allclose(state.b[index], X[mine].T @ r[mine], atol=tolerance)
        if state.gram is not None:
            np.testing.assert_allclose(state.gram[index], V, atol=tolerance)
    np.testing.assert_allclose(state.logdet, logdet, atol=10 * tolerance)


@pytest.mark.parametrize(
    ("d", "horizon"),
    [(20, 20_000), pytest.param(100, 5000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_rank_one_updates_stay_exact(d, horizon, dtype):
    X, r = sphere_rows(d, horizon)
    V, theta, logdet = direct(X, r)
    with jax.enable_x64(dtype == "float64"):
        state = learn_all(ridge_init(d), X.astype(dtype), r.astype(dtype))
        assert state.theta.dtype == dtype
        assert int(state.count) == horizon
    bounds = (1e-4, 1e-3, 5e-3) if dtype == "float32" else (1e-10, 1e-10, 1e-10)
    assert relative(state.theta, theta) <= bounds[0]
    assert relative(state.V_inv, np.linalg.inv(V)) <= bounds[1]
    assert abs(float(state.logdet) - logdet) <= bounds[2]
    assert np.abs(state.V_inv - state.V_inv.T).max() <= 1e-6


def test_long_rows_and_little_regularization():
    X, r = sphere_rows(10, 2000, length=100.0)
    V, theta, logdet = direct(X, r, lam=1e-3)
    with jax.enable_x64(True):
        state = learn_all(ridge_init(10, lam=1e-3), X, r)
    assert relative(state.theta, theta) <= 1e-6
    assert relative(state.V_inv, np.linalg.inv(V)) <= 1e-6
    assert abs(float(state.logdet) - logdet) <= 1e-6


@pytest.mark.parametrize("layout", ["shared", "disjoint"])
@pytest.mark.parametrize("size", [3, 20])
def test_a_masked_batch_is_a_sequence_of_updates(layout, size):
    X, r = sphere_rows(4, size, seed=1)
    keep = np.arange(size) % 3 != 1
    arms = np.arange(size, dtype=np.int32) % 2 if layout == "disjoint" else None
    blocks = None if arms is None else [keep & (arms == k) for k in range(2)]
    # Whatever stands in an empty slot must not matter.
    given, rewards = np.where(keep[:, None], X, np.nan), np.where(keep, r, np.inf)
    with jax.enable_x64(True):
        start = ridge_init(
            4, lam=0.5, layout=layout, num_arms=arms if arms is None else 2
        )
        state = update_batch(start, given, rewards, keep, arm=arms)
        none = update_batch(state, given, rewards, np.zeros(size, bool), arm=arms)
    if blocks is None:
        assert_matches(state, X[keep], r[keep], 0.5, 1e-12)
    else:
        assert_matches(state, X, r, 0.5, 1e-12, blocks)
    assert int(state.count) == keep.sum()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), none, state)


def test_a_weight_counts_the_row_that_often():
    X, r = sphere_rows(3, 6, seed=2)
    weights = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 0.1])
    V, theta, logdet = direct(X, r, 1.0, weights)
    with jax.enable_x64(True):
        state = ridge_init(3)
        for x, reward, weight in zip(X, r, weights, strict=True):
            state = update(state, x, reward, weight=weight)
    np.testing.assert_allclose(state.V_inv, np.linalg.inv(V), atol=1e-14)
    np.testing.assert_allclose(state.theta, theta, atol=1e-14)
    np.testing.assert_allclose(state.logdet, logdet, atol=1e-14)


@pytest.mark.parametrize("layout", ["shared", "disjoint"])
def test_forgotten_rows_fade_geometrically(layout):
    forget, lam, horizon = 0.7, 0.5, 6
    X, r = sphere_rows(3, horizon, seed=3)
    fade = forget ** np.arange(horizon)[::-1]
    arms = np.arange(horizon) % 2
    with jax.enable_x64(True):
        state = ridge_init(3, lam=lam, layout=layout, num_arms=2, keep_gram=True)
        once = state
        for x, reward, arm in zip(X, r, arms, strict=True):
            where = jnp.asarray(arm) if layout == "disjoint" else None
            state = update(state, x, reward, forget=forget, arm=where)
            once = update(once, x, reward, forget=1.0, arm=where)
    groups = [arms == k for k in range(2)] if layout == "disjoint" else [arms >= 0]
    total = 0.0
    for k, mine in enumerate(groups):
        V, theta, logdet = direct(X[mine], r[mine], lam, fade[mine])
        index = k if layout == "disjoint" else ()
        np.testing.assert_allclose(state.V_inv[index], np.linalg.inv(V), atol=1e-13)
        np.testing.assert_allclose(state.theta[index], theta, atol=1e-13)
        total += logdet
    np.testing.assert_allclose(state.logdet, total, atol=1e-13)
    # A traced factor of 1 forgets nothing.
    blocks = groups if layout == "disjoint" else None
    assert_matches(once, X, r, lam, 1e-12, blocks)


@pytest.mark.parametrize("layout", ["shared", "disjoint"])
def test_refactoring_removes_rounding(layout):
    X, r = sphere_rows(4, 30, seed=4)
    arms = np.arange(30, dtype=np.int32) % 2 if layout == "disjoint" else None
    state = ridge_init(
        4, layout=layout, num_arms=None if arms is None else 2, keep_gram=True
    )
    state = update_batch(state, X, r, arm=arms)
    spoilt = state._replace(
        V_inv=state.V_inv + 0.1, theta=state.theta * 2, logdet=state.logdet - 1
    )
    blocks = None if arms is None else [arms == k for k in range(2)]
    assert_matches(refactor(spoilt), X, r, 1.0, 1e-5, blocks)
    # Later updates go on from what was recomputed.
    more = update_batch(refactor(spoilt), X, r, arm=arms)
    twice = blocks and [np.tile(mine, 2) for mine in blocks]
    assert_matches(more, np.tile(X, (2, 1)), np.tile(r, 2), 1.0, 1e-5, twice)


def test_disjoint_blocks_are_the_shared_layout_with_kron_features():
    p, K, rng = 3, 4, np.random.default_rng(5)
    with jax.enable_x64(True):
        disjoint = ridge_init(p, layout="disjoint", num_arms=K)
        shared = ridge_init(K * p)
        for _ in range(10):
            z, arm, reward = rng.normal(size=p), rng.integers(K), rng.normal()
            disjoint = update(disjoint, z, reward, arm=arm)
            shared = update(shared, np.kron(np.eye(K)[arm], z), reward)
        X = np.kron(np.eye(K), z)
        for ask in (ridge_widths, ridge_predictions):
            np.testing.assert_allclose(ask(disjoint, z), ask(shared, X), atol=1e-13)
        for noise in (0.0, 0.3):
            ask = partial(ridge_radius, noise=noise, bound=2.0, conf=0.05)
            np.testing.assert_allclose(ask(disjoint), ask(shared), atol=1e-13)


def test_widths_and_radius_have_their_closed_forms():
    X, r = sphere_rows(3, 9, seed=6)
    V, _, logdet = direct(X, r, 2.0)
    state = update_batch(ridge_init(3, lam=2.0), X, r)
    arms = np.concatenate([X, np.zeros((1, 3))])
    squares = np.sum(arms @ np.linalg.inv(V) * arms, axis=1)
    np.testing.assert_allclose(ridge_widths(state, arms), squares**0.5, atol=1e-6)
    for conf in (0.05, 1e-300):
        wanted = 0.3 * np.sqrt(logdet - 2 * np.log(conf)) + np.sqrt(2.0) * 1.5
        got = ridge_radius(state, noise=0.3, bound=1.5, conf=conf)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_width_of_zero_has_a_finite_gradient_and_rounding_below_it_is_cut():
    state = ridge_init(2)
    slope = jax.grad(lambda x: jnp.sum(ridge_widths(state, x)))(jnp.zeros((2, 2)))
    np.testing.assert_array_equal(slope, 0.0)
    rounded = state._replace(V_inv=-1e-9 * jnp.eye(2))
    np.testing.assert_array_equal(ridge_widths(rounded, jnp.eye(2)), 0.0)
    unknown = state._replace(V_inv=jnp.nan * jnp.eye(2))
    assert np.isnan(ridge_widths(unknown, jnp.eye(2))).all()


def test_a_zero_row_only_counts_and_a_nan_reward_stays_visible():
    start = update(ridge_init(2), jnp.ones(2), 1.0)
    state = update(start, jnp.zeros(2), 5.0)
    assert int(state.count) == 2
    same = state._replace(count=start.count)
    jax.tree.map(np.testing.assert_array_equal, same, start)
    assert np.isnan(update(start, jnp.ones(2), jnp.nan).theta).all()


SHARED, DISJOINT = ridge_init(2), ridge_init(2, layout="disjoint", num_arms=3)
ROW = jnp.ones(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ridge_init(0), "d must be an integer >= 1, got 0"),
        (lambda: ridge_init(2, lam=0.0), "lam must be > 0, got 0.0"),
        (lambda: ridge_init(2, layout="wide"), "layout must be one of shared, disj"),
        (lambda: ridge_init(2, layout="disjoint"), "disjoint' needs num_arms"),
        (
            lambda: ridge_init(2, layout="disjoint", num_arms=0),
            "num_arms must be an integer >= 1, got 0",
        ),
        (lambda: ridge_update(SHARED, jnp.ones(3), 0.0), r"axis of width 2, got \(3,"),
        (lambda: ridge_update(SHARED, ROW, 0.0, weight=-1.0), "weight must be >= 0"),
        (lambda: ridge_update(SHARED, ROW, 0.0, forget=0.0), r"forget must be in \(0"),
        (lambda: ridge_update(SHARED, ROW, 0.0, forget=1.5), r"forget must be in \(0"),
        (lambda: ridge_update(SHARED, ROW, 0.0, forget=0.5), "keep_gram=True"),
        (lambda: ridge_update(SHARED, ROW, 0.0, arm=0), "arm must be None for a sha"),
        (lambda: ridge_update(DISJOINT, ROW, 0.0), "arm is needed to learn"),
        (lambda: ridge_update(DISJOINT, ROW, 0.0, arm=3), r"arm must be in \[0, 2\]"),
        (lambda: ridge_update_batch(SHARED, jnp.ones((2, 2)), jnp.ones(3)), "rows"),
        (lambda: ridge_radius(SHARED, conf=1.0), r"conf must be in \(0, 1\), got 1.0"),
        (lambda: ridge_radius(SHARED, noise=-1.0), "noise must be"),
        (lambda: ridge_radius(SHARED, bound=-1.0), "bound must be"),
        (lambda: ridge_refactor(SHARED), "keep_gram=True"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
