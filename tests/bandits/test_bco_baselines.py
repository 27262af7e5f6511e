"""Gradient steps and experts against NumPy loops on the same directions and values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.bco_baselines import bandit_mild_ogd, delayed_bgd
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.bandits.convex_sets import box, l2_ball
from jaxopt_suite.core import interact
from jaxopt_suite.core.delays import uniform_delay
from jaxopt_suite.problems.bco import bco_env
from jaxopt_suite.problems.bco_losses import norm_segments

# Most of the time here is compilation.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
HORIZON, N, D_MAX = 400, 2, 9
WORLD = bco_env(norm_segments(HORIZON, N, 2))


def played(policy, key, delays):
    """Points, directions, values and arrival rounds of a run."""
    run = jit(
        lambda key: interact(policy, WORLD, key, HORIZON, delays=delays, record="full")
    )
    record = run(key).record
    x, u = record.decision.x, record.decision.direction
    return map(np.asarray, (x, u, record.feedback.value, record.arrival))


def onto_ball(y, radius):
    return y * min(1.0, radius / max(np.linalg.norm(y), 1e-300))


@pytest.mark.parametrize(
    "delays", [pytest.param(None, marks=pytest.mark.slow), uniform_delay(D_MAX)]
)
def test_delayed_bgd_is_a_projected_step_for_what_each_round_brings(delays):
    eta = lambda t: 0.3 / (t + 1.0)  # noqa: E731
    delta = lambda t: 0.4 - 0.1 * (t >= 200)  # noqa: E731
    with jax.enable_x64(True):
        policy = delayed_bgd(jnp.zeros(N), delta=delta, eta=eta)
        x, u, value, arrival = played(policy, jax.random.key(1), delays)
    y, moves = np.zeros(N), 0
    for t in range(HORIZON):
        np.testing.assert_allclose(x[t], y + delta(t) * u[t], atol=1e-12)
        due = np.flatnonzero(arrival == t)
        g = sum(N / delta(s) * value[s] * u[s] for s in due)
        moved = onto_ball(y - eta(t) * g, 1 - delta(t + 1))
        moves, y = moves + bool(np.any(moved != y)), moved
    assert np.linalg.norm(x, axis=1).max() <= 1 + 1e-12
    assert moves > 200


def test_mild_ogd_weighs_experts_by_what_they_lost_when_they_played():
    k_scale = 0.02
    schedule = dars_schedule(HORIZON, N, d_max=D_MAX, k_scale=k_scale)
    K, delta, eta = int(schedule.K[0]), schedule.delta[0], schedule.eta[0]
    count = 1 + int(np.ceil(np.log2(np.ceil(HORIZON / K)) / 2))
    with jax.enable_x64(True):
        policy = bandit_mild_ogd(jnp.zeros(N), HORIZON, d_max=D_MAX, k_scale=k_scale)
        x, u, value, arrival = played(policy, jax.random.key(2), uniform_delay(D_MAX))
    experts, scores = np.zeros((count, N)), np.zeros(count)
    stood = np.zeros((HORIZON, count, N))
    came = []
    for t in range(HORIZON):
        weights = np.exp(-2 * eta * scores)
        weights /= np.arange(1, count + 1) * np.arange(2, count + 2)
        y = weights @ experts / weights.sum()
        stood[t] = experts - y
        np.testing.assert_allclose(x[t], y + delta * u[t], atol=1e-10)
        came += list(np.flatnonzero(arrival == t))
        if (t + 1) % K == 0:
            terms = [N / delta * value[s] * u[s] for s in came]
            for s, c in zip(came, terms, strict=True):
                scores += stood[s] @ c
            for i in range(count):
                step = eta * 2**i * np.sum(terms, axis=0)
                experts[i] = onto_ball(experts[i] - step, 1 - delta)
            came = []
    assert count >= 4
    assert np.ptp(scores) > 1
    assert np.linalg.norm(x, axis=1).max() <= 1 + 1e-12


@pytest.mark.slow
def test_a_sweep_over_radius_and_step_is_one_trace_and_equals_the_loop():
    traces = []

    def regret(delta, eta):
        traces.append(None)
        policy = delayed_bgd(jnp.zeros(N), delta=delta, eta=eta)
        return interact(
            policy, WORLD, jax.random.key(3), HORIZON, delays=3, checkpoints=1
        ).record.regret[0]

    delta, eta = jnp.array([0.1, 0.2, 0.4]), jnp.array([0.03, 0.01, 0.003])
    single = jit(regret)
    looped = [float(single(*pair)) for pair in zip(delta, eta, strict=True)]
    assert len(traces) == 1
    np.testing.assert_allclose(jit(jax.vmap(regret))(delta, eta), looped, rtol=1e-4)
    assert len(set(looped)) == 3


def test_actions_may_be_any_pytree():
    example = {"a": jnp.zeros((2, 1)), "b": jnp.zeros((), jnp.bfloat16)}
    for policy in (
        delayed_bgd(example, delta=0.1, eta=0.1, domain=l2_ball(0.5)),
        bandit_mild_ogd(example, 400, domain=l2_ball(0.5), k_scale=0.02),
    ):
        state = jax.eval_shape(policy.init, jax.random.key(0))
        decision = jax.eval_shape(policy.select, state, (), jax.random.key(0))
        like = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)  # noqa: E731
        assert like(decision.x) == like(example)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: delayed_bgd(x, delta=0.0, eta=0.1), "delta must be > 0, got 0.0"),
        (
            lambda x: delayed_bgd(x, delta=0.6, eta=0.1, domain=box(jnp.full(2, 0.5))),
            r"delta must be in \(0, 0.5\], got 0.6",
        ),
        (lambda x: delayed_bgd(x, delta=0.1, eta=-1.0), "eta must be >= 0, got -1.0"),
        (
            lambda x: delayed_bgd(jnp.arange(2), delta=0.1, eta=0.1),
            "example_action must have a floating dtype",
        ),
        (lambda x: bandit_mild_ogd(x, 0), "horizon must be an integer >= 1, got 0"),
        (lambda x: bandit_mild_ogd(x, 9, d_max=9), "d_max must be below the horizon"),
        (lambda x: bandit_mild_ogd(x, 9, k_scale=0.0), "k_scale must be"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.zeros(2))
