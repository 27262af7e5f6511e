"""EQOL: its index, its special cases, and its regret bound round by round."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.eqol import balanced, capped_bonus, eqol, of_round
from jaxopt_suite.bandits.optimism import greedy, oful
from jaxopt_suite.bandits.ridge import ridge_init, ridge_radius
from jaxopt_suite.core import interact
from jaxopt_suite.problems.bandit_data import bandit_rows, classification_env
from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext
from jaxopt_suite.problems.linear_bandit import linear_env

KEY = jax.random.key(0)


def learned_state(d=3, rows=20, lam=1.0):
    """The state after random rows, from NumPy."""
    rng = np.random.default_rng(0)
    X, r = rng.normal(size=(rows, d)), rng.normal(size=rows)
    V, b = lam * np.eye(d) + X.T @ X, X.T @ r
    start = ridge_init(d, lam=lam)
    learned = start._replace(
        V_inv=np.linalg.inv(V),
        theta=np.linalg.solve(V, b),
        b=b,
        logdet=np.linalg.slogdet(V / lam)[1],
        count=np.int32(rows),
    )
    return jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), learned, start)


def play_all(policy, world, horizon):
    """The full record of a run in float64."""
    with jax.enable_x64(True):
        run = jax.jit(lambda key: interact(policy, world, key, horizon, record="full"))
        return run(KEY).record


def scores_of(policy, state, features):
    """The score of each arm, by a mask that lets only this one be played."""

    def score(mask):
        return policy.select(state, LinearContext(features, mask), KEY).score

    return jax.jit(jax.vmap(score))(jnp.eye(len(features), dtype=bool))


@pytest.mark.parametrize(
    ("options", "c1", "c2"),
    [
        ({}, lambda b, n: 0.1 * b * np.sqrt(n / 3), lambda b, n: b),
        (
            {"a": 0.5, "cap": 2.0, "horizon": 100},
            lambda b, n: 0.5 * b * np.sqrt(100 / 3),
            lambda b, n: 2 * b,
        ),
        (
            {"a": "balanced", "feature_bound": 3.0},
            lambda b, n: b * np.sqrt(n / 3) / (2 * np.sqrt(np.log1p(n * 9 / (3 * 2)))),
            lambda b, n: b,
        ),
        ({"c1": 2.0, "c2": np.inf}, lambda b, n: 2.0, lambda b, n: np.inf),
        (
            {"c1": of_round(lambda t: t / 40), "c2": lambda state: state.lam},
            lambda b, n: (n - 1) / 40,
            lambda b, n: 2.0,
        ),
    ],
)
def test_the_index_is_the_prediction_and_the_capped_bonus(options, c1, c2):
    with jax.enable_x64(True):
        state = learned_state(lam=2.0)
        features = jax.random.normal(KEY, (6, 3)) * jnp.logspace(-2, 1, 6)[:, None]
        policy = eqol(3, lam=2.0, noise=0.5, bound=2.0, conf=0.1, **options)
        got = scores_of(policy, state, features)
    X, rounds = np.asarray(features), int(state.count) + 1
    V_inv, theta = np.asarray(state.V_inv), np.asarray(state.theta)
    logdet = -np.linalg.slogdet(2.0 * V_inv)[1]
    beta = 0.5 * np.sqrt(2 * np.log(10) + logdet) + np.sqrt(2.0) * 2.0
    widths = np.sqrt(np.sum(X @ V_inv * X, axis=1))
    bonus = np.minimum(c1(beta, rounds) * widths**2, c2(beta, rounds) * widths)
    np.testing.assert_allclose(got, X @ theta + bonus, rtol=1e-10)


def test_schedules_count_all_parameters_of_a_disjoint_model():
    with jax.enable_x64(True):
        policy = eqol(2, a=0.3, layout="disjoint", num_arms=5)
        decision = policy.select(policy.init(KEY), LinearContext(jnp.ones(2)), KEY)
        beta = float(ridge_radius(policy.init(KEY)))
    quadratic = 0.3 * beta * np.sqrt(1 / 10) * 2
    np.testing.assert_allclose(
        decision.bonus, min(quadratic, beta * 2**0.5), rtol=1e-12
    )


def test_balanced_evens_out_the_two_terms_of_the_bound():
    d, horizon = 7, 900.0
    growth = np.log(1 + horizon / d)
    a = float(balanced(horizon, d))
    # The bound of the logdet, and the sum of the residuals.
    np.testing.assert_allclose(
        1 / (2 * a) * np.sqrt(d * horizon), np.sqrt(d * horizon * growth), rtol=1e-5
    )


def test_no_bonus_without_a_width_even_if_a_factor_is_infinite():
    widths = jnp.array([0.0, 1e-30, 2.0])
    for c1, c2, wanted in [
        (np.inf, 3.0, [0.0, 3e-30, 6.0]),
        (3.0, np.inf, [0.0, 0.0, 12.0]),
        (np.inf, np.inf, [0.0, np.inf, np.inf]),
        (0.0, np.inf, [0.0, 0.0, 0.0]),
    ]:
        np.testing.assert_allclose(capped_bonus(widths, c1, c2), wanted, rtol=1e-6)
    assert np.isnan(capped_bonus(jnp.array([jnp.nan]), 1.0, 1.0)).all()


@pytest.mark.slow
def test_the_ends_of_the_family_are_oful_and_greedy():
    world = linear_env(6, 12, noise=0.3, arms="pool", pool=10)

    def arms_of(factory):
        def run(c1, cap):
            record = interact(factory(c1, cap), world, KEY, 2000, record="full").record
            return record.decision.arm

        return jax.jit(run)

    # One compile each, since all their numbers may be traced.
    mixed = arms_of(lambda c1, cap: eqol(6, noise=0.3, c1=c1, cap=cap))
    optimistic = arms_of(lambda c1, cap: oful(6, noise=0.3, multiplier=cap))
    careless = arms_of(lambda c1, cap: greedy(6))
    for c1, cap, other in [
        (np.inf, 1.0, optimistic),
        (np.inf, 1.5, optimistic),
        (0.0, 1.0, careless),
    ]:
        with jax.enable_x64(True):
            got, wanted = mixed(c1, cap), other(c1, cap)
        np.testing.assert_array_equal(got, wanted)
        assert len(np.unique(got)) > 1


@functools.cache
def small_digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    # Half the pixels: the reference solves its systems in NumPy.
    return X[:, 1::2].astype(np.float64), y


@pytest.mark.slow
def test_disjoint_plays_as_the_shared_layout_does_with_kron_features():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.arange(40) % 4
    with jax.enable_x64(True):
        worlds = [classification_env(X, y, e) for e in ("disjoint", "shared")]
    options = {"noise": 0.5, "a": 0.2}
    one = play_all(eqol(4, layout="disjoint", num_arms=4, **options), worlds[0], 400)
    two = play_all(eqol(16, **options), worlds[1], 400)
    np.testing.assert_array_equal(one.decision.arm, two.decision.arm)
    np.testing.assert_array_equal(one.feedback.reward, two.feedback.reward)
    np.testing.assert_allclose(one.decision.score, two.decision.score, atol=1e-9)


def digit_arms(alpha, lam, horizon=500):
    """Arms of EQOL without its quadratic branch on digits, and what it saw."""
    X, y = small_digits()
    y = y[:horizon]
    with jax.enable_x64(True):
        Z = bandit_rows(X)[:horizon]
        policy = eqol(
            Z.shape[1], c1=np.inf, c2=alpha, lam=lam, layout="disjoint", num_arms=10
        )

        def step(state, row):
            z, label = row
            decision = policy.select(state, LinearContext(z), KEY)
            reward = (decision.arm == label).astype(z.dtype)
            return policy.update(BanditFeedback(decision, reward), state), decision.arm

        run = jax.jit(lambda rows: jax.lax.scan(step, policy.init(KEY), rows)[1])
        arms = np.asarray(run((Z, jnp.asarray(y))))
    return arms, np.asarray(Z), (arms == y).astype(float)


def assert_best_without_ties(arms, scores):
    """Each arm is the best by the reference's scores, where one is alone the best."""
    scores = np.asarray(scores)
    clear = np.diff(np.sort(scores, axis=1), axis=1)[:, -1] > 1e-9
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(arms[clear], scores.argmax(axis=1)[clear])
    assert len(np.unique(arms)) == 10


def test_agrees_with_direct_solves_on_digits():
    alpha, lam = 0.5, 2.0
    arms, Z, rewards = digit_arms(alpha, lam)
    A, b = np.stack([lam * np.eye(Z.shape[1])] * 10), np.zeros((10, Z.shape[1]))
    scores = []
    for z, arm, reward in zip(Z, arms, rewards, strict=True):
        solved = np.linalg.solve(A, np.broadcast_to(z, b.shape)[..., None])[..., 0]
        scores.append(np.sum(solved * b, axis=1) + alpha * np.sqrt(solved @ z))
        A[arm] += np.outer(z, z)
        b[arm] += reward * z
    assert_best_without_ties(arms, scores)


def test_agrees_with_mabwiser_on_digits():
    reason = "mabwiser is missing: pip install 'jaxopt-suite[bench]' to compare with it"
    mab = pytest.importorskip("mabwiser.mab", reason=reason)
    alpha, lam = 0.5, 2.0
    arms, Z, rewards = digit_arms(alpha, lam)
    law = mab.LearningPolicy.LinUCB(alpha=alpha, l2_lambda=lam)
    peer = mab.MAB(list(range(10)), law)
    # It inverts lam I when an arm has seen a row: here one that adds nothing.
    peer.fit(list(range(10)), np.zeros(10), np.zeros_like(Z[:10]))
    scores = []
    for z, arm, reward in zip(Z, arms, rewards, strict=True):
        expected = peer.predict_expectations(z[None])
        scores.append([expected[k] for k in range(10)])
        peer.partial_fit([int(arm)], [reward], z[None])
    assert_best_without_ties(arms, scores)


def test_the_score_is_the_maximum_over_an_ellipsoid_of_its_own():
    d, num_arms, c1, c2 = 4, 5, 1.5, 0.8
    with jax.enable_x64(True):
        state = learned_state(d)
        features = jax.random.normal(KEY, (num_arms, d))
        scores = np.asarray(scores_of(eqol(d, c1=c1, c2=c2), state, features))
    features = np.asarray(features)
    V_inv, theta = np.asarray(state.V_inv), np.asarray(state.theta)
    widths = np.sqrt(np.sum(features @ V_inv * features, axis=1))
    radii = np.minimum(c1 * widths, c2)
    assert radii.min() < c2  # some arms shrink, and not all of them
    assert (radii == c2).any()
    # Points of the unit sphere in the norm of V.
    root = np.linalg.cholesky(V_inv)
    unit = np.random.default_rng(0).normal(size=(1000, d))
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True) @ root.T
    for x, w, rho, score in zip(features, widths, radii, scores, strict=True):
        furthest = theta + rho * V_inv @ x / w
        np.testing.assert_allclose(x @ furthest, score, rtol=1e-10)
        values = (theta + rho * unit) @ x
        assert values.max() <= score * (1 + np.sign(score) * 1e-5)


def test_the_smallest_problem_works():
    run = interact(eqol(1, noise=0.1), linear_env(1, 1, noise=0.1), KEY, 1)
    assert int(run.state.count) == 1
    assert float(run.record.regret[0]) == 0  # there is only arm 0


def test_masked_arms_are_never_played_and_equal_arms_go_to_the_lowest():
    policy = eqol(2, c1=np.inf, c2=1.0)
    select = jax.jit(policy.select)
    state, rng = learned_state(2), np.random.default_rng(1)
    twins = jnp.tile(jnp.array(rng.normal(size=(3, 2))), (2, 1))
    for _ in range(30):
        mask = rng.random(6) < 0.4
        mask[rng.integers(6)] = True
        arm = int(select(state, LinearContext(twins, jnp.array(mask)), KEY).arm)
        assert mask[arm]
        assert arm < 3 or not mask[arm - 3]
    nothing = select(state, LinearContext(twins, jnp.zeros(6, bool)), KEY)
    assert int(nothing.arm) == 0
    assert float(nothing.score) == -np.inf
    assert not bool(nothing.valid)
    after = policy.update(BanditFeedback(nothing, 1.0), state)
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_a_nan_reward_poisons_the_scores_visibly():
    policy = eqol(2)
    context = LinearContext(jnp.eye(2))
    decision = policy.select(policy.init(KEY), context, KEY)
    state = policy.update(BanditFeedback(decision, jnp.nan), policy.init(KEY))
    assert np.isnan(policy.select(state, context, KEY).score)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": 0}, "d must be an integer >= 1, got 0"),
        ({"lam": -1.0}, "lam must be > 0, got -1.0"),
        ({"noise": -0.1}, "noise must be .*>= 0, got -0.1"),
        ({"bound": -1.0}, "bound must be .*>= 0, got -1.0"),
        ({"feature_bound": 0.0}, "feature_bound must be > 0, got 0.0"),
        ({"conf": 0.0}, r"conf must be in \(0, 1\), got 0.0"),
        ({"a": -0.1}, "a must be .*>= 0, got -0.1"),
        ({"a": "even"}, "a must be one of balanced, got 'even'"),
        ({"cap": 0.0}, "cap must be > 0, got 0.0"),
        ({"c1": -1.0}, "c1 must be >= 0, got -1.0"),
        ({"c2": np.nan}, "c2 must be >= 0, got nan"),
        ({"a": 0.1, "c1": 1.0}, "a and c1 are two ways"),
        ({"cap": 1.0, "c2": 1.0}, "cap and c2 are two ways"),
        ({"horizon": 0}, "horizon must be .*>= 1, got 0"),
        ({"layout": "wide"}, "layout must be one of shared, disjoint"),
        ({"layout": "disjoint"}, "layout='disjoint' needs num_arms"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        eqol(**{"d": 2} | options)


def test_a_context_that_does_not_fit_is_refused():
    shared, disjoint = eqol(2), eqol(2, layout="disjoint", num_arms=3)
    for policy, context, message in [
        (shared, LinearContext(jnp.ones((4, 3))), r"shape \(num_arms, 2\), got \(4, 3"),
        (shared, LinearContext(jnp.ones(2)), r"shape \(num_arms, 2\), got \(2,\)"),
        (disjoint, LinearContext(jnp.ones((3, 2))), r"shape \(2,\), got \(3, 2\)"),
        (disjoint, LinearContext(jnp.ones(2), jnp.ones(2, bool)), r"mask .*\(3,\)"),
        (shared, LinearContext(jnp.eye(2), jnp.zeros(2, bool)), "at least one arm"),
    ]:
        with pytest.raises(ValueError, match=message):
            policy.select(policy.init(KEY), context, KEY)


def test_a_cap_below_one_warns():
    with pytest.warns(UserWarning, match="cap = 0.5 is below 1") as seen:
        eqol(2, cap=0.5)
    assert len(seen) == 1


def test_a_schedule_must_be_a_function():
    with pytest.raises(ValueError, match="schedule must be a function"):
        of_round(0.5)
