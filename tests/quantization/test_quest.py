"""The Gaussian scale against a numerical integral, trust, and the rotation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from rounding_reference import grid_of

from jaxopt_suite.quantization import (
    gaussian_scale,
    get_format,
    make_quantizer,
    per_block,
    quest,
    walsh_hadamard,
)

X = np.linspace(-9.0, 9.0, 100_001)
DENSITY = np.exp(-(X**2) / 2) / np.sqrt(2 * np.pi) * (X[1] - X[0])


def mean_squared_error(name, scale):
    """Of rounding a standard normal weight, by adding up over a fine lattice."""
    grid = grid_of(name) * scale
    nearest = grid[np.searchsorted((grid[1:] + grid[:-1]) / 2, X)]
    return np.sum((nearest - X) ** 2 * DENSITY)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("int2", 1.2240),
        ("int3", 0.65076),
        ("int4", 0.35341),
        ("int8", 0.030870),
        ("fp4", 0.48709),
    ],
)
def test_the_gaussian_scale_has_the_least_squared_error(name, known):
    scale = gaussian_scale(get_format(name))
    # Five digits are known.
    np.testing.assert_allclose(scale, known, rtol=5e-5)
    found = scipy.optimize.minimize_scalar(
        lambda s: mean_squared_error(name, s),
        bounds=(0.8 * known, 1.25 * known),
        options={"xatol": 1e-7},
    ).x
    np.testing.assert_allclose(scale, found, rtol=1e-4)


@pytest.mark.parametrize("name", ["nf4", "fp8"])
def test_no_scale_nearby_or_far_is_better(name):
    fmt = get_format(name)
    best = mean_squared_error(name, gaussian_scale(fmt))
    for factor in (0.3, 0.5, 0.7, 0.95, 1.05, 1.4, 1.96, 3.0, 8.0):
        assert best <= mean_squared_error(name, factor * gaussian_scale(fmt))


def pulled(method, w, upstream):
    """The transformed weights, what ``upstream`` becomes, and the deployed weights."""

    @jax.jit
    def run(w, upstream):
        value, pull_back = jax.vjp(lambda w: method.apply((), None, w), w)
        return value, pull_back(upstream)[0], method.deploy((), w)

    return run(jnp.asarray(w, jnp.float32), jnp.asarray(upstream, jnp.float32))


def test_values_and_trust_in_every_block():
    blocks = [[1.0, -1.0, 1.0, 1.0], [4.0, 0.1, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0]]
    w, upstream = np.array(blocks).reshape(1, 12), np.arange(1.0, 13.0)[None]
    rms = np.sqrt(np.mean(np.square(blocks), axis=1))
    scale = np.where(rms > 0, 1.2240 * rms, 1.0).repeat(4)[None]
    cast = scale * np.clip(np.round(w / scale), -1, 1)
    trusted = np.abs(cast - w) <= scale / 2
    assert trusted.sum() == 11  # the outlier is 4 where the range ends at 2.47
    method = quest(make_quantizer("int2", per_block(4)))
    value, gradient, shipped = pulled(method, w, upstream)
    np.testing.assert_allclose(value, cast, rtol=1e-4)
    np.testing.assert_array_equal(gradient, upstream * trusted)
    np.testing.assert_array_equal(shipped, value)


@pytest.mark.parametrize(("shape", "axis"), [((8,), 0), ((2, 16, 3), -2)])
def test_the_rotation_is_the_hadamard_matrix_and_its_own_inverse(shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    n = shape[axis]
    matrix = scipy.linalg.hadamard(n) / np.sqrt(n)
    expected = np.moveaxis(np.tensordot(matrix, np.moveaxis(x, axis, 0), 1), 0, axis)
    once = jax.jit(lambda x: walsh_hadamard(x, axis))
    np.testing.assert_allclose(once(x), expected, atol=1e-5)
    np.testing.assert_allclose(once(once(x)), x, atol=1e-5)


def test_an_axis_of_one_entry_is_not_turned():
    np.testing.assert_array_equal(walsh_hadamard(jnp.ones((1, 2)), 0), jnp.ones((1, 2)))


def test_quest_rounds_in_the_rotated_basis():
    w, upstream = np.random.default_rng(0).standard_normal((2, 8, 3))
    matrix = scipy.linalg.hadamard(8) / np.sqrt(8)
    turned = matrix @ w
    scale = 0.35341 * np.sqrt(np.mean(turned**2))
    cast = scale * np.clip(np.round(turned / scale), -7, 7)
    trusted = np.abs(cast - turned) <= scale / 2
    method = quest(make_quantizer("int4"), hadamard_axis=0)
    value, gradient, shipped = pulled(method, w, upstream)
    np.testing.assert_allclose(value, matrix @ cast, atol=1e-4)
    expected = matrix @ (trusted * (matrix @ upstream))
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
    np.testing.assert_allclose(shipped, value, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "axis", "message"),
    [
        ((3, 6), -1, "axis -1 must be a power of two .* got 6"),
        ((4, 0), 1, "axis 1 must be a power of two .* got 0"),
        ((4, 4), 1.5, "axis must be a static integer, got 1.5"),
        ((4, 4), 2, r"axis must be an axis of shape \(4, 4\), got 2"),
    ],
)
def test_a_size_that_is_no_power_of_two_is_refused(shape, axis, message):
    with pytest.raises(ValueError, match=message):
        walsh_hadamard(jnp.ones(shape), axis)


def test_integers_are_refused_and_lists_are_welcome():
    with pytest.raises(ValueError, match="x must have a floating dtype, got int32"):
        walsh_hadamard(jnp.arange(4))
    values: Any = [4.0, 0.0]
    np.testing.assert_allclose(walsh_hadamard(values), np.sqrt([8.0, 8.0]), rtol=1e-6)
    axis: Any = "0"
    with pytest.raises(ValueError, match="hadamard_axis must be a static integer"):
        quest(make_quantizer("int4"), hadamard_axis=axis)


@pytest.mark.parametrize("factor", [2.0**99, 2.0**-83])
def test_huge_and_tiny_weights_are_rounded_as_others(factor):
    w = jnp.array([[1.0, -2.0, 3.0, 0.1]])
    method = quest(make_quantizer("int4"))
    expected = factor * method.deploy((), w)
    np.testing.assert_allclose(method.deploy((), factor * w), expected, rtol=1e-6)
