"""Late feedback against a simulation that keeps a Python list of what is under way."""

import functools
from typing import Any, NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxopt_suite.core import (
    DelayModel,
    Environment,
    Policy,
    constant_delay,
    interact,
    interaction_loop,
    uniform_delay,
)

HORIZON, D_MAX = 12, 5
NOTHING = -1


class Feedback(NamedTuple):
    decision: Any
    value: Any
    mask: Any


class Diary(NamedTuple):
    rounds: Any  # rounds[t]: whose feedback round t brought, in order, then NOTHING
    values: Any
    t: Any


def diarist(width):
    """A policy that decides "this is round t" and writes down what it is brought."""

    def init(key):
        del key
        page = jnp.full((HORIZON, width), NOTHING)
        return Diary(page, jnp.zeros((HORIZON, width)), jnp.zeros([], jnp.int32))

    def select(state, context, key):
        # A key in the decision: policies may carry any leaf to their update.
        return state.t, key

    def update(feedback, state):
        assert feedback.mask.shape == (width,)
        t, (rounds, keys) = state.t, feedback.decision
        assert jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
        rounds = jnp.where(feedback.mask, rounds, NOTHING)
        return Diary(
            state.rounds.at[t].set(rounds),
            state.values.at[t].set(feedback.value),
            t + 1,
        )

    return Policy(init, select, update)


def teller(silent_round=None):
    """An environment whose value in round t is 100 + t; one round may be masked."""

    def step(state, decision, key):
        t, _ = decision
        mask = jnp.array(True) if silent_round is None else t != silent_round
        return (), (), Feedback(decision, 100.0 + t, mask)

    return Environment(lambda key: ((), ()), step)


def by_hand(delays, width, silent_round=None):
    """Row t: the rounds s with s + delays[s] = t, oldest first, and their values."""
    rounds = np.full((HORIZON, width), NOTHING)
    values = np.zeros((HORIZON, width))
    for t in range(HORIZON):
        due = [s for s in range(t + 1) if s + delays[s] == t]
        for slot, s in enumerate(due):
            rounds[t, slot] = NOTHING if s == silent_round else s
            values[t, slot] = 100.0 + s
    return rounds, values


@functools.cache
def traced_run(width):
    """One compile for all delays: they come from a model that hands them through."""

    def run(delays):
        model = DelayModel(lambda key, horizon: delays, D_MAX, width)
        key = jax.random.key(0)
        return interact(diarist(width), teller(), key, HORIZON, delays=model).state

    return jax.jit(run)


@given(st.lists(st.integers(0, D_MAX), min_size=HORIZON, max_size=HORIZON))
@settings(deadline=None, max_examples=150)
def test_every_round_brings_what_is_due_oldest_first(delays):
    state = traced_run(D_MAX + 1)(np.array(delays, np.int32))
    rounds, values = by_hand(delays, D_MAX + 1)
    np.testing.assert_array_equal(state.rounds, rounds)
    np.testing.assert_array_equal(state.values, values)


@pytest.mark.parametrize(
    ("delays", "width"),
    [
        (np.zeros(HORIZON, int), 1),
        (np.full(HORIZON, 3), 1),
        (np.arange(HORIZON)[::-1], HORIZON),  # all in the last round
        (np.full(HORIZON, 10**9), 1),  # none ever
        (np.array([4, 3, 2, 1, 0, 9, 0, 0, 2, 1, 0, 0]), 5),
        (3, 1),
    ],
)
def test_concrete_delays_make_batches_as_wide_as_the_busiest_round(delays, width):
    # The policy itself asserts the width of its batches.
    run = interact(diarist(width), teller(), jax.random.key(0), HORIZON, delays=delays)
    rounds, values = by_hand(np.broadcast_to(delays, HORIZON), width)
    np.testing.assert_array_equal(run.state.rounds, rounds)
    np.testing.assert_array_equal(run.state.values, values)


def test_a_feedback_that_is_masked_stays_masked():
    delays = np.array([2, 1, 0] * 4)
    run = interact(
        diarist(3), teller(silent_round=4), jax.random.key(0), HORIZON, delays=delays
    )
    rounds, values = by_hand(delays, 3, silent_round=4)
    np.testing.assert_array_equal(run.state.rounds, rounds)
    np.testing.assert_array_equal(run.state.values, values)


def test_the_trace_has_arrival_rounds_and_the_horizon_for_never():
    delays = np.array([0, 20, 1] * 4)
    trace = interact(
        diarist(2), teller(), jax.random.key(0), HORIZON, delays=delays, record="full"
    ).record
    due = np.arange(HORIZON) + delays
    np.testing.assert_array_equal(trace.arrival, np.minimum(due, HORIZON))
    np.testing.assert_array_equal(trace.feedback.value, 100 + np.arange(HORIZON))


def test_a_model_is_sized_by_its_draw_and_under_jit_by_its_worst_case():
    key, model = jax.random.key(3), uniform_delay(D_MAX)
    traced = jax.jit(
        lambda key: interact(diarist(6), teller(), key, HORIZON, delays=model).state
    )(key)
    width = int((np.asarray(traced.rounds) != NOTHING).sum(1).max())
    assert width < 6
    drawn = interact(diarist(width), teller(), key, HORIZON, delays=model).state
    np.testing.assert_array_equal(drawn.rounds, traced.rounds[:, :width])


def test_the_ring_holds_the_largest_delay_that_arrives():
    delays = np.full(HORIZON, 10**6)
    delays[2] = 4
    loop = interaction_loop(diarist(1), teller(), HORIZON, delays=delays)
    assert loop.init(jax.random.key(0)).late.ring.value.shape == (5,)


class Unmasked(NamedTuple):
    decision: Any
    value: Any


@pytest.mark.parametrize(
    ("delays", "message"),
    [
        (np.zeros(3, int), r"integers of shape \(12,\), one per round, got int64 of"),
        (0.5, "got float64"),
        (-1, "delays must be >= 0, got -1"),
        (np.array([0] * 11 + [-7]), "got -7"),
        (DelayModel(lambda k, n: jnp.arange(n), 3, 9), "d_max .* at least 5, .* got 3"),
        (
            DelayModel(lambda k, n: n - 1 - jnp.arange(n), 99, 2),
            "max_arrivals .* at least 12, .* got 2",
        ),
    ],
)
def test_delays_say_what_is_wrong(delays, message):
    with pytest.raises(ValueError, match=message):
        interact(diarist(1), teller(), jax.random.key(0), HORIZON, delays=delays)


def test_traced_delays_and_a_missing_mask_are_refused():
    run = functools.partial(interact, diarist(1), teller(), jax.random.key(0), HORIZON)
    with pytest.raises(ValueError, match="delays must be concrete or a DelayModel"):
        jax.jit(lambda delays: run(delays=delays))(np.zeros(HORIZON, int))
    bare = Environment(
        lambda key: ((), ()), lambda state, d, key: ((), (), Unmasked(d, 0.0))
    )
    with pytest.raises(ValueError, match=r"field mask.*Unmasked.*'decision', 'value'"):
        interact(diarist(1), bare, jax.random.key(0), HORIZON, delays=constant_delay(1))
