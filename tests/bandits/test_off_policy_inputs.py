"""Probabilities of arms and predicted rewards: closed forms and scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from jaxopt_suite.bandits import off_policy_inputs
from jaxopt_suite.bandits.off_policy import BanditLog
from jaxopt_suite.core import Policy
from jaxopt_suite.problems.contextual import LinearContext, LinearDecision

KEY = jax.random.key(0)


def epsilon_greedy(theta, num_arms, epsilon=0.3):
    """Greedy for a fixed parameter, else uniform; its propensities are exact."""

    def select(state, context, key):
        del state
        explore_key, arm_key = jax.random.split(key)
        best = jnp.argmax(context.features @ theta)
        other = jax.random.randint(arm_key, (), 0, num_arms)
        arm = jnp.where(jax.random.uniform(explore_key) < epsilon, other, best)
        share = epsilon / num_arms
        propensity = jnp.where(arm == best, 1 - epsilon + share, share)
        return LinearDecision(arm, context.features[arm], propensity=propensity)

    return Policy(lambda key: (), select, lambda feedback, state: state)


def probabilities(policy, contexts, num_draws):
    """Jitted, for eager each operation would be compiled on its own."""
    return jax.jit(
        lambda contexts: off_policy_inputs.arm_probabilities(
            policy, (), contexts, KEY, num_arms=3, num_draws=num_draws
        )
    )(contexts)


def test_arm_probabilities_are_exact_once_every_arm_was_drawn():
    features = np.random.default_rng(0).standard_normal((20, 3, 2))
    theta = np.array([1.0, -0.5])
    policy, contexts = epsilon_greedy(jnp.asarray(theta), 3), LinearContext(features)
    expected = 0.1 + 0.7 * np.eye(3)[np.argmax(features @ theta, axis=1)]
    got = probabilities(policy, contexts, 40)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_without_propensities_the_shares_of_the_draws_stand_for_them():
    def select(state, context, key):
        return LinearDecision(jax.random.categorical(key, jnp.log(context)), context)

    policy = Policy(lambda key: (), select, lambda feedback, state: state)
    law = np.array([[0.1, 0.3, 0.6], [0.0, 1.0, 0.0]], np.float32)
    got = probabilities(policy, law, 4000)
    # Five standard errors of a share of 4000 draws: 2e-6 for three arms.
    np.testing.assert_allclose(got, law, atol=5 * 0.5 / np.sqrt(4000))
    np.testing.assert_array_equal(got[1], [0.0, 1.0, 0.0])


@pytest.mark.parametrize("shared", [True, False])
def test_rewards_are_predicted_by_folds_that_have_not_seen_them(shared):
    rng = np.random.default_rng(1)
    log = BanditLog(rng.integers(0, 3, 90), rng.uniform(size=90), np.ones(90))
    features = rng.standard_normal((90, 3, 4) if shared else (90, 4))
    got = off_policy_inputs.cross_fitted_rewards(
        log, features, num_arms=3, num_folds=3, lam=0.7
    )
    expected, rows = np.zeros((90, 3)), np.arange(90)
    for fold in range(3):
        out = rows % 3 == fold
        for arm in range(3):
            own = ~out if shared else ~out & (log.arm == arm)
            x = features[rows, log.arm] if shared else features
            ridge = Ridge(alpha=0.7, fit_intercept=False)
            ridge.fit(x[own], log.reward[own])
            new = features[out, arm] if shared else features[out]
            expected[out, arm] = ridge.predict(new)
    np.testing.assert_allclose(got, expected, atol=1e-4)
