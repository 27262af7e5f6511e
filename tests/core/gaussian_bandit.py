"""Gaussian arms and an epsilon-greedy policy, small enough to check by hand."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxopt_suite.core import Environment, Policy


class Decision(NamedTuple):
    arm: Any
    explored: Any


class Feedback(NamedTuple):
    decision: Any
    reward: Any
    mask: Any = True
    regret: Any = 0.0


class PolicyState(NamedTuple):
    counts: Any
    sums: Any
    updates: Any  # calls of update, with something in them or not


def epsilon_greedy(num_arms, epsilon=0.2):
    """Mean rewards of the arms; the feedback has a batch axis, or none."""

    def init(key):
        del key
        zeros = jnp.zeros(num_arms)
        return PolicyState(zeros, zeros, jnp.zeros([], jnp.int32))

    def select(state, context, key):
        del context
        u = jax.random.uniform(key)
        explore = u < epsilon
        best = jnp.argmax(state.sums / jnp.maximum(state.counts, 1.0))
        arm = jnp.where(explore, (u / epsilon * num_arms).astype(jnp.int32), best)
        return Decision(arm, explore)

    def update(feedback, state):
        arm, seen = feedback.decision.arm, jnp.where(feedback.mask, 1.0, 0.0)
        reward = jnp.where(feedback.mask, feedback.reward, 0.0)
        return PolicyState(
            state.counts.at[arm].add(seen),
            state.sums.at[arm].add(reward),
            state.updates + 1,
        )

    return Policy(init, select, update)


def gaussian_arms(means, regret=None):
    """Unit Gaussian rewards; ``regret`` replaces what is reported as regret."""
    means = jnp.asarray(means)

    def init(key):
        del key
        return jnp.zeros([], jnp.int32), ()

    def step(state, decision, key):
        mean = means[decision.arm]
        gap = jnp.max(means) - mean if regret is None else jnp.asarray(regret)
        reward = mean + jax.random.normal(key)
        return state + 1, (), Feedback(decision, reward, jnp.array(True), gap)

    return Environment(init, step)
