"""Small methods that keep the whole contract, to run the battery on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxopt_suite.core import Environment, Policy, Transformation
from jaxopt_suite.core.checks import check_interval

NUM_ARMS = 3


class ArmFeedback(NamedTuple):
    decision: Array
    mask: Array
    reward: Array
    regret: Array


class ArmsState(NamedTuple):
    means: Array


class StatisticsState(NamedTuple):
    total: Array
    count: Array


class AverageState(NamedTuple):
    value: Array


def noisy_arms(noise):
    """Arms with random means, uniform noise and a context. >>> noisy_arms(0.1)"""
    check_interval("noise", noise, 0.0)

    def init(key):
        means, context = jax.random.uniform(key, (2, NUM_ARMS), jnp.float32)
        return ArmsState(means), context

    def step(state, decision, key):
        draws = jax.random.uniform(key, (NUM_ARMS + 1,), jnp.float32)
        mean = state.means[decision]
        reward = mean + noise * (draws[0] - 0.5)
        regret = jnp.max(state.means) - mean
        feedback = ArmFeedback(decision, jnp.array(True), reward, regret)
        return state, draws[1:], feedback

    return Environment(init, step)


def start_statistics(key):
    del key
    # Two arrays, not one twice: a donated buffer can only be given away once.
    return StatisticsState(*jnp.zeros([2, NUM_ARMS], jnp.float32))


def learn(feedback, state, reward=None):
    """Adds one feedback, or a batch of them, to the statistics of its arms."""
    weight = jnp.where(feedback.mask, 1.0, 0.0)
    reward = feedback.reward if reward is None else reward
    total = state.total.at[feedback.decision].add(weight * reward)
    return StatisticsState(total, state.count.at[feedback.decision].add(weight))


def scores(state, context, bonus):
    mean = state.total / jnp.maximum(state.count, 1.0)
    return mean + 0.1 * context + bonus / jnp.sqrt(1.0 + state.count)


def optimistic(bonus):
    """Picks the arm with the best mean plus a bonus. >>> optimistic(0.5)"""
    return Policy(
        init=start_statistics,
        select=lambda state, context, key: jnp.argmax(scores(state, context, bonus)),
        update=learn,
    )


def perturbed(scale):
    """Picks the best arm after adding noise. >>> perturbed(1.0)"""

    def select(state, context, key):
        noise = jax.random.uniform(key, (NUM_ARMS,), jnp.float32)
        return jnp.argmax(scores(state, context, 0.0) + scale * noise)

    return Policy(start_statistics, select, learn)


def moving_average(rate):
    """Follows its inputs. >>> moving_average(0.1)"""

    def update(inputs, state, **extra):
        del extra
        value = state.value + rate * (inputs - state.value)
        value = value.astype(state.value.dtype)
        return value, AverageState(value)

    return Transformation(lambda start: AverageState(jnp.copy(start)), update)
