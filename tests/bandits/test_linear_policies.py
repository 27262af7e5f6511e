"""The other linear policies against NumPy, and what all of them do under transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.bandits.eqol import eqol
from jaxopt_suite.bandits.linear import (
    index_policy,
    ridge_learn,
    ridge_of,
    ring_places,
)
from jaxopt_suite.bandits.optimism import greedy, lin_imed, linucb, oful
from jaxopt_suite.bandits.randomized import (
    draw_arm,
    epsilon_greedy,
    random_policy,
    squarecb,
)
from jaxopt_suite.bandits.ridge import ridge_init, ridge_update_batch
from jaxopt_suite.bandits.supervised import supervised_ridge
from jaxopt_suite.core import device_mesh, interact, sweep
from jaxopt_suite.problems.contextual import (
    BanditFeedback,
    LinearContext,
    LinearDecision,
)
from jaxopt_suite.problems.linear_bandit import linear_env
from jaxopt_suite.problems.stochastic import LabelledData

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
ROWS, REWARDS = RNG.normal(size=(20, 3)), RNG.normal(size=20)
ARMS = RNG.normal(size=(5, 3))
STATE = jax.jit(ridge_update_batch)(ridge_init(3, lam=2.0), ROWS, REWARDS)
V = 2.0 * np.eye(3) + ROWS.T @ ROWS
MEANS = ARMS @ np.linalg.solve(V, ROWS.T @ REWARDS)
WIDTHS = np.sqrt(np.sum(ARMS @ np.linalg.inv(V) * ARMS, axis=1))
BETA = 0.5 * np.sqrt(2 * np.log(20) + np.log(np.linalg.det(V) / 8)) + np.sqrt(2.0)
ALONE = np.eye(5, dtype=bool)


def imed(means, widths):
    """LinIMED-1's index with the other sign: the largest is played."""
    g = BETA**2 * widths**2
    scores = np.log(g) - (means.max() - means) ** 2 / g
    scores[means.argmax()] = np.log(g[means.argmax()])
    return scores


@pytest.mark.parametrize(
    ("policy", "scores"),
    [
        (greedy(3), MEANS),
        (linucb(3, alpha=0.7), MEANS + 0.7 * WIDTHS),
        (linucb(3, alpha=lambda state: state.lam), MEANS + 2 * WIDTHS),
        (oful(3, noise=0.5, conf=0.05), MEANS + BETA * WIDTHS),
        (oful(3, noise=0.5, conf=0.05, multiplier=0.1), MEANS + 0.1 * BETA * WIDTHS),
        (lin_imed(3, noise=0.5, conf=0.05), imed(MEANS, WIDTHS)),
    ],
)
def test_an_index_is_that_of_its_formula(policy, scores):
    select = jax.jit(policy.select)
    order = np.argsort(scores)[::-1]
    # Without the best arm the second is played, and so on down.
    for rank in range(3):
        mask = np.isin(np.arange(5), order[rank:])
        decision = select(STATE, LinearContext(ARMS, jnp.array(mask)), KEY)
        assert int(decision.arm) == order[rank]
        np.testing.assert_array_equal(decision.x, ARMS.astype(np.float32)[order[rank]])
        if rank == 0:
            np.testing.assert_allclose(decision.score, scores.max(), rtol=1e-5)
        if policy.select.__qualname__.startswith("greedy"):
            assert float(decision.bonus) == 0


def test_lin_imed_ranks_by_the_best_of_the_arms_that_may_be_played():
    select = jax.jit(lin_imed(3, noise=0.5, conf=0.05).select)
    for mask in (RNG.random((12, 5)) < 0.6) | np.eye(12, 5, dtype=bool):
        if not mask.any():
            continue
        places = np.flatnonzero(mask)
        wanted = places[imed(MEANS[mask], WIDTHS[mask]).argmax()]
        got = select(STATE, LinearContext(ARMS, jnp.array(mask)), KEY)
        assert int(got.arm) == wanted
    # An arm without features has no width to divide by.
    blank = LinearContext(jnp.zeros((3, 3)), jnp.array([False, True, True]))
    decision = select(STATE, blank, KEY)
    assert int(decision.arm) == 1
    assert np.isfinite(decision.score)


def draws(policy, mask, num_draws=20_000):
    """How often each arm is drawn, and each arm's recorded probability (nan: never)."""
    context = LinearContext(ARMS, jnp.array(mask))
    keys = jax.random.split(KEY, num_draws)
    decide = jax.jit(jax.vmap(lambda key: policy.select(STATE, context, key)))
    decision = decide(keys)
    arms, recorded = np.asarray(decision.arm), np.full(5, np.nan)
    recorded[arms] = decision.propensity
    np.testing.assert_array_equal(recorded[arms], decision.propensity)
    return np.bincount(arms, minlength=5) / num_draws, recorded


def squarecb_law(mask, gamma):
    law = np.where(mask, 1 / (mask.sum() + gamma * (MEANS[mask].max() - MEANS)), 0)
    best = np.flatnonzero(mask)[MEANS[mask].argmax()]
    law[best] += 1 - law.sum()
    return law


def epsilon_law(mask, epsilon):
    law = epsilon * mask / mask.sum()
    law[np.flatnonzero(mask)[MEANS[mask].argmax()]] += 1 - epsilon
    return law


@pytest.mark.parametrize(
    ("policy", "law"),
    [
        (squarecb(3, gamma=5.0), lambda mask: squarecb_law(mask, 5.0)),
        (epsilon_greedy(3, epsilon=0.3), lambda mask: epsilon_law(mask, 0.3)),
        (
            epsilon_greedy(3, epsilon=optax.linear_schedule(1.0, 0.5, 40)),
            lambda mask: epsilon_law(mask, 0.75),
        ),
        (random_policy(5), lambda mask: mask / mask.sum()),
    ],
)
def test_arms_are_drawn_with_the_probabilities_recorded(policy, law):
    mask = np.array([True, True, False, True, True])
    wanted = law(mask)
    assert wanted.min() == 0
    np.testing.assert_allclose(wanted.sum(), 1)
    shares, recorded = draws(policy, mask)
    drawn = shares > 0
    np.testing.assert_array_equal(drawn, mask)
    np.testing.assert_allclose(recorded[drawn], wanted[drawn], rtol=1e-5)
    # 5 standard errors: false alarms below 4 * 6e-7 a policy.
    assert (np.abs(shares - wanted) <= 5 * np.sqrt(wanted / 20_000)).all()


def test_an_arm_without_probability_is_never_drawn():
    law = jnp.array([0.0, 1e-7, 0.0, 1.0, 0.0])
    context = LinearContext(jnp.ones((5, 1)))
    draw = jax.jit(jax.vmap(lambda k: draw_arm(context, law, jnp.zeros(5), k).arm))
    assert set(np.unique(draw(jax.random.split(KEY, 50_000)))) <= {1, 3}


def test_epsilon_of_zero_is_greedy_and_the_best_alone_keeps_its_probability():
    context = LinearContext(ARMS, jnp.array(ALONE[2]))
    for policy in (squarecb(3, gamma=5.0), epsilon_greedy(3, epsilon=0.0)):
        decision = jax.jit(policy.select)(STATE, context, KEY)
        assert (int(decision.arm), float(decision.propensity)) == (2, 1.0)


@pytest.mark.parametrize(
    "policy", [squarecb(3, gamma=5.0), random_policy(5), lin_imed(3)]
)
def test_without_any_arm_the_decision_is_not_valid(policy):
    context = LinearContext(ARMS, jnp.zeros(5, bool))
    decision = jax.jit(policy.select)(STATE, context, KEY)
    assert (int(decision.arm), float(decision.score)) == (0, -np.inf)
    assert not bool(decision.valid)
    with pytest.raises(ValueError, match="at least one arm"):
        policy.select(STATE, context, KEY)


def test_supervised_ridge_learns_every_arm_from_every_row():
    X, labels = ROWS.astype(np.float32), RNG.integers(0, 3, 20)
    ridge = supervised_ridge(3, num_arms=3, lam=0.5)
    start = ridge.init(X[0])
    state, decisions = jax.lax.scan(
        lambda state, row: ridge.update(row, state)[::-1],
        start,
        LabelledData(jnp.array(X), jnp.array(labels)),
    )
    targets = np.eye(3)[labels]
    for t in range(21):
        gram = 0.5 * np.eye(3) + X[:t].T @ X[:t]
        theta = np.linalg.solve(gram, X[:t].T @ targets[:t])
        if t < 20:
            arm = int(np.argmax(X[t] @ theta))
            assert int(decisions.arm[t]) == arm
            assert float(decisions.reward[t]) == (arm == labels[t])
    np.testing.assert_allclose(state.theta, theta.T, atol=1e-5)
    np.testing.assert_allclose(state.V_inv, np.linalg.inv(gram), atol=1e-5)


def test_a_ring_keeps_the_last_rows_of_any_batch():
    for size in (1, 3, 8):
        ring, history = np.full(size, -1), []
        for batch in range(6):
            keep = RNG.random(5) < 0.6
            places = ring_places(len(history), jnp.array(keep), size)
            rows = 10 * batch + np.arange(5)
            ring = np.asarray(jnp.array(ring).at[places].set(rows, mode="drop"))
            history += list(rows[keep])
            assert set(history[-size:]) == set(ring[ring >= 0])


def test_feedback_of_an_invalid_decision_is_not_learned():
    decision = LinearDecision(
        jnp.zeros(2, jnp.int32), jnp.ones((2, 3)), valid=jnp.array([True, False])
    )
    feedback = BanditFeedback(decision, jnp.ones(2), jnp.array([True, True]))
    assert int(ridge_learn(STATE, feedback).count) == 21


def test_ridge_of_finds_the_statistics_or_says_what_it_wants():
    assert ridge_of(STATE) is STATE
    with pytest.raises(ValueError, match="RidgeState or have a field ridge, got tuple"):
        ridge_of(())


# Of arms on the sphere rounding would choose the first: their widths are all 1.
POOL = linear_env(4, 6, noise=0.3, arms="pool", pool=5, features="gauss")
GRID = {"a": jnp.array([0.05, 0.1, 0.5]), "cap": jnp.array([1.0, 2.0])}


def arms_played(key, a, cap):
    run = interact(eqol(4, noise=0.3, a=a, cap=cap), POOL, key, 200, record="full")
    return run.record.decision.arm


@pytest.mark.slow
def test_a_sweep_is_one_compile_and_plays_the_arms_of_a_loop_on_any_devices():
    traces = []

    def run(key, a, cap):
        traces.append(1)
        return arms_played(key, a, cap)

    with jax.enable_x64(True):
        grid = {name: values.astype(float) for name, values in GRID.items()}
        keys = jax.random.split(KEY, 16)
        swept = np.asarray(sweep(run, keys, grid))
        assert len(traces) == 1
        np.testing.assert_array_equal(
            sweep(run, jax.random.split(KEY, 16), grid), swept
        )
        assert len(traces) == 1
        spread = sweep(run, keys, grid, mesh=device_mesh("seeds"))
        np.testing.assert_array_equal(spread, swept)
        alone = jax.jit(arms_played)
        for i, j, k in np.ndindex(3, 2, 16):
            got = alone(keys[k], grid["a"][i], grid["cap"][j])
            np.testing.assert_array_equal(got, swept[i, j, k])
        assert alone._cache_size() == 1
        # Nothing inside the loop calls back into Python.
        assert "callback" not in str(jax.make_jaxpr(arms_played)(keys[0], 0.1, 1.0))


@pytest.mark.slow
def test_late_feedback_costs_little_more_than_the_rounds_without_it():
    world = linear_env(10, 20, noise=0.5, arms="pool", pool=20)

    def regrets(delays):
        def run(key):
            result = interact(eqol(10, noise=0.5), world, key, 3000, delays=delays)
            sets, theta = result.environment.sets, result.environment.theta
            means = sets @ theta
            gap = jnp.max(jnp.max(means, axis=1) - jnp.min(means, axis=1))
            return result.record.regret[-1], gap, result.state.count

        return jax.jit(jax.vmap(run))(jax.random.split(KEY, 6))

    prompt, gap, count = regrets(None)
    late, _, late_count = regrets(100)
    assert (count == 3000).all()
    assert (late_count == 2900).all()
    assert late.mean() <= 1.1 * prompt.mean() + 100 * gap.mean()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linucb(2, alpha=-1.0), "alpha must be .*got -1.0"),
        (lambda: oful(2, conf=2.0), r"conf must be in \(0, 1\), got 2.0"),
        (lambda: oful(2, multiplier=-1.0), "multiplier must be .*got -1.0"),
        (lambda: lin_imed(2, noise=-1.0), "noise must be .*got -1.0"),
        (lambda: epsilon_greedy(2, epsilon=-0.1), r"epsilon must be in \[0, 1\]"),
        (lambda: squarecb(2, gamma=0.0), "gamma must be .*> 0, got 0.0"),
        (lambda: random_policy(0), "num_arms must be an integer >= 1, got 0"),
        (lambda: supervised_ridge(2, 0), "num_arms must be an integer >= 1, got 0"),
        (lambda: greedy(2, layout="disjoint"), "layout='disjoint' needs num_arms"),
        (lambda: index_policy(0, lambda *_: _), "d must be an integer >= 1, got 0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
