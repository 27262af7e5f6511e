"""Restarts that are found, against a simulation; and their price at full size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.bco import dars, dftbl
from jaxopt_suite.bandits.bco_detect import dars_detect
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.core import DelayModel, interact
from jaxopt_suite.problems.bco import bco_env, offset_losses
from jaxopt_suite.problems.bco_losses import norm_segments

T, N, D_MAX = 300, 2, 11
OPTIONS = {"d_max": D_MAX, "bound": 0.5, "k_scale": 0.2}
WINDOW, THRESHOLD, EXPECTED = 2, 0.3, 60
KEY = jax.random.key(3)


def simulate(decision, value, delays):
    """Centres and epochs from the points and values of a run, by the definition."""
    with np.errstate(all="raise"):
        schedule = dars_schedule(EXPECTED, N, **OPTIONS)
        K, delta, eta = int(schedule.K[0]), schedule.delta[0], schedule.eta[0]
        y, g, epoch, first = np.zeros(N), np.zeros(N), 0, 0
        came, rows, levels = {}, [], []  # came[block]: its values so far
        for t in range(T):
            rows.append((y, epoch))
            for s in range(t + 1):
                if s + delays[s] == t and s >= first:
                    g = g + N / delta * value[s] * decision.direction[s]
                    came.setdefault((s - first) // K, []).append(value[s])
            if (t + 1 - first) % K:
                continue
            y = -eta * g
            y = y * min(1, (1 - delta) / max(np.linalg.norm(y), 1e-30))
            means = []
            while len(came.get(len(means), ())) == K:
                means.append(np.mean(came[len(means)]))
            levels = [
                np.mean(means[i - WINDOW + 1 : i + 1])
                for i in range(WINDOW - 1, len(means))
            ]
            if levels and levels[-1] - min(levels) > THRESHOLD * OPTIONS["bound"]:
                y, g, epoch, first = np.zeros(N), np.zeros(N), epoch + 1, t + 1
                came = {}
        return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("delays", [0, "uniform", "burst"])
def test_rounds_are_those_of_the_definition(delays):
    delays = {
        0: np.zeros(T, int),
        "uniform": np.random.default_rng(0).integers(0, D_MAX + 1, T),
        "burst": D_MAX - np.arange(T) % (D_MAX + 1),
    }[delays]
    decision, value = play(delays)
    x = np.asarray(decision.x, np.float64)
    centres = x - decision.delta[:, None] * decision.direction
    y, epoch = simulate(decision, np.asarray(value, np.float64), delays)
    np.testing.assert_array_equal(decision.segment, epoch)
    np.testing.assert_allclose(centres, y, atol=3e-5)
    assert 2 <= epoch[-1] <= 20


@functools.cache
def player():
    policy = dars_detect(
        jnp.zeros(N), T, EXPECTED, window=WINDOW, threshold=THRESHOLD, **OPTIONS
    )

    @jax.jit
    def run(delays):
        late = DelayModel(lambda key, horizon: delays, D_MAX, D_MAX + 1)
        world = bco_env(norm_segments(T, N, 5))
        record = interact(policy, world, KEY, T, delays=late, record="full").record
        return record.decision, record.feedback.value

    return run


def play(delays):
    return jax.tree.map(np.asarray, player()(jnp.asarray(delays)))


HORIZON, LENGTH, D = 2**17, 2**14, 64
LOSSES = norm_segments(HORIZON, N, 8)


def regret(policy):
    run = jax.jit(lambda key: interact(policy, bco_env(LOSSES), key, HORIZON, delays=D))
    return float(run(jax.random.key(0)).record.regret[-1])


@functools.cache
def references():
    oracle = dars(
        jnp.zeros(N),
        dars_schedule(
            HORIZON, N, segment_starts=LOSSES.segment_starts, d_max=D, k_scale=0.2
        ),
    )
    never = dftbl(jnp.zeros(N), HORIZON, d_max=D, k_scale=0.2)
    return [regret(oracle), regret(never)]


@pytest.mark.slow
@pytest.mark.parametrize("guess", [0.25, 0.5, 1, 2, 4])
def test_a_wrong_guess_of_the_length_costs_little(guess):
    policy = dars_detect(
        jnp.zeros(N), HORIZON, int(guess * LENGTH), d_max=D, k_scale=0.2
    )
    oracle, never = references()
    found = regret(policy)
    assert found <= 1.6 * oracle
    assert found <= 0.5 * never


@pytest.mark.slow
@pytest.mark.parametrize(("m", "d"), [(1, 0), (8, D)])
def test_a_baseline_takes_out_what_all_losses_have_in_common(m, d):
    horizon = 2**16
    losses = norm_segments(horizon, N, m)
    schedule = dars_schedule(
        horizon, N, segment_starts=losses.segment_starts, d_max=d, k_scale=0.2
    )

    keys = jax.random.split(jax.random.key(0), 2)

    @jax.jit
    def regrets(offset):
        def run(key, baseline):
            world = bco_env(offset_losses(losses, offset))
            policy = dars(jnp.zeros(N), schedule, baseline=baseline)
            return interact(
                policy, world, key, horizon, delays=d or None
            ).record.regret[-1]

        return [
            jnp.mean(jax.vmap(lambda key: run(key, baseline))(keys))
            for baseline in (None, "mean")
        ]

    plain, less = regrets(0.0)
    assert less <= 1.05 * plain
    plain, less = regrets(5.0)
    assert less <= plain / 2
