"""Standard ensembles against direct solves with the same perturbations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_runs import decision_for, feed, kron_rows

from jaxopt_suite.bandits.ensemble import (
    ensemble_mixture,
    ensemble_sampling,
    ensemble_size,
)
from jaxopt_suite.bandits.lazy_ensemble import ensemble_values
from jaxopt_suite.bandits.linear import ridge_of
from jaxopt_suite.bandits.ridge import ridge_radius
from jaxopt_suite.core import Environment, interact
from jaxopt_suite.core.interaction import interaction_keys
from jaxopt_suite.problems.contextual import (
    BanditFeedback,
    LinearContext,
)
from jaxopt_suite.problems.linear_bandit import linear_env

KEY = jax.random.key(3)


def test_the_size_is_that_of_the_table():
    table = {
        1: [2, 3, 3, 3, 4, 4],
        5: [18, 20, 21, 22, 24, 27],
        10: [43, 46, 48, 50, 54, 61],
        50: [293, 307, 318, 327, 348, 382],
    }
    for d, sizes in table.items():
        horizons = (1e3, 1e4, 1e5, 1e6, 1e9, 1e18)
        assert [ensemble_size(d, horizon) for horizon in horizons] == sizes
    assert ensemble_size(10, 1000, c=0.5) == 22
    assert ensemble_size(1, 1) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d": 0, "horizon": 10}, "d must be an integer >= 1, got 0"),
        ({"d": 2, "horizon": 0.5}, "horizon must be >= 1, got 0.5"),
        ({"d": 2, "horizon": 10, "c": 0.0}, "c must be finite and > 0|c must be > 0"),
    ],
)
def test_a_size_of_nothing_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ensemble_size(**arguments)


def disjoint_env(p, K):
    """A fixed context with linear rewards, one parameter per arm."""

    def init(key):
        theta = jax.random.normal(key, (K, p))
        return theta, LinearContext(jnp.arange(1.0, p + 1) / p)

    def step(theta, decision, key):
        z = jax.random.normal(key, (p,))
        reward = theta[decision.arm] @ decision.x + 0.1 * z[0]
        feedback = BanditFeedback(decision, reward, jnp.array(True), jnp.zeros(()))
        return theta, LinearContext(z), feedback

    return Environment(init, step)


def unit_draws(key, m, shape, rows):
    """The starts and the reward perturbations of a run, from the policy's key."""
    member_key, noise_key = jax.random.split(key)
    normal, fold = jax.random.normal, jax.random.fold_in
    epoch = fold(member_key, 0)
    starts = jax.vmap(lambda j: normal(fold(epoch, j), shape))(jnp.arange(m))
    noise = jax.vmap(lambda s: normal(fold(noise_key, s), (m,)))(jnp.arange(rows))
    return np.asarray(starts).reshape(m, -1), np.asarray(noise)


def test_members_are_the_estimates_from_perturbed_rewards():
    # Arm by arm and from late feedback, which comes in batches.
    p, K, m, lam, v, T, delay = 2, 3, 6, 0.7, 0.4, 60, 3
    with jax.enable_x64(True):
        policy = ensemble_sampling(
            p, m, lam=lam, scale=v, layout="disjoint", num_arms=K
        )
        env = disjoint_env(p, K)
        run = jax.jit(
            lambda key: interact(policy, env, key, T, delays=delay, record="full")
        )
        result = run(KEY)
        record, state = jax.tree.map(np.asarray, result.record), result.state
        count = int(state.ridge.count)
        starts, noise = unit_draws(interaction_keys(KEY).policy, m, (K, p), count)
        theta, offsets = np.asarray(state.ridge.theta), np.asarray(state.offsets)
    assert count == T - delay
    X = kron_rows(record.decision.x[:count], record.decision.arm[:count], K)
    V = lam * np.eye(K * p) + X.T @ X
    right = X.T @ record.feedback.reward[:count]
    right = right[:, None] + v * (np.sqrt(lam) * starts.T + X.T @ noise)
    got = (theta + v * offsets).reshape(m, -1)
    np.testing.assert_allclose(got, np.linalg.solve(V, right).T, atol=1e-10)
    assert len(set(record.decision.member.tolist())) == m


@pytest.mark.slow
def test_offsets_have_the_law_of_posterior_draws():
    # 20000 members: an entry is off by 0.05 with probability below 1e-6.
    policy = ensemble_sampling(3, 20000, lam=2.0, scale=0.3)
    xs = np.random.default_rng(0).normal(size=(20, 3))
    _, state, _ = feed(policy, KEY, jnp.asarray(xs), jnp.ones(20))
    V = 2 * np.eye(3) + xs.T @ xs
    white = np.asarray(state.offsets) @ np.linalg.cholesky(V)
    np.testing.assert_allclose(np.cov(white.T, bias=True), np.eye(3), atol=0.05)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=0.05)


# The last arm would often be the best, and is masked where a mask is given.
CONTEXT = LinearContext(jnp.array([[1.0, 0.0], [0.0, 1.0], [-0.5, 0.5], [9.0, 9.0]]))


def a_state(policy):
    """A state after two rows."""
    xs, rewards = jnp.array([[1.0, 0.5], [0.2, -1.0]]), jnp.array([1.0, 0.3])
    return feed(policy, KEY, xs, rewards)[1]


def many_decisions(policy, state, context, num=64):
    keys = jax.random.split(jax.random.key(9), num)
    select = jax.jit(jax.vmap(policy.select, in_axes=(None, None, 0)))
    return keys, select(state, context, keys)


@pytest.mark.parametrize(
    "symmetrized", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_round_follows_one_member_drawn_uniformly(symmetrized):
    policy = ensemble_sampling(2, 3, scale=0.5, symmetrized=symmetrized)
    state = a_state(policy)
    context = CONTEXT._replace(mask=jnp.array([True, True, True, False]))
    _, decision = many_decisions(policy, state, context, 3000)
    offsets = 0.5 * np.asarray(state.offsets)[decision.member]
    parts = np.sum(offsets * decision.x, axis=1)
    signs = np.round(np.asarray(decision.bonus) / parts)
    np.testing.assert_allclose(decision.bonus, signs * parts, rtol=1e-4, atol=1e-6)
    X = np.asarray(CONTEXT.features)[:3]
    values = (np.asarray(state.ridge.theta) + signs[:, None] * offsets) @ X.T
    np.testing.assert_array_equal(decision.arm, values.argmax(axis=1))
    np.testing.assert_allclose(decision.score, values.max(axis=1), rtol=1e-4)
    # 3000 fair draws: a share is off by 0.05 with probability below 1e-6.
    shares = np.bincount(decision.member, minlength=3) / 3000
    np.testing.assert_allclose(shares, 1 / 3, atol=0.05)
    for member in range(3):
        mean = signs[np.asarray(decision.member) == member].mean()
        # 1000 signs each: off by 0.15 with probability below 1e-5.
        assert abs(mean) < 0.15 if symmetrized else mean == 1
    if not symmetrized:
        np.testing.assert_allclose(
            ensemble_values(state, X)[decision.member], values, rtol=1e-4, atol=1e-6
        )


@pytest.mark.slow
def test_a_mixture_follows_all_members():
    policy = ensemble_mixture(2, 4, scale=0.5)
    state = a_state(policy)
    keys, decision = many_decisions(policy, state, CONTEXT)
    zeta = np.asarray(jax.vmap(lambda key: jax.random.normal(key, (4,)))(keys))
    mixed = state.ridge.theta + 0.5 * zeta @ np.asarray(state.offsets) / 2
    values = np.asarray(mixed) @ np.asarray(CONTEXT.features).T
    np.testing.assert_array_equal(decision.arm, values.argmax(axis=1))
    np.testing.assert_allclose(decision.score, values.max(axis=1), rtol=1e-4)
    assert np.all(np.asarray(decision.member) == -1)


@pytest.mark.slow
def test_the_scale_may_follow_the_statistics():
    policy = ensemble_sampling(2, 3, scale=ridge_radius)
    state = a_state(policy)
    assert float(state.scale) == float(ridge_radius(ridge_of(state)))
    assert float(state.scale) > float(policy.init(KEY).scale)
    fixed = a_state(ensemble_sampling(2, 3))
    np.testing.assert_array_equal(state.offsets, fixed.offsets)


@pytest.mark.slow
def test_one_of_everything_works():
    policy = ensemble_sampling(1, 1)
    result = interact(policy, linear_env(1, 1, noise=0.1), KEY, 1, record="full")
    assert int(result.record.decision.arm[0]) == 0
    assert result.state.offsets.shape == (1, 1)


@pytest.mark.slow
def test_a_reward_of_nan_shows_and_one_behind_a_mask_does_not():
    policy = ensemble_sampling(2, 3)
    start = a_state(policy)
    update = jax.jit(policy.update)
    feedback = BanditFeedback(decision_for(jnp.ones(2)), jnp.nan, jnp.array(False))
    masked = update(feedback, start)
    jax.tree.map(np.testing.assert_array_equal, masked.offsets, start.offsets)
    assert np.all(np.isfinite(masked.ridge.theta))
    seen = update(feedback._replace(mask=jnp.array(True)), start)
    assert np.all(np.isnan(seen.ridge.theta))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_members": 0}, "num_members must be an integer >= 1, got 0"),
        ({"scale": -1.0}, "scale must be > 0, got -1.0|finite and > 0"),
        ({"d": 0}, "d must be an integer >= 1, got 0"),
        ({"lam": 0.0}, "lam must be > 0, got 0.0|finite and > 0"),
        ({"layout": "disjoint"}, "layout='disjoint' needs num_arms"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    for factory in (ensemble_sampling, ensemble_mixture):
        with pytest.raises(ValueError, match=message):
            factory(**{"d": 2, "num_members": 3} | options)
