"""Generalized linear models, and features that an encoder computes."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear_runs import decision_for

from jaxopt_suite.bandits.eqol import eqol
from jaxopt_suite.bandits.generalized import generalized_eqol, newton_update
from jaxopt_suite.bandits.neural_linear import eqol_on_features, refresh_encoder
from jaxopt_suite.bandits.ridge import ridge_init
from jaxopt_suite.core import Environment, interact
from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
MEANS = {"logistic": lambda v: 1 / (1 + np.exp(-v)), "poisson": np.exp}
SLOPES = {
    "logistic": lambda v: np.exp(-v) / (1 + np.exp(-v)) ** 2,
    "poisson": np.exp,
}


@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_a_row_is_one_newton_step(link):
    X, r = RNG.normal(size=(30, 3)), RNG.integers(0, 2, 30)
    V, theta = 0.5 * np.eye(3), np.zeros(3)
    with jax.enable_x64(True):
        state = ridge_init(3, lam=0.5)
        step = jax.jit(lambda s, x, r: newton_update(s, x, r, link=link, limit=0.8))
        for x, reward in zip(X, r, strict=True):
            state = step(state, x, reward)
            cut = np.clip(x @ theta, -0.8, 0.8)
            V += SLOPES[link](cut) * np.outer(x, x)
            theta = theta + np.linalg.solve(V, x) * (reward - MEANS[link](cut))
    np.testing.assert_allclose(state.theta, theta, atol=1e-12)
    np.testing.assert_allclose(state.V_inv, np.linalg.inv(V), atol=1e-12)
    np.testing.assert_allclose(state.logdet, np.linalg.slogdet(V / 0.5)[1], atol=1e-11)
    # The estimate is the ridge estimate of the working responses.
    np.testing.assert_allclose(state.b, V @ theta, atol=1e-11)


@pytest.mark.parametrize("link", ["logistic", "poisson"])
def test_newton_steps_find_the_parameter(link):
    truth = np.array([1.0, -0.5, 0.8])
    X = RNG.normal(size=(4000, 3)) / 2
    mean = MEANS[link](X @ truth)
    r = RNG.random(4000) < mean if link == "logistic" else RNG.poisson(mean)

    def learn(state, row):
        return newton_update(state, *row, link=link, limit=5.0), None

    rows = jnp.array(X), jnp.array(r, float)
    state, _ = jax.jit(lambda s: jax.lax.scan(learn, s, rows))(ridge_init(3))
    # The error has about the law of V^-1: 5 deviations in 6 numbers is one in 3e5.
    errors = np.abs(np.asarray(state.theta) - truth)
    deviations = np.sqrt(np.diag(np.asarray(state.V_inv)))
    assert (errors <= 5 * deviations).all()
    assert deviations.max() < 0.1


def test_a_batch_is_learned_row_by_row_in_either_layout():
    x, r = RNG.normal(size=(5, 2)), RNG.integers(0, 2, 5).astype(float)
    arms, mask = np.array([0, 1, 0, 1, 1], np.int32), np.arange(5) != 3
    for options in ({}, {"layout": "disjoint", "num_arms": 2}):
        policy = generalized_eqol(2, "logistic", **options)
        decision = decision_for(np.where(mask[:, None], x, np.nan))
        decision = decision._replace(arm=jnp.array(arms))
        batch = BanditFeedback(decision, jnp.array(r), jnp.array(mask))
        state = jax.jit(policy.update)(batch, policy.init(KEY))
        wanted, update = policy.init(KEY), jax.jit(policy.update)
        for i in np.flatnonzero(mask):
            feedback = BanditFeedback(decision_for(x[i], arms[i]), r[i])
            wanted = update(feedback, wanted)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state, wanted
        )


def clicks(d, num_arms):
    """A logistic bandit with fixed arms and rewards of 0 or 1."""

    def init(key):
        arms_key, theta_key = jax.random.split(key)
        arms = jax.random.normal(arms_key, (num_arms, d)) / np.sqrt(d)
        theta = jax.random.normal(theta_key, (d,))
        theta = 3 * theta / jnp.linalg.norm(theta)
        return (arms, jax.nn.sigmoid(arms @ theta)), LinearContext(arms)

    def step(state, decision, key):
        arms, means = state
        mean = means[decision.arm]
        reward = jax.random.bernoulli(key, mean).astype(float)
        feedback = BanditFeedback(
            decision, reward, jnp.array(True), jnp.max(means) - mean
        )
        return state, LinearContext(arms), feedback

    return Environment(init, step)


@pytest.mark.slow
def test_the_regret_on_clicks_flattens_out():
    policy = generalized_eqol(5, "logistic", bound=3.0, feature_bound=2.0)
    run = jax.jit(jax.vmap(lambda key: interact(policy, clicks(5, 20), key, 4000)))
    regret = np.asarray(run(jax.random.split(KEY, 16)).record.regret).mean(axis=0)
    # Uniform play loses more than 0.2 in a round.
    assert regret[-1] < 0.1 * 0.2 * 4000
    assert regret[-1] - regret[31] < 0.4 * regret[-1]


def test_a_nan_reward_is_no_error_but_visible():
    policy = generalized_eqol(2, "poisson")
    state = policy.init(KEY)
    for reward in (jnp.nan, 1.0):
        decision = policy.select(state, LinearContext(jnp.eye(2)), KEY)
        state = policy.update(BanditFeedback(decision, reward), state)
    assert np.isnan(state.theta).all()


def equinox_encoder(width):
    model = eqx.nn.MLP(3, width, 8, 1, key=KEY)
    params, static = eqx.partition(model, eqx.is_array)
    return lambda params, x: eqx.combine(params, static)(x), params


def flax_encoder(width):
    model = nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(width)])
    return model.apply, model.init(KEY, jnp.zeros(3))


@pytest.mark.parametrize(
    ("encoder", "layout"),
    [
        (equinox_encoder, "shared"),
        pytest.param(flax_encoder, "disjoint", marks=pytest.mark.slow),
    ],
)
def test_a_refresh_rebuilds_the_statistics_from_the_rows_kept(encoder, layout):
    encode, params = encoder(4)
    options = {"layout": layout, "num_arms": 2 if layout == "disjoint" else None}
    policy = eqol_on_features(
        encode, params, jnp.zeros(3), capacity=6, lam=0.5, **options
    )
    inner = eqol(4, lam=0.5, **options)
    select, update = jax.jit(policy.select), jax.jit(policy.update)
    select_plain, update_plain = jax.jit(inner.select), jax.jit(inner.update)
    encode = jax.jit(encode)
    state, plain, history = policy.init(KEY), inner.init(KEY), []
    for t in range(9):
        shape = (2, 3) if layout == "shared" else (3,)
        inputs = jnp.asarray(RNG.normal(size=shape), jnp.float32)
        decision = select(state, LinearContext(inputs), KEY)
        encoded = (
            encode(params, inputs)
            if layout == "disjoint"
            else jnp.stack([encode(params, x) for x in inputs])
        )
        wanted = select_plain(plain, LinearContext(encoded), KEY)
        assert int(decision.arm) == int(wanted.arm)
        history.append((np.asarray(decision.x), int(decision.arm), t / 10))
        state = update(BanditFeedback(decision, t / 10), state)
        plain = update_plain(BanditFeedback(wanted, t / 10), plain)
    np.testing.assert_allclose(state.ridge.theta, plain.theta, atol=1e-4)
    moved = jax.tree.map(lambda p: 1.5 * p, params)
    state = jax.jit(lambda s, p: refresh_encoder(encode, s, p))(state, moved)
    assert int(state.ridge.count) == 9
    for k in range(2):
        kept = [h for h in history[-6:] if layout == "shared" or h[1] == k]
        Z = np.array([encode(moved, x) for x, _, _ in kept]).reshape(-1, 4)
        V = 0.5 * np.eye(4) + Z.T @ Z
        theta = np.linalg.solve(V, Z.T @ np.array([r for _, _, r in kept]))
        index = k if layout == "disjoint" else ()
        np.testing.assert_allclose(state.ridge.theta[index], theta, atol=1e-4)
        np.testing.assert_allclose(
            state.ridge.V_inv[index], np.linalg.inv(V), atol=1e-4
        )


def test_late_feedback_is_learned_with_the_features_of_the_new_encoder():
    def encode(params, x):
        return params * x

    policy = eqol_on_features(encode, jnp.array(1.0), jnp.zeros(2), capacity=4)
    state = policy.init(KEY)
    decision = policy.select(state, LinearContext(jnp.eye(2)), KEY)
    state = refresh_encoder(encode, state, jnp.array(3.0))
    state = policy.update(BanditFeedback(decision, 1.0), state)
    np.testing.assert_allclose(state.ridge.theta, [0.3, 0.0], atol=1e-6)
    np.testing.assert_allclose(state.inputs[0], [1.0, 0.0])


@pytest.mark.slow
def test_a_trained_encoder_sees_what_a_linear_policy_cannot():
    # The reward is the product of two inputs: no linear function of them is any good.
    world = Environment(
        lambda key: ((), LinearContext(jax.random.normal(key, (5, 2)))),
        lambda state, decision, key: (
            state,
            LinearContext(jax.random.normal(key, (5, 2))),
            BanditFeedback(decision, jnp.prod(decision.x), jnp.array(True)),
        ),
    )
    encode, params = equinox_mlp()
    policy = eqol_on_features(
        encode, params, jnp.zeros(2), capacity=1000, noise=0.1, a=0.01
    )

    def loss(weights, x, r):
        params, head = weights
        return jnp.mean((jax.vmap(encode, (None, 0))(params, x) @ head - r) ** 2)

    @jax.jit
    def train(state):
        optimizer = optax.adam(1e-2)
        weights = state.params, state.ridge.theta

        def step(carry, _):
            weights, moments = carry
            grads = jax.grad(loss)(weights, state.inputs, state.rewards)
            updates, moments = optimizer.update(grads, moments)
            return (optax.apply_updates(weights, updates), moments), None

        carry = weights, optimizer.init(weights)
        (params, _), _ = jax.lax.scan(step, carry, length=2000)[0]
        return refresh_encoder(encode, state, params)

    def play(start):
        resumed = policy._replace(init=lambda key: start)
        result = interact(resumed, world, KEY, 1000)
        return result.state, result.record.reward[-1] / 1000

    state, before = jax.jit(play)(policy.init(KEY))
    _, after = jax.jit(play)(train(state))
    best = RNG.normal(size=(100_000, 5, 2)).prod(axis=2).max(axis=1).mean()
    assert float(before) < 0.5 * best
    assert float(after) > 0.7 * best


def equinox_mlp():
    model = eqx.nn.MLP(2, 16, 16, 1, activation=jnp.tanh, key=KEY)
    params, static = eqx.partition(model, eqx.is_array)
    return lambda params, x: jnp.tanh(eqx.combine(params, static)(x)), params


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generalized_eqol(2, "probit"), "link must be one of logistic, poi"),
        (lambda: generalized_eqol(2, "poisson", bound=0.0), "bound must be > 0"),
        (
            lambda: newton_update(
                ridge_init(1), jnp.ones(1), 1.0, link="poisson", limit=0.0
            ),
            "limit must be .*> 0, got 0.0",
        ),
        (
            lambda: eqol_on_features(lambda p, x: x, (), jnp.ones(2), capacity=0),
            "capacity must be an integer >= 1, got 0",
        ),
        (
            lambda: eqol_on_features(lambda p, x: x[0], (), jnp.ones(2), capacity=3),
            r"features of shape \(d,\), got \(\)",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
