"""Rare switches: which state acts, and what zero growth gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_runs import watch

from jaxopt_suite.bandits.eqol import eqol
from jaxopt_suite.bandits.lazy import lazy, rare_oful
from jaxopt_suite.bandits.linear import ridge_of
from jaxopt_suite.bandits.optimism import oful
from jaxopt_suite.core import Policy, interact
from jaxopt_suite.problems.linear_bandit import linear_env

KEY = jax.random.key(2)


@pytest.mark.slow
def test_zero_growth_is_the_policy_itself():
    env = linear_env(3, 6, noise=0.3, arms="iid")
    with jax.enable_x64(True):
        policy = eqol(3, noise=0.3)
        runs = [
            jax.jit(lambda key, p=p: interact(p, env, key, 1000, record="full"))(KEY)
            for p in (policy, lazy(policy, growth=0.0))
        ]
    plain, wrapped = runs
    np.testing.assert_array_equal(
        plain.record.decision.arm, wrapped.record.decision.arm
    )
    np.testing.assert_array_equal(wrapped.record.decision.epoch, np.arange(1000))
    jax.tree.map(np.testing.assert_array_equal, plain.state, wrapped.state.acting)


def test_between_refreshes_the_old_state_acts_and_the_new_one_learns():
    env = linear_env(3, 5, noise=0.3, arms="iid")
    policy = rare_oful(3, noise=0.3, growth=2.0)
    trace, states, last = watch(policy, env, KEY, 150)
    refreshed = np.asarray(states.refreshed)
    assert 3 <= refreshed.sum() == int(last.epoch) < 20
    # The state that acts in a round is the one after the last refresh before it.
    now = np.asarray(states.current.count)
    np.testing.assert_array_equal(now, np.arange(1, 151))
    expected = np.maximum.accumulate(np.where(refreshed, now, 0))
    np.testing.assert_array_equal(states.acting.count, expected)
    np.testing.assert_array_equal(ridge_of(last).theta, last.current.theta)
    epochs = np.concatenate([[0], refreshed.cumsum()[:-1]])
    np.testing.assert_array_equal(trace.decision.epoch, epochs)
    # The scores are those of the acting state.
    inverse = np.concatenate([np.eye(3)[None], states.acting.V_inv[:-1]])
    theta = np.concatenate([np.zeros((1, 3)), states.acting.theta[:-1]])
    logdet = np.concatenate([[0], states.acting.logdet[:-1]])
    x = np.asarray(trace.decision.x)
    width = np.sqrt(np.einsum("ti,tij,tj->t", x, inverse, x))
    radius = 0.3 * np.sqrt(2 * np.log(100) + logdet) + 1
    score = np.einsum("ti,ti->t", x, theta) + radius * width
    np.testing.assert_allclose(trace.decision.score, score, rtol=1e-4)


@pytest.mark.slow
def test_the_trace_trigger_knows_the_drift():
    env = linear_env(3, 5, noise=0.3)
    policy = lazy(oful(3, noise=0.3), trigger="trace")
    _, states, last = watch(policy, env, KEY, 150)
    assert int(last.epoch) >= 3
    V = np.linalg.inv(np.asarray(states.current.V_inv, np.float64))
    factor = np.asarray(states.factor, np.float64)
    drift = np.swapaxes(factor, 1, 2) @ V @ factor
    np.testing.assert_allclose(states.drift, drift, atol=2e-3)
    excess = np.trace(drift, axis1=1, axis2=2) - 3
    assert excess.max() <= 1 + 2e-3
    np.testing.assert_allclose(excess[np.asarray(states.refreshed)], 0, atol=2e-3)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"growth must be >= 0, got -1.0"):
        lazy(oful(2), growth=-1.0)
    with pytest.raises(ValueError, match="trigger must be one of logdet"):
        rare_oful(2, trigger="det")
    with pytest.raises(ValueError, match="d must be an integer >= 1, got 0"):
        rare_oful(0)
    nothing = Policy(lambda key: (jnp.zeros(()),), lambda *_: 0, lambda f, s: s)
    with pytest.raises(ValueError, match="RidgeState or have a field ridge, got tuple"):
        lazy(nothing).init(KEY)
