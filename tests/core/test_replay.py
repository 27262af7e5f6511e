from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_bandit import Decision, Feedback, epsilon_greedy

from jaxopt_suite.core import Logged, Policy, interaction_keys, replay

KEY = jax.random.key(5)
ROWS = 200


def uniform_log(seed=0):
    """Rows of a uniform logging policy over three arms."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, 3, ROWS)
    reward = (arm * 0.5 + rng.normal(size=ROWS)).astype(np.float32)
    decision = Decision(arm, np.zeros(ROWS, bool))
    feedback = Feedback(decision, reward, np.ones(ROWS, bool), np.zeros(ROWS))
    return Logged(np.zeros(ROWS), decision, feedback)


def test_it_learns_from_the_matching_rows_and_no_others():
    log, policy, keys = uniform_log(), epsilon_greedy(3), interaction_keys(KEY)
    result = jax.jit(lambda key: replay(policy, log, key))(KEY)
    select = jax.jit(policy.select)
    counts, sums, matches, reward = np.zeros(3), np.zeros(3), [], []
    for t in range(ROWS):
        state = result.state._replace(
            counts=jnp.asarray(counts, jnp.float32), sums=jnp.asarray(sums, jnp.float32)
        )
        arm = int(select(state, 0.0, jax.random.fold_in(keys.select, t)).arm)
        hit = arm == log.decision.arm[t]
        counts[arm] += hit
        sums[arm] += hit * log.feedback.reward[t]
        matches.append(counts.sum())
        reward.append(sums.sum())
    np.testing.assert_array_equal(result.matches, matches)
    np.testing.assert_allclose(result.reward, reward, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(result.state.counts, counts)
    np.testing.assert_allclose(result.state.sums, sums, rtol=1e-5)
    assert 0 < matches[-1] < ROWS


class Action(NamedTuple):
    x: Any
    note: Any


class Seen(NamedTuple):
    count: Any
    notes: Any


def always(x, note):
    """Plays ``x`` and counts what it learns from; its decisions carry a note."""
    return Policy(
        init=lambda key: Seen(jnp.zeros([]), jnp.zeros([])),
        select=lambda state, context, key: Action(jnp.array(x), jnp.array(note)),
        update=lambda feedback, state: Seen(
            state.count + feedback.mask * feedback.reward,
            state.notes + feedback.decision.note,
        ),
    )


def plain_log():
    decision = Action(np.array([[1, 2], [1, 0], [1, 2], [0, 2]]), np.array([7] * 4))
    mask = np.array([True, True, False, True])
    # A row that is skipped may hold anything.
    reward = np.array([1.0, np.nan, 4.0, np.nan], np.float32)
    return Logged(np.zeros(4), decision, Feedback(decision, reward, mask, mask))


def test_without_an_arm_all_leaves_are_compared():
    result = replay(always([1, 2], 7), plain_log(), KEY)
    np.testing.assert_array_equal(result.matches, [1, 1, 1, 1])
    np.testing.assert_array_equal(result.reward, [1, 1, 1, 1])
    assert float(result.state.count) == 1
    assert not replay(always([1, 2], 8), plain_log(), KEY).matches.any()


def test_a_match_of_ones_own_and_the_policys_decision_in_the_feedback():
    same_x = lambda decision, logged: jnp.all(decision.x == logged.x)  # noqa: E731
    result = replay(always([1, 2], 100), plain_log(), KEY, match=same_x)
    np.testing.assert_array_equal(result.matches, [1, 1, 1, 1])
    assert float(result.state.notes) == 100  # and not the logged 7


def test_replay_says_what_is_wrong():
    log = plain_log()
    short = jax.tree.map(lambda x: x[:3], log.feedback)
    with pytest.raises(ValueError, match=r"one leading size, got 4 at logged\.context"):
        replay(always([1, 2], 7), log._replace(feedback=short), KEY)
    with pytest.raises(ValueError, match="logged must have at least one row"):
        replay(always([1, 2], 7), jax.tree.map(lambda x: x[:0], log), KEY)
    with pytest.raises(ValueError, match=r"Action without \['decision', 'mask', 'rew"):
        replay(always([1, 2], 7), log._replace(feedback=log.decision), KEY)
