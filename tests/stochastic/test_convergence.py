"""What the methods reach on a quadratic under noise without variance or mean.

The figures in the comments were measured on other seeds, by another program.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.stochastic import (
    additive,
    aggregate_mean,
    aggregate_median_of_means,
    cauchy,
    centred_pareto,
    clipped_sgd,
    default_num_groups,
    median_of_means,
    mom_clipped_sgd,
    noisy_oracle,
    symmetric_stable,
)

# f(x) = (x - 3)^T H (x - 3) / 2 from 0 in five dimensions; f(0) = 13.5.
FIVE = tuple(np.linspace(0.2, 1, 5))
TWENTY = tuple(np.linspace(0.2, 1, 20))


def errors(optimizers, noise, batch, steps, seeds, curvatures=FIVE, seed=0):
    """f(x_K) - f* of optimizers on the same noise: one row each, a column a seed."""
    h = jnp.asarray(curvatures, jnp.float32)
    oracle = noisy_oracle(lambda x: h * (x - 3), noise, batch)

    def run(key):
        def step(carry, key):
            new = []
            for optimizer, (x, state) in zip(optimizers, carry, strict=True):
                updates, state = optimizer.update(oracle(key, x), state, x)
                new.append((optax.apply_updates(x, updates), state))
            return new, None

        start = [(jnp.zeros_like(h), o.init(jnp.zeros_like(h))) for o in optimizers]
        last, _ = jax.lax.scan(step, start, jax.random.split(key, steps))
        return jnp.stack([jnp.sum(h * (x - 3) ** 2) / 2 for x, _ in last])

    keys = jax.random.split(jax.random.key(seed), seeds)
    return np.asarray(jax.jit(jax.vmap(run, out_axes=1))(keys), np.float64)


def q95(values):
    return float(np.quantile(values, 0.95))


def test_the_median_of_means_beats_the_clipped_mean_under_cauchy_noise():
    # Measured ratio 39. The mean of Cauchy draws is Cauchy, whatever the batch.
    mean = optax.chain(aggregate_mean(), clipped_sgd(0.3, 1.0))
    mom = mom_clipped_sgd(0.1, 1.0, 15)
    worse, better = map(q95, errors((mean, mom), cauchy(), 60, 300, 16, TWENTY))
    assert worse / better >= 10


@pytest.mark.slow
def test_noise_with_a_moment_of_order_a_third_only_is_no_obstacle():
    # Measured 0.0067.
    assert default_num_groups(0.35) == 23
    optimizer = mom_clipped_sgd(0.03, 1.0, 23)
    (found,) = errors((optimizer,), symmetric_stable(0.4), 23, 1000, 64)
    assert q95(found) <= 0.03


# --- the floor that a bias leaves ---------------------------------------------------


SKEWS = (0.0, 0.25, 0.5)


def skewed(s):
    return additive(cauchy(), centred_pareto(1.6, s))


@functools.cache
def bias(s, n):
    """The bias of a coordinate of the median of 15 means of n: 200,000 medians."""

    @jax.jit
    def draw(key):
        return median_of_means(skewed(s)(key, (15 * n, 200_000 // n)), 15)

    keys = jax.random.split(jax.random.key(1), n)
    return float(np.mean([np.asarray(draw(key), np.float64) for key in keys]))


def floor(s, n=1):
    """b^T H^{-1} b / 2 with the same b in every coordinate."""
    return 0.5 * bias(s, n) ** 2 * float(np.sum(1 / np.array(FIVE)))


@pytest.mark.slow
def test_the_mean_iterate_is_off_by_exactly_the_bias_over_the_curvature():
    # Measured: b = -0.318 and a difference of 0.8 % of the shift.
    h, noise = jnp.asarray(FIVE, jnp.float32), skewed(0.5)
    optimizer: Any = optax.chain(aggregate_median_of_means(15), optax.sgd(0.1))
    oracle = noisy_oracle(lambda x: h * (x - 3), noise, 15)

    def run(key):
        def step(carry, key):
            x, state = carry
            updates, state = optimizer.update(oracle(key, x), state, x)
            x = optax.apply_updates(x, updates)
            return (x, state), x

        x = jnp.full_like(h, 3.0)
        keys = jax.random.split(key, 4000)
        _, path = jax.lax.scan(step, (x, optimizer.init(x)), keys)
        return jnp.mean(jnp.asarray(path)[400:], axis=0)

    keys = jax.random.split(jax.random.key(0), 16)
    found = np.asarray(jax.jit(jax.vmap(run))(keys)).mean(axis=0)
    shift = bias(0.5, 1) / np.array(FIVE)
    assert abs(bias(0.5, 1) + 0.318) <= 0.01
    assert np.linalg.norm(found - (3 - shift)) <= 0.1 * np.linalg.norm(shift)


@functools.partial(jax.jit, static_argnums=4)
def last_errors(keys, skews, steps, rate, n):
    """f(x_K) - f* of every skew, a row each: one program for all numbers of steps."""
    h = jnp.asarray(FIVE, jnp.float32)
    optimizer = mom_clipped_sgd(rate, 3.0, 15)

    def run(key, s):
        oracle = noisy_oracle(lambda x: h * (x - 3), skewed(s), 15 * n)

        def step(t, carry):
            x, state = carry
            grads = oracle(jax.random.fold_in(key, t), x)
            updates, state = optimizer.update(grads, state, x)
            return optax.apply_updates(x, updates), state

        start = jnp.zeros_like(h), optimizer.init(jnp.zeros_like(h))
        x, _ = jax.lax.fori_loop(0, steps, step, start)
        return jnp.sum(h * (x - 3) ** 2) / 2

    return jax.vmap(jax.vmap(run, (0, None)), (None, 0))(keys, skews)


@functools.cache
def neighbourhoods(steps, n=1, seeds=128):
    rate = min(0.3, math.log(steps) / (0.2 * steps))
    keys = jax.random.split(jax.random.key(0), seeds)
    found = last_errors(keys, jnp.array(SKEWS), steps, rate, n)
    return np.asarray(found, np.float64)


def neighbourhood(s, steps, n=1, seeds=128):
    return neighbourhoods(steps, n, seeds)[SKEWS.index(s)]


@pytest.mark.slow
def test_under_symmetric_noise_even_the_worst_seeds_converge_at_the_rate():
    # Measured: slope -0.83 (theory -1 up to logarithms), worst / median 3.7, 4.1, 4.4.
    lengths = (250, 1000, 4000)
    found = [neighbourhood(0.0, steps) for steps in lengths]
    slope = np.polyfit(np.log(lengths), np.log([q95(x) for x in found]), 1)[0]
    assert slope <= -0.7
    assert all(x.max() <= 10 * np.median(x) for x in found)


@pytest.mark.slow
@pytest.mark.parametrize("s", [0.25, 0.5])
def test_the_bias_alone_sets_the_final_error(s):
    # Measured: 4.8 % and 1.5 % off the floor.
    assert abs(np.median(neighbourhood(s, 4000)) / floor(s) - 1) <= 0.15


@pytest.mark.slow
def test_away_from_the_floor_the_error_is_that_of_symmetric_noise():
    # Measured ratio 1.0.
    excess = np.median(neighbourhood(0.25, 250)) - floor(0.25)
    assert 0.5 <= excess / np.median(neighbourhood(0.0, 250)) <= 2


@pytest.mark.slow
def test_larger_groups_lower_the_floor():
    # Eight seeds: laws a tenth wide around floors that are a factor of three apart.
    one = np.median(neighbourhood(0.5, 4000))
    four, sixteen = (np.median(neighbourhood(0.5, 4000, n, 8)) for n in (4, 16))
    assert one > four > sixteen
