"""Off-policy estimators against NumPy, SciPy, scikit-learn, and by simulation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxopt_suite.bandits import off_policy, off_policy_bounds, off_policy_inputs
from jaxopt_suite.bandits.off_policy import BanditLog
from jaxopt_suite.core import Logged, Policy, interact, replay
from jaxopt_suite.problems import linear_bandit
from jaxopt_suite.problems.contextual import LinearDecision

KEY = jax.random.key(0)


def random_log(rows=60, arms=4, seed=0):
    """A log, a target and predictions that have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    log = BanditLog(
        rng.integers(0, arms, rows), rng.uniform(size=rows), rng.uniform(0.2, 1, rows)
    )
    target = rng.dirichlet(np.ones(arms), rows)
    return log, target, rng.uniform(size=(rows, arms))


def test_estimators_are_their_sums():
    log, target, predicted = random_log()
    weighted = total_weight = direct = robust = 0.0
    for i, (arm, reward, p) in enumerate(zip(*log, strict=True)):
        weight = target[i, arm] / p
        expected = sum(target[i, a] * predicted[i, a] for a in range(4))
        weighted += weight * reward
        total_weight += weight
        direct += expected
        robust += expected + weight * (reward - predicted[i, arm])
    found = [
        off_policy.ips(log, target),
        off_policy.snips(log, target),
        off_policy.direct_method(target, predicted),
        off_policy.doubly_robust(log, target, predicted),
    ]
    values = [weighted / 60, weighted / total_weight, direct / 60, robust / 60]
    np.testing.assert_allclose([float(e.value) for e in found], values, rtol=1e-5)


class World(NamedTuple):
    """Two contexts, three arms, Bernoulli rewards; all known."""

    rewards = np.array([[0.2, 0.5, 0.9], [0.6, 0.1, 0.3]])
    logging = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
    target = np.array([[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]])
    model = np.array([[0.1, 0.1, 0.4], [0.9, 0.5, 0.5]])  # a bad one

    def value(self):
        return float(np.mean(np.sum(self.rewards * self.target, axis=1)))


@pytest.mark.slow
def test_weighting_is_unbiased_and_a_bad_model_is_not():
    world = World()

    def estimates(key):
        keys = jax.random.split(key, 3)
        z = jax.random.randint(keys[0], (40,), 0, 2)
        logging = jnp.asarray(world.logging)[z]
        arm = jax.random.categorical(keys[1], jnp.log(logging))
        mean = jnp.asarray(world.rewards)[z, arm]
        reward = jax.random.bernoulli(keys[2], mean).astype(float)
        log = BanditLog(arm, reward, logging[jnp.arange(40), arm])
        target, model = jnp.asarray(world.target)[z], jnp.asarray(world.model)[z]
        return [
            off_policy.ips(log, target).value,
            off_policy.doubly_robust(log, target, model).value,
            off_policy.snips(log, target).value,
            off_policy.direct_method(target, model).value,
        ]

    draws = jax.jit(jax.vmap(estimates))(jax.random.split(KEY, 20000))
    draws = np.asarray(draws, np.float64)
    error = draws.std(axis=1) / np.sqrt(20000)
    off = draws.mean(axis=1) - world.value()
    # Five standard errors, two estimators: a false alarm in 1e-6 of the runs.
    assert np.all(np.abs(off[:2]) < 5 * error[:2])
    # The bias of a quotient of means is (v Var w - Cov(w, w r)) / n to first order.
    square = np.sum(world.target**2 / world.logging / 2)
    cross = np.sum(world.target**2 / world.logging * world.rewards / 2)
    bias = (world.value() * (square - 1) - (cross - world.value())) / 40
    assert abs(off[2] - bias) < 0.3 * abs(bias) + 5 * error[2]
    assert abs(off[3]) > 0.05
    assert draws[2].std() < draws[0].std()


@pytest.mark.slow
def test_bootstrap_intervals_are_those_of_scipy():
    log, target, _ = random_log(rows=80)
    estimate = off_policy.snips(log, target)
    got = off_policy.bootstrap_interval(KEY, estimate, level=0.9, num_resamples=4000)
    peer = stats.bootstrap(
        (np.asarray(estimate.numerator), np.asarray(estimate.denominator)),
        lambda x, y, axis: x.sum(axis) / y.sum(axis),
        n_resamples=4000,
        paired=True,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    # Each end is a quantile of 4000 draws, known to about 0.03 of their spread.
    slack = 6 * 0.04 * peer.standard_error
    np.testing.assert_allclose(got, peer.confidence_interval, rtol=0, atol=slack)
    assert float(got[0]) < float(estimate.value) < float(got[1])


def bounds_by_hand(terms, reach, alpha):
    """Lower bounds row by row, in float64."""
    bounds, total, squares, bets, gain = [], 0.0, 0.0, 0.0, 0.0
    for t, term in enumerate(terms, start=1):
        guess = min(max((0.5 + total) / t, 0.0), 1.0)
        variance = (0.25 + squares) / t
        bet = np.sqrt(2 * np.log(2 / alpha) / (variance * t * np.log(t + 1)))
        bet = min(bet, 0.5)
        square = ((term - guess) / reach) ** 2
        gain += bet * term / reach - (-np.log(1 - bet) - bet) * square
        bets += bet
        total, squares = total + term, squares + square
        bounds.append(reach * (gain - np.log(2 / alpha)) / bets)
    return np.clip(np.maximum.accumulate(bounds), 0.0, 1.0)


def test_confidence_sequences_are_their_recursion():
    log, target, predicted = random_log(rows=500)
    w = target[np.arange(500), log.arm] / log.propensity
    robust = np.sum(target * predicted, axis=1) + w * (
        log.reward - predicted[np.arange(500), log.arm]
    )
    # The same rewards from 0 to 1, told in units in which they are from -2 to 3.
    scaled = log._replace(reward=5 * log.reward - 2)
    compute = jax.jit(
        lambda level: (
            off_policy_bounds.confidence_sequence(
                scaled, target, level=level, reward_range=(-2.0, 3.0)
            ),
            off_policy_bounds.confidence_sequence(
                log, target, level=level, predicted=predicted, max_weight=5.0
            ),
        )
    )
    plain, with_model = compute(0.9)
    lower = bounds_by_hand(w * log.reward, 1.0, 0.1)
    upper = 1 - bounds_by_hand(w * (1 - log.reward), 1.0, 0.1)
    np.testing.assert_allclose(plain.lower, 5 * lower - 2, atol=2e-4)
    np.testing.assert_allclose(plain.upper, 5 * upper - 2, atol=2e-4)
    lower = bounds_by_hand(robust, 6.0, 0.1)
    upper = 1 - bounds_by_hand(1 - robust, 6.0, 0.1)
    np.testing.assert_allclose(with_model.lower, lower, atol=1e-4)
    np.testing.assert_allclose(with_model.upper, upper, atol=1e-4)
    assert 0.0 < lower[-1] < upper[-1] < 1.0


def adaptive_logs(runs, rows, seed=0):
    """Two arms that pay 0.3 and 0.5, logged by epsilon-greedy policies that learn."""
    rng = np.random.default_rng(seed)
    means, epsilon, lanes = np.array([0.3, 0.5]), 0.2, np.arange(runs)
    sums, counts = np.zeros((runs, 2)), np.zeros((runs, 2))
    columns = []
    for _ in range(rows):
        best = np.argmax(sums / np.maximum(counts, 1), axis=1)
        arm = np.where(
            rng.uniform(size=runs) < epsilon, rng.integers(2, size=runs), best
        )
        propensity = np.where(arm == best, 1 - epsilon / 2, epsilon / 2)
        reward = (rng.uniform(size=runs) < means[arm]).astype(np.float32)
        sums[lanes, arm] += reward
        counts[lanes, arm] += 1
        columns.append((arm, reward, propensity.astype(np.float32)))
    return BanditLog(*(np.stack(c, axis=1) for c in zip(*columns, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("model", [False, True])
def test_confidence_sequences_cover_at_all_rows_at_once(model):
    runs, rows, alpha = 2000, 1000, 0.1
    logs, target = adaptive_logs(runs, rows), np.tile([0.7, 0.3], (rows, 1))
    value = 0.7 * 0.3 + 0.3 * 0.5
    options = {}
    if model:  # the largest weight is 0.7 / 0.1
        options = {"predicted": np.full((rows, 2), 0.4), "max_weight": 7.0}

    def one(log):
        return off_policy_bounds.confidence_sequence(
            log, target, level=1 - alpha, **options
        )

    bounds = jax.jit(jax.vmap(one))(logs)
    lower, upper = np.asarray(bounds.lower), np.asarray(bounds.upper)
    missed = np.any((lower > value) | (upper < value), axis=1).sum()
    # If the level is kept, more are seen in less than 1e-5 of the runs of this test.
    assert missed <= stats.binom.isf(1e-5, runs, alpha)
    # What it costs to be right at all rows: with this bet 2.9 times the normal
    # interval of one row, to first order.
    weights = np.array([0.7, 0.3])[logs.arm] / logs.propensity
    spread = (weights * (logs.reward - 0.4 * model)).std(axis=1)
    normal = 2 * 1.645 * spread / np.sqrt(rows)
    ratio = np.median((upper - lower)[:, -1] / normal)
    assert ratio < 4.0
    assert np.all(np.diff(lower) >= 0)
    assert np.all(np.diff(upper) <= 0)


@pytest.mark.slow
def test_pointwise_intervals_do_not_cover_at_all_rows_at_once():
    # What the test above would see if the sequences were not valid at all rows.
    runs, rows = 500, 1000
    logs = adaptive_logs(runs, rows, seed=1)
    terms = np.array([0.7, 0.3])[logs.arm] / logs.propensity * logs.reward
    count = np.arange(1, rows + 1)
    mean = np.cumsum(terms, axis=1) / count
    spread = np.sqrt(np.cumsum(terms**2, axis=1) / count - mean**2)
    outside = np.abs(mean - 0.36) > 1.645 * spread / np.sqrt(count)
    assert np.mean(np.any(outside[:, 50:], axis=1)) > 0.2


def uniform(num_arms):
    """Any arm with the same probability, which it reports."""

    def select(state, context, key):
        del state
        arm = jax.random.randint(key, (), 0, num_arms)
        return LinearDecision(arm, context.features[arm], propensity=1 / num_arms)

    return Policy(lambda key: (), select, lambda feedback, state: state)


@pytest.mark.slow
def test_a_record_of_interact_is_a_log_and_replay_agrees():
    horizon, num_arms = 4000, 3
    env = linear_bandit.linear_env(2, num_arms, noise=0.1, arms="pool", pool=50)
    policy = uniform(num_arms)
    play = lambda key: interact(policy, env, key, horizon, record="full")  # noqa: E731
    result = jax.jit(play)(KEY)
    log = off_policy.bandit_log(result.record)
    np.testing.assert_allclose(log.propensity, 1 / num_arms, rtol=1e-6)
    shown = np.asarray(result.environment.sets)[np.arange(horizon) % 50]
    means = shown @ np.asarray(result.environment.theta)
    wanted = np.argmax(shown @ [0.0, 1.0], axis=1)
    value = means[np.arange(horizon), wanted].mean()
    target = np.eye(num_arms)[wanted]
    estimate = off_policy.ips(log, target)
    spread = np.asarray(estimate.numerator).std() / np.sqrt(horizon)
    # Five standard errors: a false alarm in 6e-7 of the runs.
    assert abs(float(estimate.value) - value) < 5 * spread
    # Replayed with the target as policy, the matches are the rows of weight 3, so that
    # the replay estimate is the self-normalized one.
    follow = Policy(
        lambda key: (),
        lambda state, context, key: LinearDecision(context[0], context[1]),
        lambda feedback, state: state,
    )
    x = result.record.decision.x
    rows = Logged((jnp.asarray(wanted), x), *result.record[:2])
    replayed = off_policy.replay_value(replay(follow, rows, KEY))
    expected = off_policy.snips(log, target).value
    np.testing.assert_allclose(replayed.value, expected, rtol=1e-4)
    assert int(replayed.denominator.sum()) == np.sum(wanted == log.arm)


LOG, TARGET, PREDICTED = random_log(rows=5)
NEGATIVE = LOG._replace(propensity=np.array([0.5, 0.5, 0.0, 0.5, 0.5]))
DECIDED = LinearDecision(LOG.arm, LOG.arm[:, None], propensity=LOG.propensity)


class Answer(NamedTuple):
    reward: np.ndarray
    mask: np.ndarray


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: off_policy.ips(NEGATIVE, TARGET),
            r"log.propensity must be in \(0, 1\]",
        ),
        (lambda: off_policy.snips(LOG, 2 * TARGET), r"target must be in \[0, 1\]"),
        (lambda: off_policy.ips(LOG, TARGET / 2), r"target.sum\(axis=1\) must be in"),
        (lambda: off_policy.ips(LOG, TARGET[:3]), "one row for each of 5 logged rows"),
        (lambda: off_policy.ips(LOG, TARGET[0]), r"target must have shape .*\(4,\)"),
        (
            lambda: off_policy.ips(LOG._replace(arm=LOG.arm + 4), TARGET),
            r"log.arm must be in \[0, 3\]",
        ),
        (
            lambda: off_policy.direct_method(TARGET, PREDICTED[:, :2]),
            r"predicted must have the shape of target \(5, 4\), got \(5, 2\)",
        ),
        (
            lambda: off_policy.bootstrap_interval(
                KEY, off_policy.ips(LOG, TARGET), level=1.0
            ),
            r"level must be in \(0, 1\), got 1.0",
        ),
        (lambda: off_policy.bandit_log(LOG), "record must have decision.arm"),
        (
            lambda: off_policy.bandit_log(
                Logged((), DECIDED, Answer(LOG.reward, LOG.arm > 5))
            ),
            "feedback.mask must be True throughout, got 5 rows",
        ),
        (
            lambda: off_policy_bounds.confidence_sequence(
                LOG._replace(reward=LOG.reward + 1), TARGET
            ),
            r"log.reward must be in \[0, 1\]",
        ),
        (
            lambda: off_policy_bounds.confidence_sequence(
                LOG, TARGET, reward_range=(1.0, 1.0)
            ),
            r"reward_range must be two finite numbers in order, got \(1.0, 1.0\)",
        ),
        (
            lambda: off_policy_bounds.confidence_sequence(
                LOG, TARGET, predicted=PREDICTED
            ),
            "predicted and max_weight go together",
        ),
        (
            lambda: off_policy_bounds.confidence_sequence(
                LOG, TARGET, predicted=PREDICTED, max_weight=0.01
            ),
            r"weights must be in \[0, 0.01",
        ),
        (
            lambda: off_policy_inputs.cross_fitted_rewards(
                LOG, PREDICTED[:3], num_arms=4
            ),
            r"features must have shape \(5, 4, d\) or \(5, p\), got \(3, 4\)",
        ),
        (
            lambda: off_policy_inputs.cross_fitted_rewards(
                LOG, PREDICTED, num_arms=4, num_folds=1
            ),
            "num_folds must be an integer >= 2, got 1",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
