import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.core import (
    adversarial_block_delay,
    burst_delay,
    constant_delay,
    geometric_delay,
    uniform_delay,
)

KEY = jax.random.key(2)
N = 20_000
# Two-sided normal tail at 5.3 standard errors: 1.2e-7 a comparison.
SIGMAS = 5.3


def frequencies(delays, d_max):
    assert delays.dtype == jnp.int32
    return np.bincount(np.asarray(delays), minlength=d_max + 1) / len(delays)


def assert_frequencies(measured, law):
    error = np.sqrt(law * (1 - law) / N)
    np.testing.assert_array_less(np.abs(measured - law), SIGMAS * error + 1e-12)


def test_uniform_frequencies():  # six comparisons: false alarm 7e-7
    assert_frequencies(frequencies(uniform_delay(5)(KEY, N), 5), np.full(6, 1 / 6))


def test_geometric_frequencies_with_a_traced_probability():
    # Five comparisons for each of three values, the sure ones apart: 2e-6.
    p = np.array([0.3, 0.9, 1.0], np.float32)
    drawn = jax.jit(jax.vmap(lambda p: geometric_delay(p, 4)(KEY, N)))(p)
    for q, delays in zip(p.astype(np.float64), drawn, strict=True):
        law = q * (1 - q) ** np.arange(5)
        law[4] = (1 - q) ** 4  # the whole tail
        assert_frequencies(frequencies(delays, 4), law)


def test_a_rare_success_gives_the_longest_delay():
    assert np.all(np.asarray(geometric_delay(1e-12, 7)(KEY, 100)) == 7)


def test_burst_windows_come_together_or_at_once():
    delays = np.asarray(burst_delay(3)(KEY, N)).reshape(-1, 4)
    held = np.all(delays == [3, 2, 1, 0], axis=1)
    assert np.all(held | np.all(delays == 0, axis=1))
    # One fair coin a window, one comparison: false alarm 1.2e-7.
    assert abs(held.mean() - 0.5) < SIGMAS * 0.5 / np.sqrt(len(held))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (constant_delay(3), [3, 3, 3, 3, 3, 3, 3]),
        (adversarial_block_delay(3), [2, 1, 0, 2, 1, 0, 2]),
        (adversarial_block_delay(1), [0] * 7),
        (uniform_delay(0), [0] * 7),
        (burst_delay(0), [0] * 7),
    ],
)
def test_models_without_chance(model, expected):
    np.testing.assert_array_equal(model(KEY, 7), expected)
    np.testing.assert_array_equal(model.sample(jax.random.key(9), 7), expected)


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (constant_delay(4), True),
        (uniform_delay(4), False),
        (geometric_delay(0.3, 4), False),
        (burst_delay(4), True),
        (adversarial_block_delay(5), True),
    ],
)
def test_the_declared_bounds_are_kept_and_those_of_blocks_are_met(model, blocks):
    delays = np.asarray(model(KEY, 1003))
    assert delays.min() >= 0
    assert delays.max() == model.d_max == 4
    busiest = np.bincount(delays + np.arange(1003)).max()
    assert busiest <= model.max_arrivals
    if blocks:
        assert busiest == model.max_arrivals


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: constant_delay(-1), "d must be an integer >= 0, got -1"),
        (lambda: uniform_delay(-3), "d_max must be an integer >= 0, got -3"),
        (lambda: burst_delay(-2), "d_max must be an integer >= 0, got -2"),
        (lambda: geometric_delay(0.0, 3), r"p must be in \(0, 1\], got 0.0"),
        (lambda: geometric_delay(0.5, -1), "d_max must be an integer >= 0, got -1"),
        (lambda: adversarial_block_delay(0), "d must be an integer >= 1, got 0"),
    ],
)
def test_models_say_what_is_wrong(factory, message):
    with pytest.raises(ValueError, match=message):
        factory()
