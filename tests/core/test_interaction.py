import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_bandit import Feedback, epsilon_greedy, gaussian_arms

from jaxopt_suite.core import (
    Environment,
    Policy,
    interact,
    interaction_keys,
    interaction_loop,
    run_chunks,
    sweep,
    uniform_delay,
)

MEANS = (0.0, 0.5, 1.0)
KEY = jax.random.key(11)
POLICY, ARMS = epsilon_greedy(3), gaussian_arms(MEANS)


@functools.cache
def full_run(delays=None, regret=None):
    def run(key):
        environment = gaussian_arms(MEANS, regret)
        return interact(POLICY, environment, key, 40, delays=delays, record="full")

    return jax.jit(run)(KEY)


@pytest.mark.parametrize("delay", [None, 3])
def test_a_service_that_decides_now_and_learns_late_does_the_same(delay):
    keys = interaction_keys(KEY)
    state = POLICY.init(keys.policy)
    world, context = ARMS.init(keys.environment)
    select, step, update = map(jax.jit, (POLICY.select, ARMS.step, POLICY.update))
    inbox, arms = [], []
    for t in range(40):
        decision = select(state, context, jax.random.fold_in(keys.select, t))
        arms.append(int(decision.arm))
        step_key = jax.random.fold_in(keys.step, t)
        world, context, feedback = step(world, decision, step_key)
        inbox.append(feedback)
        if t >= (delay or 0):
            state = update(inbox.pop(0), state)
    run = full_run(delay)
    np.testing.assert_array_equal(run.record.decision.arm, arms)
    np.testing.assert_allclose(run.state.sums, state.sums, rtol=1e-6)
    np.testing.assert_array_equal(run.state.counts, state.counts)
    assert len(set(arms)) == 3
    assert int(run.environment) == 40


def test_update_is_called_once_a_round_whatever_comes():
    assert int(full_run(3).state.updates) == 40
    assert float(full_run(3).state.counts.sum()) == 37


def test_no_delay_and_delay_zero_decide_the_same():
    now, zero = full_run(), full_run(0)
    np.testing.assert_array_equal(now.record.decision.arm, zero.record.decision.arm)
    np.testing.assert_array_equal(now.record.arrival, np.arange(40))


@pytest.mark.parametrize("delays", [None, 3])
def test_regret_is_recorded_and_changes_no_decision(delays):
    plain, spoiled = full_run(delays), full_run(delays, float("nan"))
    assert np.all(np.isnan(spoiled.record.feedback.regret))
    assert not np.any(np.isnan(plain.record.feedback.regret))
    np.testing.assert_array_equal(
        plain.record.decision.arm, spoiled.record.decision.arm
    )


def test_lanes_of_a_sweep_equal_single_runs():
    model = uniform_delay(4)

    def run(key, epsilon):
        policy = epsilon_greedy(3, epsilon)
        record = interact(policy, ARMS, key, 30, delays=model, record="full").record
        return record.decision.arm, record.arrival

    keys, epsilons = jax.random.split(KEY, 3), np.array([0.1, 0.5])
    swept = sweep(run, keys, {"epsilon": epsilons})
    single = jax.jit(run)
    for i, epsilon in enumerate(epsilons):
        for j, key in enumerate(keys):
            arm, arrival = single(key, epsilon)
            np.testing.assert_array_equal(swept[0][i, j], arm)
            np.testing.assert_array_equal(swept[1][i, j], arrival)
    assert len({tuple(row) for row in np.asarray(swept[1][0])}) == 3


def test_pmap_equals_vmap():
    run = functools.partial(interact, POLICY, ARMS, horizon=10, delays=2)
    keys = jax.random.split(KEY, 2)
    pmapped, vmapped = jax.pmap(run)(keys), jax.jit(jax.vmap(run))(keys)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6), pmapped, vmapped
    )


@pytest.mark.parametrize(
    ("checkpoints", "rounds"),
    [(3, [14, 27, 40]), (64, range(1, 41))],
)
def test_the_summary_is_the_cumulative_sum_at_even_rounds(checkpoints, rounds):
    loop = interaction_loop(POLICY, ARMS, 40, delays=3, checkpoints=checkpoints)
    state, rows = run_chunks(loop, loop.init(KEY), 40, chunk=40)
    assert rows == ()
    summary, feedback = state.summary, full_run(3).record.feedback
    np.testing.assert_array_equal(summary.rounds, list(rounds))
    at = np.array(rounds) - 1
    for name in ("regret", "reward"):
        total = np.cumsum(np.asarray(getattr(feedback, name), np.float64))[at]
        np.testing.assert_allclose(getattr(summary, name), total, rtol=2e-7, atol=1e-6)
    assert summary.value is None


def test_chunks_equal_the_driver():
    loop = interaction_loop(POLICY, ARMS, 40, delays=3, record="full")
    state, rows = run_chunks(loop, loop.init(KEY), 40, chunk=17)
    whole = full_run(3)
    jax.tree.map(np.testing.assert_array_equal, rows, whole.record)
    jax.tree.map(np.testing.assert_array_equal, state.policy, whole.state)


NOTHING_TO_LEARN = Policy(
    init=lambda key: (),
    select=lambda state, context, key: (),
    update=lambda feedback, state: state,
)


def constant_reward(value):
    step = lambda state, d, key: ((), (), Feedback(d, value, True, value))  # noqa: E731
    return Environment(lambda key: ((), ()), step)


def test_a_million_rounds_in_float32_sum_to_one_rounding():
    value, horizon = np.float32(0.1), 1_000_000
    run = jax.jit(
        lambda key: interact(
            NOTHING_TO_LEARN, constant_reward(value), key, horizon, checkpoints=10
        )
    )
    summary = run(KEY).record
    exact = np.float64(value) * np.asarray(summary.rounds, np.float64)
    assert summary.reward.dtype == jnp.float32
    np.testing.assert_array_max_ulp(summary.reward, exact.astype(np.float32), 1)


def test_bfloat16_and_integer_fields_are_summed_in_float32():
    for value, total in ((jnp.bfloat16(0.5), 500.0), (jnp.int32(2), 2000.0)):
        record = interact(NOTHING_TO_LEARN, constant_reward(value), KEY, 1000).record
        assert record.reward.dtype == jnp.float32
        assert float(record.reward[-1]) == total


def compiled_bytes(horizon, delays):
    run = functools.partial(
        interact,
        NOTHING_TO_LEARN,
        constant_reward(0.1),
        horizon=horizon,
        delays=delays,
    )
    memory = jax.jit(run).lower(KEY).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes + memory.output_size_in_bytes


def test_the_summary_takes_no_more_memory_for_a_longer_run():
    assert compiled_bytes(10_000, None) == compiled_bytes(1_000, None)
    # With delays: a few integers a round (delays, arrivals, their order), no feedback.
    short, long = (compiled_bytes(n, uniform_delay(7)) for n in (1_000, 10_000))
    assert long - short <= 9_000 * 4 * 8


def test_interact_says_what_is_wrong():
    with pytest.raises(ValueError, match="horizon must be an integer >= 1, got 0"):
        interact(POLICY, ARMS, KEY, 0)
    with pytest.raises(ValueError, match="record must be one of summary, full, got"):
        interact(POLICY, ARMS, KEY, 5, record="all")
    with pytest.raises(ValueError, match="checkpoints must be an integer >= 1, got 0"):
        interact(POLICY, ARMS, KEY, 5, checkpoints=0)
