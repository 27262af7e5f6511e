"""Continuity of the smoothed loss, its shape in a cell, and descent on it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.quantization import exact_smoothed_loss, make_quantizer

QUANTIZER = make_quantizer("int3")


def problem(seed):
    """Matrix and centre of a loss that is not quadratic, and a start."""
    rng = np.random.default_rng(seed)
    w_star, start = rng.standard_normal((2, 6))
    b = rng.standard_normal((6, 6))
    return b @ b.T / 6, w_star, start


def loss_of(a, w_star, q):
    offset = q - w_star
    return jnp.sum(jnp.tanh(a @ offset) ** 2) + 0.3 * jnp.sum(offset**2)


def smoothed(a, w_star, w):
    return exact_smoothed_loss(lambda q: loss_of(a, w_star, q), QUANTIZER, w)


def of_cast(a, w_star, w):
    return loss_of(a, w_star, QUANTIZER.round_nearest(w))


def largest_steps(fn, a, w_star, ends):
    """The largest steps of a function along a segment cut in 2,000, 4,000, 8,000."""
    t = jnp.linspace(0.0, 1.0, 8_001)[:, None]
    values = jax.vmap(lambda w: fn(a, w_star, w))((1 - t) * ends[0] + t * ends[1])
    return jnp.stack(
        [
            jnp.max(jnp.abs(jnp.diff(values[:: 8_000 // n])))
            for n in (2_000, 4_000, 8_000)
        ]
    )


def test_the_smoothed_loss_is_continuous_and_the_quantized_one_is_not():
    with jax.enable_x64(True):
        cases = []
        for seed in range(4):
            a, w_star, start = problem(seed)
            end = np.random.default_rng(100 + seed).standard_normal(6)
            cases.append((a, w_star, np.stack([start, end])))
        arrays = [jnp.asarray(np.stack(x)) for x in zip(*cases, strict=True)]

        @jax.jit
        @jax.vmap
        def steps(a, w_star, ends):
            both = (smoothed, of_cast)
            return [largest_steps(fn, a, w_star, ends) for fn in both]

        smooth, jumps = (np.asarray(x) for x in steps(*arrays))
    assert np.all(smooth[:, 1:] <= 0.6 * smooth[:, :-1])
    assert np.all(jumps[:, 1:] >= 0.9 * jumps[:, :-1])
    assert np.all(jumps[:, -1] >= 10 * smooth[:, -1])


def test_the_gradient_of_the_quantized_loss_is_zero():
    a, w_star, start = problem(0)
    grad = jax.grad(functools.partial(of_cast, a, w_star))(jnp.asarray(start))
    np.testing.assert_array_equal(grad, np.zeros(6))
    # And rightly so but for the largest weight, which moves the scale of all.
    largest = np.argmax(np.abs(start))
    value = jax.jit(of_cast)
    for i in set(range(6)) - {largest}:
        moved = start + 1e-4 * np.eye(6)[i]
        assert value(a, w_star, moved) == value(a, w_star, start)


def test_within_a_cell_the_smoothed_loss_is_affine_in_each_weight():
    with jax.enable_x64(True):
        value = jax.jit(smoothed)
        for seed in range(4):
            a, w_star, start = problem(seed)
            w = jnp.asarray(start)
            lo, hi, delta = (np.asarray(x) for x in QUANTIZER.neighbours(w))
            scale = float(QUANTIZER.scale(w))
            for i in set(range(6)) - {int(np.argmax(np.abs(start)))}:
                # Three points evenly inside the cell of weight i.
                room = 0.4 * scale * (hi[i] - lo[i]) * min(delta[i], 1 - delta[i])
                shift = room * np.eye(6)[i]
                low, middle, high = (
                    float(value(a, w_star, w + k * shift)) for k in (-1, 0, 1)
                )
                assert abs(low + high - 2 * middle) <= 1e-12


# --- descent ------------------------------------------------------------------------


NUM_STEPS = 3_000


def descend(value_and_grad, start):
    """Adam with a cosine from .03: last point, and the losses of all steps."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, NUM_STEPS))

    def step(carry, _):
        w, state = carry
        value, grad = value_and_grad(w)
        updates, state = optimizer.update(grad, state)
        return (optax.apply_updates(w, updates), state), value

    carry = (start, optimizer.init(start))
    (w, _), values = jax.lax.scan(step, carry, length=NUM_STEPS)
    return w, values


@functools.cache
def descents():
    """Ends and histories on the smoothed loss, and those of straight-through steps."""
    arrays = [np.stack(x) for x in zip(*map(problem, range(4)), strict=True)]

    @jax.jit
    @jax.vmap
    def both(a, w_star, start):
        smooth = descend(jax.value_and_grad(lambda w: smoothed(a, w_star, w)), start)

        def straight_through(w):
            cast = QUANTIZER.round_nearest(w)
            return jax.value_and_grad(lambda q: loss_of(a, w_star, q))(cast)

        return smooth, descend(straight_through, start)

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, both(*map(jnp.asarray, arrays)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_descent_on_the_smoothed_loss_ends_in_a_quantized_local_minimum(seed):
    (ends, histories), _ = descents()
    a, w_star, _ = problem(seed)
    with jax.enable_x64(True):
        w = jnp.asarray(ends[seed])
        at = float(smoothed(a, w_star, w))
        assert abs(at - float(of_cast(a, w_star, w))) <= 1e-4
        directions = np.random.default_rng(200 + seed).standard_normal((2_000, 6))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        around = jax.jit(jax.vmap(lambda d: smoothed(a, w_star, w + d)))
        for length in (1e-3, 1e-2):
            assert np.min(around(length * directions)) >= at - 1e-6
    assert histories[seed][-100:].std() <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_straight_through_steps_keep_jumping(seed):
    _, (_, histories) = descents()
    assert histories[seed][-500:].std() >= 0.03
