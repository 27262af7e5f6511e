"""Policies, environments and transformations that each break one rule."""

import jax
import jax.numpy as jnp
import numpy as np
import sound

from jaxopt_suite.core import Environment, Policy, Transformation

# --- policies ------------------------------------------------------------------------


def remembers_context(bonus):
    """Its update needs the select before it. >>> remembers_context(0.5)"""
    good, seen = sound.optimistic(bonus), []

    def select(state, context, key):
        seen.append(context[0])
        return good.select(state, context, key)

    def update(feedback, state):
        return sound.learn(feedback, state, feedback.reward + seen[-1])

    return Policy(good.init, select, update)


def reads_regret(bonus):
    """Learns from what it must not see. >>> reads_regret(0.5)"""

    def update(feedback, state):
        return sound.learn(feedback, state, feedback.reward - feedback.regret)

    return sound.optimistic(bonus)._replace(update=update)


def ignores_mask(bonus):
    """Counts what never came. >>> ignores_mask(0.5)"""

    def update(feedback, state):
        everywhere = jnp.ones_like(feedback.mask)
        return sound.learn(feedback._replace(mask=everywhere), state)

    return sound.optimistic(bonus)._replace(update=update)


def one_at_a_time(bonus):
    """Knows no batches. >>> one_at_a_time(0.5)"""

    def update(feedback, state):
        arm = jax.nn.one_hot(feedback.decision, sound.NUM_ARMS, dtype=jnp.float32)
        weight = jnp.where(feedback.mask, arm, 0.0)
        total = state.total + weight * feedback.reward
        return sound.StatisticsState(total, state.count + weight)

    return sound.optimistic(bonus)._replace(update=update)


def draws_once(scale):
    """Draws from a key of its own. >>> draws_once(1.0)"""
    good = sound.perturbed(scale)

    def select(state, context, key):
        del key
        return good.select(state, context, jax.random.key(0))

    return good._replace(select=select)


def keeps_history(bonus):
    """Its state grows. >>> keeps_history(0.5)"""

    def update(feedback, state):
        state = sound.learn(feedback, state)
        count = jnp.concatenate([state.count, feedback.reward[None]])
        return state._replace(count=count)

    select = lambda state, context, key: jnp.argmax(context)  # noqa: E731
    return Policy(sound.start_statistics, select, update)


# --- environments --------------------------------------------------------------------


def numpy_noise(noise):
    """Draws its rewards from NumPy. >>> numpy_noise(0.1)"""
    good = sound.noisy_arms(noise)

    def step(state, decision, key):
        state, context, feedback = good.step(state, decision, key)
        reward = feedback.reward + np.random.uniform()  # noqa: NPY002
        return state, context, feedback._replace(reward=reward)

    return good._replace(step=step)


def forgets_mask(noise):
    """Its feedback has no mask. >>> forgets_mask(0.1)"""
    good = sound.noisy_arms(noise)

    def step(state, decision, key):
        state, context, feedback = good.step(state, decision, key)
        return state, context, sound.StatisticsState(decision, feedback.reward)

    return good._replace(step=step)


def changes_context(noise):
    """Its later contexts are integers. >>> changes_context(0.1)"""
    good = sound.noisy_arms(noise)

    def step(state, decision, key):
        state, context, feedback = good.step(state, decision, key)
        return state, context.astype(jnp.int32), feedback

    return good._replace(step=step)


def ignores_keys(noise):
    """Every run is the same. >>> ignores_keys(0.1)"""
    good, key = sound.noisy_arms(noise), jax.random.key(0)
    return Environment(
        init=lambda _: good.init(key),
        step=lambda state, decision, _: good.step(state, decision, key),
    )


# --- transformations -----------------------------------------------------------------


def wide_outputs(rate):
    """Its outputs turn float64. >>> wide_outputs(0.1)"""
    good = sound.moving_average(rate)

    def update(inputs, state, **extra):
        outputs, state = good.update(inputs, state, **extra)
        return outputs * np.linspace(1.0, 2.0, outputs.size), state

    return good._replace(update=update)


def skips_nan(rate):
    """Replaces NaN by 0 and tells nobody. >>> skips_nan(0.1)"""
    good = sound.moving_average(rate)

    def update(inputs, state, **extra):
        return good.update(jnp.nan_to_num(inputs), state, **extra)

    return good._replace(update=update)


def bare_pair(rate):
    """Returns a plain tuple. >>> bare_pair(0.1)"""
    return tuple(sound.moving_average(rate))


def swaps_its_results(rate):
    """Returns the state first. >>> swaps_its_results(0.1)"""
    good = sound.moving_average(rate)

    def update(inputs, state, **extra):
        outputs, state = good.update(inputs, state, **extra)
        return state, outputs

    return Transformation(good.init, update)
