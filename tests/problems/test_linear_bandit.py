"""Linear bandit environments: laws of what is drawn, and the arithmetic of a round.

Every Kolmogorov-Smirnov test here fails by chance in one run of 1e5.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxopt_suite.core import Policy, interact
from jaxopt_suite.problems import linear_bandit
from jaxopt_suite.problems.contextual import LinearDecision

KEY = jax.random.key(3)
CHANCE = 1e-5


def random_arms(context, key):
    arm = jax.random.randint(key, (), 0, len(context.features))
    return LinearDecision(arm, context.features[arm])


GUESS = Policy(
    init=lambda key: jnp.zeros([]),
    select=lambda state, context, key: random_arms(context, key),
    update=lambda feedback, state: state,
)


def follows(draws, law):
    return stats.kstest(np.asarray(draws, np.float64), law.cdf).pvalue > CHANCE


@pytest.mark.parametrize("features", linear_bandit.FEATURES)
def test_features_follow_their_law(features):
    draw = jax.jit(lambda key: linear_bandit.draw_features(key, (4000, 3), features))
    x = np.asarray(draw(KEY))
    radius = np.linalg.norm(x, axis=1)
    if features == "gauss":
        assert all(follows(x[:, j] * np.sqrt(3), stats.norm()) for j in range(3))
        correlation = np.corrcoef(x.T) - np.eye(3)
        # 5 standard errors of a correlation, three of them: 2e-6.
        assert np.abs(correlation).max() < 5 / np.sqrt(4000)
        return
    # On the sphere in three dimensions each coordinate is uniform (Archimedes), and so
    # is the angle around each axis.
    assert all(follows(x[:, j] / radius, stats.uniform(-1, 2)) for j in range(3))
    angle = np.arctan2(x[:, 1], x[:, 0])
    assert follows(angle, stats.uniform(-np.pi, 2 * np.pi))
    if features == "sphere":
        np.testing.assert_allclose(radius, 1.0, rtol=1e-6)
    else:
        assert follows(radius**3, stats.uniform())


@pytest.mark.parametrize("arms", ["pool", pytest.param("iid", marks=pytest.mark.slow)])
def test_a_record_can_be_checked_round_by_round(arms):
    horizon, noise, norm = 600, 0.5, 2.0
    env = linear_bandit.linear_env(
        3, 4, noise=noise, arms=arms, pool=7, theta_norm=norm, features="ball"
    )
    run = jax.jit(lambda key: interact(GUESS, env, key, horizon, record="full"))
    result = run(KEY)
    theta = np.asarray(result.environment.theta, np.float64)
    assert np.linalg.norm(theta) == pytest.approx(norm, rel=1e-6)
    assert int(result.environment.round) == horizon
    show = jax.vmap(
        lambda t: linear_bandit.arms_shown(result.environment, t, features="ball")
    )
    shown = np.asarray(jax.jit(show)(jnp.arange(horizon)))
    period = 7 if arms == "pool" else horizon
    assert len(np.unique(shown, axis=0)) == period
    np.testing.assert_array_equal(shown, shown[np.arange(horizon) % period])
    feedback = result.record.feedback
    rounds, arm = np.arange(horizon), np.asarray(feedback.decision.arm)
    np.testing.assert_allclose(feedback.decision.x, shown[rounds, arm], atol=1e-6)
    means = shown @ theta
    played = means[rounds, arm]
    np.testing.assert_allclose(feedback.regret, means.max(1) - played, atol=1e-6)
    assert np.all(np.asarray(feedback.regret) >= 0.0)
    assert follows((np.asarray(feedback.reward) - played) / noise, stats.norm())


@pytest.mark.slow
def test_the_parameter_is_uniform_on_its_sphere_and_its_norm_may_be_traced():
    def theta(norm, key):
        env = linear_bandit.linear_env(3, 1, noise=0.0, theta_norm=norm)
        return env.init(key)[0].theta

    norms = jnp.linspace(0.5, 3.0, 3000)
    found = np.asarray(jax.jit(jax.vmap(theta))(norms, jax.random.split(KEY, 3000)))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), norms, rtol=1e-5)
    unit = found / np.asarray(norms)[:, None]
    assert all(follows(unit[:, j], stats.uniform(-1, 2)) for j in range(3))


def test_in_the_gap_problem_one_arm_leads_by_the_gap():
    def start(gap, key):
        state, context = linear_bandit.gap_env(3, 4, gap, noise=0.1).init(key)
        return state.theta, context.features

    gaps = jnp.linspace(0.01, 1.5, 2000)
    keys = jax.random.split(KEY, 2000)
    theta, x = map(np.asarray, jax.jit(jax.vmap(start))(gaps, keys))
    assert all(follows(theta[:, j], stats.uniform(-1, 2)) for j in range(3))
    np.testing.assert_allclose(np.linalg.norm(x, axis=2), 1.0, atol=1e-5)
    means = np.einsum("nkd,nd->nk", x, theta)
    expected = np.stack([np.full(2000, 0.5), *[0.5 - np.asarray(gaps)] * 3], axis=1)
    np.testing.assert_allclose(means, expected, atol=1e-6)
    # Across theta each arm has its own uniform direction: measured from a basis of the
    # plane that does not depend on how the arms were made.
    first = np.cross(theta, [0.0, 0.0, 1.0])
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(theta, first)
    for arm in (0, 1, 3):
        angle = np.arctan2(*[np.sum(x[:, arm] * e, axis=1) for e in (first, second)])
        usable = np.abs(means[:, arm]) < 0.99
        assert follows(angle[usable], stats.uniform(-np.pi, 2 * np.pi))


@pytest.mark.slow
def test_with_two_dimensions_the_other_direction_is_one_of_two():
    env = linear_bandit.gap_env(2, 2, 0.25, noise=0.0)
    state, context = jax.jit(jax.vmap(env.init))(jax.random.split(KEY, 1000))
    theta, x = np.asarray(state.theta), np.asarray(context.features)
    turn = theta[:, 0] * x[:, 0, 1] - theta[:, 1] * x[:, 0, 0]
    np.testing.assert_allclose(np.abs(turn), np.sqrt(0.75), atol=1e-5)
    assert stats.binomtest(int(np.sum(turn > 0)), 1000).pvalue > CHANCE


@pytest.mark.slow
def test_one_arm_in_one_dimension():
    env = linear_bandit.linear_env(1, 1, noise=0.0)

    @jax.jit
    def first_round():
        state, context = env.init(KEY)
        return state, env.step(state, random_arms(context, KEY), KEY)[2]

    state, feedback = first_round()
    assert state.sets.shape == (1, 1, 1)  # fixed: one set for ever
    assert abs(float(feedback.reward)) == pytest.approx(1.0)
    assert float(feedback.regret) == 0.0


def test_float64_is_kept():
    env = linear_bandit.gap_env(3, 4, 0.2, noise=0.1)
    with jax.enable_x64(True):
        state, context = jax.eval_shape(env.init, KEY)
        decision = jax.eval_shape(random_arms, context, KEY)
        *_, feedback = jax.eval_shape(env.step, state, decision, KEY)
    assert context.features.dtype == state.theta.dtype == np.float64
    assert feedback.reward.dtype == feedback.regret.dtype == np.float64
    assert state.round.dtype == np.int32
