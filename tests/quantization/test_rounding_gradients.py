"""Gradients of the variance: closed forms, and central differences in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding_reference import grid_of, reference

from jaxopt_suite.quantization import (
    exact_smoothed_loss,
    make_quantizer,
    per_block,
    per_channel,
    per_tensor,
)

SLOW_INT4 = pytest.param("int4", marks=pytest.mark.slow)


@functools.cache
def gradient_of(quantizer, differentiate_scale):
    def total(w, weight):
        return jnp.sum(weight * quantizer.variance(w, differentiate_scale))

    return jax.jit(jax.grad(total))


def central_differences(fn, w, step=1e-5):
    """One coordinate at a time, by calls of a function of NumPy arrays."""
    slopes = np.zeros_like(w)
    for i in np.ndindex(*w.shape):
        shift = np.zeros_like(w)
        shift[i] = step
        slopes[i] = (fn(w + shift) - fn(w - shift)) / (2 * step)
    return slopes


@pytest.mark.parametrize("name", [SLOW_INT4, "fp4"])
def test_with_the_scale_frozen_it_is_the_distance_to_the_middle_of_the_cell(name):
    quantizer = make_quantizer(name, per_block(8))
    w = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    w[0] = quantizer.round_nearest(w[0])
    w[1, :4] = quantizer.round_nearest(w[1])[:4]
    w[2] = 0.0
    weight = jnp.asarray(1 + np.arange(320.0).reshape(40, 8) % 3, jnp.float32)
    got = gradient_of(quantizer, False)(w, weight)
    lo, hi, delta = quantizer.neighbours(w)
    s = np.repeat(np.asarray(quantizer.scale(w), np.float64), 8, axis=1)
    slope = weight * (s * (np.asarray(lo, np.float64) + hi) - 2 * np.float64(w))
    on_grid = (delta == 0) | (delta == 1)
    assert on_grid[0].all()
    assert on_grid[2].all()
    # Two whole rows, four and the largest of one, the largest of each other.
    assert on_grid.sum() == 8 + 8 + 5 + 37
    np.testing.assert_allclose(got, np.where(on_grid, 0.0, slope), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "granularity"),
    [
        ("int3", per_channel(-1)),
        ("fp4", per_block(3)),
        pytest.param("int4", per_tensor(), marks=pytest.mark.slow),
        pytest.param("nf4", per_tensor(), marks=pytest.mark.slow),
    ],
)
def test_with_the_scale_moving_it_is_that_of_central_differences(name, granularity):
    quantizer = make_quantizer(name, granularity)
    rng = np.random.default_rng(1)
    w, weight = rng.standard_normal((2, 4, 5))
    grid = np.asarray(quantizer.format.grid)
    expected = central_differences(
        lambda w: np.sum(weight * reference(grid, w, granularity)["variance"]), w
    )
    with jax.enable_x64(True):
        got = gradient_of(quantizer, True)(jnp.asarray(w), jnp.asarray(weight))
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)


def test_equal_largest_weights_share_what_the_scale_moves():
    quantizer = make_quantizer("int3")
    grad = gradient_of(quantizer, True)
    w = np.array([2.0, -2.0, 0.9, 0.3, -0.1], np.float32)
    weight = jnp.ones(5)
    got = np.asarray(grad(w, weight))
    # d variance / ds = hi (w - s lo) - lo (s hi - w), at s = 2/3; ds/dw = sign / qmax.
    s, lo, hi = 2 / 3, np.array([1.0, 0, -1]), np.array([2.0, 1, 0])
    moved = np.sum(hi * (w[2:] - s * lo) - lo * (s * hi - w[2:]))
    np.testing.assert_allclose(got[:2], [moved / 6, -moved / 6], rtol=1e-5)
    frozen = s * (lo + hi) - 2 * w[2:]
    np.testing.assert_allclose(got[2:], frozen, atol=1e-6)
    # Moved together, the two are one weight.
    both = central_differences(
        lambda t: np.sum(
            reference(grid_of("int3"), w * [t[0], t[0], 1, 1, 1], per_tensor())[
                "variance"
            ]
        ),
        np.ones(1),
    )
    np.testing.assert_allclose(2 * (got[0] - got[1]), both[0], rtol=1e-5)


def test_second_derivatives_within_a_cell_are_minus_two():
    quantizer = make_quantizer("int4")
    w = jnp.array([1.0, 0.31, -0.52, 0.08])
    frozen = lambda w: jnp.sum(quantizer.variance(w, False))  # noqa: E731
    hessian = jax.jit(jax.hessian(frozen))(w)
    np.testing.assert_allclose(hessian, np.diag([0.0, -2, -2, -2]), atol=1e-6)


def test_bfloat16_weights_get_the_gradient_of_float32_ones():
    quantizer = make_quantizer("int4", per_block(16))
    w = jnp.asarray(np.random.default_rng(2).standard_normal((8, 16)), jnp.bfloat16)
    wide = w.astype(jnp.float32)
    grad = gradient_of(quantizer, True)
    narrow = grad(w, jnp.ones(w.shape))
    assert narrow.dtype == jnp.bfloat16
    lo, hi, _ = quantizer.neighbours(w)
    s = np.repeat(np.asarray(quantizer.scale(w)), 16, axis=1)
    # Where bfloat16 has a weight on the grid that float32 has beside it, 0.
    off = np.asarray(quantizer.variance(w)) > 0
    largest = np.abs(wide) == np.abs(wide).max(1, keepdims=True)
    plain = off & ~largest
    assert plain.sum() >= 90
    expected = s * (lo + hi) - 2 * wide
    np.testing.assert_allclose(
        np.float32(narrow)[plain], expected[plain], rtol=2**-8, atol=1e-6
    )
    assert not np.any(np.float32(narrow)[~off & ~largest])


# --- the exact smoothed loss --------------------------------------------------------


def curved(q, tanh, total):
    return total(tanh(q * np.arange(1.0, 7.0) - 0.3)) ** 2 + total(0.3 * q**4)


def enumerated(name, w, loss, scale=None):
    """The expectation over all roundings, corner by corner."""
    grid = grid_of(name)
    r = reference(grid, w, per_tensor())
    s = r["scale"] if scale is None else scale
    z = np.clip(w / s, grid[0], grid[-1])
    delta = (z - r["lo"]) / (r["hi"] - r["lo"])
    total = 0.0
    for corner in np.ndindex(*(2,) * w.size):
        up = np.array(corner, bool)
        probability = np.prod(np.where(up, delta, 1 - delta))
        total += probability * loss(s * np.where(up, r["hi"], r["lo"]))
    return total


@pytest.mark.parametrize("name", [SLOW_INT4, "fp4"])
def test_the_gradient_of_the_smoothed_loss_is_that_of_central_differences(name):
    w = np.random.default_rng(3).standard_normal(6)
    loss = lambda q: curved(q, np.tanh, np.sum)  # noqa: E731
    quantizer = make_quantizer(name)
    with jax.enable_x64(True):
        value, got = jax.jit(
            jax.value_and_grad(
                lambda w: exact_smoothed_loss(
                    lambda q: curved(q, jnp.tanh, jnp.sum), quantizer, w
                )
            )
        )(jnp.asarray(w))
    np.testing.assert_allclose(value, enumerated(name, w, loss), rtol=1e-12)
    expected = central_differences(lambda w: enumerated(name, w, loss), w)
    np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int4", "fp4"])
def test_on_the_grid_it_is_the_mean_of_the_one_sided_slopes(name):
    loss = lambda q: curved(q, np.tanh, np.sum)  # noqa: E731
    quantizer = make_quantizer(name)
    top = quantizer.format.qmax
    w = np.array([top, 1.0, 0.3, -0.7, 0.0, -2.0])
    with jax.enable_x64(True):
        got = jax.jit(
            jax.grad(
                lambda w: exact_smoothed_loss(
                    lambda q: curved(q, jnp.tanh, jnp.sum), quantizer, w
                )
            )
        )(jnp.asarray(w))
    at, step = enumerated(name, w, loss), 1e-6
    for i in (1, 4, 5):
        shift = step * np.eye(6)[i]
        right = (enumerated(name, w + shift, loss) - at) / step
        left = (at - enumerated(name, w - shift, loss)) / step
        assert abs(right - left) > 1e-2
        np.testing.assert_allclose(got[i], (right + left) / 2, rtol=1e-4, atol=1e-4)
