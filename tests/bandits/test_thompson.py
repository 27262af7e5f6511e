"""Thompson sampling and perturbed histories: the law of their draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_runs import decision_for, kron_rows

from jaxopt_suite.bandits.ridge import ridge_radius
from jaxopt_suite.bandits.thompson import downdate_factor, lin_phe, lin_ts
from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext

KEY = jax.random.key(0)
D, K, LAM, NUM_DRAWS = 3, 2, 0.7, 20_000
RNG = np.random.default_rng(0)
ROWS, REWARDS = RNG.normal(size=(12, D)), RNG.normal(size=12)
ARMS = np.arange(12, dtype=np.int32) % K


def learned(policy, size=4):
    """The state after all rows, in batches of ``size``, each with an empty slot."""
    state = policy.init(KEY)
    update = jax.jit(policy.update)
    for start in range(0, 12, size):
        mine = slice(start, start + size)
        x = np.concatenate([ROWS[mine], np.full((1, D), np.nan)])
        arm = np.append(ARMS[mine], 0)
        decision = decision_for(x)._replace(arm=jnp.asarray(arm, jnp.int32))
        reward = jnp.append(jnp.asarray(REWARDS[mine]), jnp.nan)
        mask = jnp.arange(size + 1) < size
        state = update(BanditFeedback(decision, reward, mask), state)
    return state


def posterior(layout):
    """Mean and covariance at unit scale of ``<x, theta>`` at the test arms."""
    X = ROWS if layout == "shared" else kron_rows(ROWS, ARMS, K).reshape(12, -1)
    V = LAM * np.eye(X.shape[1]) + X.T @ X
    z = RNG.normal(size=D)
    arms = RNG.normal(size=(K, D)) if layout == "shared" else np.kron(np.eye(K), z)
    context = arms if layout == "shared" else z
    return (
        arms @ np.linalg.solve(V, X.T @ REWARDS),
        arms @ np.linalg.inv(V) @ arms.T,
        jnp.array(context),
    )


def sampled_scores(policy, state, features):
    """Draws of the scores and bonuses of all arms, (draws, K); masks change no draw."""

    @jax.jit
    @jax.vmap
    def draw(key):
        def score(mask):
            decision = policy.select(state, LinearContext(features, mask), key)
            return decision.score, decision.bonus

        return jax.vmap(score)(jnp.eye(K, dtype=bool))

    return jax.tree.map(
        lambda x: np.asarray(x, np.float64), draw(jax.random.split(KEY, NUM_DRAWS))
    )


OPTIONS = {
    "shared": {"lam": LAM},
    "disjoint": {"lam": LAM, "layout": "disjoint", "num_arms": K},
}


def ts(**options):
    return lin_ts(D, scale=0.6, **options)


def ts_in_theory(**options):
    return lin_ts(D, noise=0.3, conf=0.1, **options)


def phe(**options):
    return lin_phe(D, perturb=0.6, horizon=20, **options)


@pytest.mark.parametrize(
    ("layout", "make", "scale"),
    [
        ("shared", ts, 0.6),
        ("shared", ts_in_theory, None),
        ("shared", phe, 0.6),
        ("disjoint", ts, 0.6),
        ("disjoint", phe, 0.6),
    ],
)
def test_scores_have_the_law_of_the_posterior(layout, make, scale):
    policy = make(**OPTIONS[layout])
    state = learned(policy)
    means, covariance, features = posterior(layout)
    if scale is None:
        scale = float(ridge_radius(state.ridge, noise=0.3, conf=0.1))
    scores, bonuses = sampled_scores(policy, state, features)
    # The bonus is what the draw adds to the prediction.
    np.testing.assert_allclose(
        scores - bonuses, np.broadcast_to(means, scores.shape), atol=1e-5
    )
    draws = (scores - means) / scale
    # Whitened, they are standard normal. 5 standard errors each: 5 numbers in 5 cases
    # raise a false alarm with probability below 2e-5.
    white = draws @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert (np.abs(white.mean(axis=0)) <= 5 / NUM_DRAWS**0.5).all()
    errors = np.cov(white.T) - np.eye(K)
    assert (np.abs(np.diag(errors)) <= 5 * (2 / NUM_DRAWS) ** 0.5).all()
    assert abs(errors[0, 1]) <= 5 / NUM_DRAWS**0.5


def test_the_factor_stays_a_factor_of_the_inverse():
    downdate, V = jax.jit(downdate_factor), LAM * np.eye(D)
    factor = jnp.eye(D) / np.sqrt(LAM)
    for x in ROWS:
        factor = downdate(factor, jnp.asarray(x))
        V += np.outer(x, x)
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(V), atol=1e-6)
    # A row of zeros, or one too small to notice, changes nothing.
    for x in (jnp.zeros(D), 1e-30 * jnp.ones(D)):
        np.testing.assert_array_equal(downdate(factor, x), factor)


@pytest.mark.parametrize(
    "policy",
    [lin_ts(D), lin_phe(D, perturb=1, horizon=9, **OPTIONS["disjoint"])],
    ids=["ts", "phe"],
)
def test_one_row_at_a_time_is_a_batch(policy):
    state, update = policy.init(KEY), jax.jit(policy.update)
    for x, arm, r in zip(ROWS, ARMS, REWARDS, strict=True):
        decision = decision_for(x, arm)
        state = update(BanditFeedback(decision, r, jnp.array(True)), state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        learned(policy),
        state,
    )


def test_a_full_history_forgets_the_noise_of_its_oldest_rows():
    policy = lin_phe(D, perturb=0.5, horizon=5, **OPTIONS["disjoint"])
    state = learned(policy)
    np.testing.assert_allclose(
        np.sort(state.rows, axis=0), np.sort(ROWS[-5:], axis=0), rtol=1e-6
    )
    for row, arm in zip(np.asarray(state.rows), np.asarray(state.arms), strict=True):
        (place,) = np.flatnonzero(np.isclose(ROWS, row).all(axis=1))
        assert ARMS[place] == arm
    assert int(state.ridge.count) == 12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lin_ts(2, scale=-1.0), "scale must be .*got -1.0"),
        (lambda: lin_ts(2, conf=0.0), r"conf must be in \(0, 1\), got 0.0"),
        (lambda: lin_phe(2, perturb=0.0, horizon=5), "perturb must be .*> 0, got 0.0"),
        (lambda: lin_phe(2, perturb=1.0, horizon=0), "horizon must be an integer >= 1"),
        (lambda: lin_ts(2, layout="disjoint"), "layout='disjoint' needs num_arms"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
