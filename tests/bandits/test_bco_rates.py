"""Rates, gains and bounds of delayed bandit convex optimization, on the blocked path.

A standard error is that of a mean over seeds. The statistical tests that compare with a
proven value allow 4.5 of them, a false alarm of 7e-6 each; the others compare ratios of
means with bands that are many standard errors wide.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.bco_baselines import bandit_mild_ogd, delayed_bgd
from jaxopt_suite.bandits.bco_blocked import dars_rollout_blocked
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.core import interact
from jaxopt_suite.core.delays import DelayModel
from jaxopt_suite.problems.bco import bco_env
from jaxopt_suite.problems.bco_losses import norm_segments, strong_segments
from jaxopt_suite.problems.bco_lower_bounds import (
    rademacher_blocks,
    strong_first_block,
)

pytestmark = pytest.mark.slow
# Most of the time here is compilation, most of all for short runs.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
jit_short = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)
FAMILIES = {0.0: norm_segments, 1.0: strong_segments}


def seeds(count):
    return jax.random.split(jax.random.key(2026), count)


def blocked(losses, schedule, delays, key, alpha=0.0):
    """Total regret of one run."""
    summary = dars_rollout_blocked(
        schedule,
        losses,
        delays,
        key,
        strong_convexity=alpha,
        trace="summary",
        checkpoints=1,
    )
    return summary.regret[0]


@functools.cache
def mean_regret(alpha, horizon, n, m, count):
    """Mean total regret without delay over ``count`` seeds, and the schedule."""
    losses = FAMILIES[alpha](horizon, n, m)
    schedule = dars_schedule(
        horizon,
        n,
        segment_starts=losses.segment_starts,
        strong_convexity=alpha,
        k_scale=0.2,
    )
    compiled = jit if horizon * count > 2**17 else jit_short
    run = compiled(jax.vmap(lambda key: blocked(losses, schedule, 0, key, alpha)))
    return float(np.mean(run(seeds(count)))), schedule


def slope(alpha, name, values, count, predicted, **fixed):
    """The log-log slope of regret, without its logarithm where losses are strong."""
    regrets = []
    for value in values:
        regret, schedule = mean_regret(alpha, **{name: value}, **fixed, count=count)
        blocks = schedule.lengths[0] / schedule.K[0]
        log = math.log(math.e * blocks) ** (1 / 3) if alpha else 1.0
        regrets.append(regret / log)
    fitted = np.polyfit(np.log(values), np.log(regrets), 1)[0]
    print(f"slope in {name}, alpha {alpha}: {fitted:.3f}, predicted {predicted:.3f}")
    return fitted


T = 2**18


@pytest.mark.parametrize(
    ("alpha", "in_horizon", "in_n", "in_m"),
    [(0.0, 3 / 4, 1 / 2, 1 / 4), (1.0, 2 / 3, 2 / 3, 1 / 3)],
)
def test_regret_grows_with_the_predicted_exponents(alpha, in_horizon, in_n, in_m):
    horizons = (2**14, 2**16, T)
    got = slope(alpha, "horizon", horizons, 16 if alpha else 8, in_horizon, n=2, m=1)
    assert abs(got - in_horizon) <= 0.05
    got = slope(alpha, "n", (2, 4, 8), 8, in_n, horizon=T, m=1)
    assert abs(got - in_n) <= 0.05
    got = slope(alpha, "m", (1, 4, 16), 8, in_m, horizon=T, n=2)
    assert abs(got - in_m) <= 0.05


def theory_bgd(horizon, n, d):
    delta = math.sqrt(n) * horizon**-0.25
    eta = 1 / math.sqrt(horizon * ((n / delta) ** 2 + 2 * d))
    return delayed_bgd(jnp.zeros(n), delta=delta, eta=eta)


@pytest.mark.parametrize(
    ("alpha", "least"),
    [
        (0.0, {"dftbl": 3.0, "bgd": 2.2, "mild": 1.4}),
        (1.0, {"dftbl": 4.5, "bgd": 3.0, "mild": 1.9}),
    ],
)
def test_restarts_gain_over_all_that_do_not(alpha, least):
    horizon, n, m, d = 2**17, 2, 8, 64
    losses = FAMILIES[alpha](horizon, n, m)

    def schedule(starts):
        return dars_schedule(
            horizon,
            n,
            segment_starts=starts,
            d_max=d,
            strong_convexity=alpha,
            k_scale=0.2,
        )

    def generic(policy, key):
        run = interact(policy, bco_env(losses), key, horizon, delays=d, checkpoints=1)
        return run.record.regret[0]

    restarting, whole = schedule(losses.segment_starts), schedule((0,))
    mild = bandit_mild_ogd(jnp.zeros(n), horizon, d_max=d, k_scale=0.2)
    bgd = theory_bgd(horizon, n, d)

    @jit
    def run(key):
        return {
            "dars": blocked(losses, restarting, d, key, alpha),
            "dftbl": blocked(losses, whole, d, key, alpha),
            "bgd": generic(bgd, key),
            "mild": generic(mild, key),
        }

    # One seed: the spread over seeds is 3 %, the margin of every bound 30 %.
    regret = run(jax.random.key(2026))
    for name, bound in least.items():
        ratio = float(regret[name] / regret["dars"])
        print(f"{name} over dars, alpha {alpha}: {ratio:.2f}")
        assert ratio >= bound, name


def test_doubling_the_delay_multiplies_its_price_by_about_the_root_of_two():
    horizon, delays = 2**20, 2 ** np.arange(13, 18)
    losses = norm_segments(horizon, 2)
    schedules = [dars_schedule(horizon, 2, d_max=int(d), k_scale=0.02) for d in delays]
    # Block and radius do not depend on the delay, so the sweep is one compile.
    delta = float(schedules[0].delta[0])
    assert {float(s.delta[0]) for s in schedules} == {delta}

    def run(d, eta, key):
        law = DelayModel(
            lambda key, horizon: jnp.full(horizon, d, jnp.int32), int(delays[-1]), 1
        )
        return blocked(losses, schedules[0]._replace(eta=eta), law, key)

    over_seeds = jax.vmap(run, (None, None, 0))
    etas = jnp.stack([jnp.asarray(s.eta) for s in schedules])
    regret = jit(jax.vmap(over_seeds, (0, 0, None)))(
        jnp.asarray(delays), etas, seeds(4)
    )
    price = np.mean(regret, axis=1) - delta * horizon
    ratios = price[1:] / price[:-1]
    print(f"price of delay {price}, ratios {ratios}")
    assert np.all((ratios >= 1.30) & (ratios <= 1.55))


def bound(alpha, schedule, d, M, G):
    """The explicit upper bound of expected regret at k_scale = 1 on the unit ball."""
    L, K = schedule.lengths.astype(float), schedule.K.astype(float)
    if alpha:
        learning = 2 * G**2 / alpha * (1.5 * K + d) * np.log(np.e * np.ceil(L / K))
    else:
        learning = 2 * G * np.sqrt(L * (1.5 * K + d))
    return float(np.sum(3 * G * schedule.delta * L + learning))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("m", [1, 4])
def test_regret_stays_below_the_explicit_bound(alpha, m):
    horizon, delays = 2**16, (0, 64, 1024)
    losses = FAMILIES[alpha](horizon, 2, m)
    schedules = [
        dars_schedule(
            horizon,
            2,
            segment_starts=losses.segment_starts,
            d_max=d,
            bound=losses.bound,
            lipschitz=losses.lipschitz,
            strong_convexity=alpha,
        )
        for d in delays
    ]

    def run(d, eta, key):
        law = DelayModel(
            lambda key, horizon: jnp.full(horizon, d, jnp.int32), delays[-1], 1
        )
        return blocked(losses, schedules[0]._replace(eta=eta), law, key, alpha)

    over_seeds = jax.vmap(run, (None, None, 0))
    etas = jnp.stack([jnp.asarray(s.eta) for s in schedules])
    regret = jit_short(jax.vmap(over_seeds, (0, 0, None)))(
        jnp.asarray(delays), etas, seeds(4)
    )
    for d, schedule, mean in zip(delays, schedules, np.mean(regret, 1), strict=True):
        most = bound(alpha, schedule, d, losses.bound, losses.lipschitz)
        print(f"alpha {alpha}, m {m}, d {d}: bound over regret {most / mean:.1f}")
        assert mean <= most


def learners(horizon, n, m, d):
    """Three policies as functions of losses, delays and key that give their regret."""
    starts = np.arange(m) * (horizon // m)
    options = {"d_max": d, "k_scale": 0.02}
    restarting = dars_schedule(horizon, n, segment_starts=starts, **options)
    whole = dars_schedule(horizon, n, **options)
    bgd = theory_bgd(horizon, n, d)

    def per_round(schedule):
        def run(losses, delays, key):
            return jnp.diff(
                dars_rollout_blocked(schedule, losses, delays, key).regret, prepend=0.0
            )

        return run

    def descend(losses, delays, key):
        return interact(
            bgd, bco_env(losses), key, horizon, delays=delays, record="full"
        ).record.feedback.regret

    return {"dars": per_round(restarting), "dftbl": per_round(whole), "bgd": descend}


def all_regrets(problem, policies, count, fold):
    """Per policy and seed, ``fold`` of the regrets of all rounds."""

    delays = np.asarray(problem.delays(jax.random.key(0), HORIZON))

    @jit_short
    @jax.vmap
    def run(key):
        return {
            name: fold(policy(problem.losses, delays, key))
            for name, policy in policies.items()
        }

    return {name: np.asarray(r, float) for name, r in run(seeds(count)).items()}


HORIZON = 1024


@pytest.mark.parametrize(("m", "d", "k"), [(4, 32, 8), (2, 16, 32)])
def test_no_policy_learns_a_sign_before_its_block_is_over(m, d, k):
    problem = rademacher_blocks(HORIZON, 2, d, m)
    assert m * d * k == HORIZON
    exact = m * d * k * math.comb(k, k // 2) / 2**k
    regrets = all_regrets(problem, learners(HORIZON, 2, m, d), 512, jnp.sum)
    for name, regret in regrets.items():
        error = np.std(regret, ddof=1) / math.sqrt(len(regret))
        distance = (np.mean(regret) - exact) / error
        print(f"{name}, (m, d, k) = {m, d, k}: {distance:+.2f} standard errors")
        assert abs(distance) <= 4.5, name


def test_no_policy_knows_the_centre_before_the_first_value():
    m, d = 4, 64
    problem = strong_first_block(HORIZON, 2, d, m)

    def first_and_least(regret):
        return jnp.stack([jnp.sum(regret.reshape(m, -1)[:, :d]), jnp.min(regret)])

    regrets = all_regrets(problem, learners(HORIZON, 2, m, d), 512, first_and_least)
    for name, regret in regrets.items():
        first, least = regret.T
        error = np.std(first, ddof=1) / math.sqrt(len(first))
        print(f"{name}: {np.mean(first):.1f} of {m * d / 8} in the first rounds")
        assert np.mean(first) >= m * d / 8 - 4.5 * error, name
        assert np.min(least) >= -1e-4, name
