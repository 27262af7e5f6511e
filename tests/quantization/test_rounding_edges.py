"""Zero groups, NaN, narrow and wide dtypes, empty and scalar arrays, pytrees."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import small_model

from jaxopt_suite.quantization import (
    make_quantizer,
    per_block,
    per_channel,
    per_tensor,
    quantize_tree,
    where_path,
)

KEY = jax.random.key(0)
TINY = np.float32(np.finfo(np.float32).tiny)


# One shape for most tests, as every further one is a compile.
QUANTIZER = make_quantizer("int4", per_block(4))
SHAPE = (6, 8)


def slope(quantizer, w):
    return jax.grad(lambda w: jnp.sum(quantizer.variance(w)))(w)


block_slope = jax.jit(lambda w: slope(QUANTIZER, w))
FUNCTIONS = (
    QUANTIZER.round_nearest,
    lambda w: QUANTIZER.round_random(KEY, w),
    QUANTIZER.variance,
    block_slope,
)


def weights(seed, shape=SHAPE):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_zero_groups_are_rounded_to_zero():
    w = weights(0)
    w[0] = 0.0
    w[1, :4] = np.array([1e-40, -1e-44, 3e-39, 0.0], np.float32)
    w[2, :4] = np.array([0.9, -0.3, 0.2, 0.0], np.float32) * TINY * np.float32(7)
    w[3, :4] = np.array([1.1, -0.45, 0.2, 0.0], np.float32) * TINY * np.float32(7)
    scale = np.asarray(QUANTIZER.scale(w))
    np.testing.assert_array_equal(scale[:3, 0], 1.0)
    np.testing.assert_allclose(scale[3, 0], 1.1 * TINY, rtol=1e-6)
    for fn in FUNCTIONS:
        got = np.asarray(fn(w))
        np.testing.assert_array_equal(got[:3, :4], 0.0)
        assert np.any(got[1:3, 4:])
    for fn in FUNCTIONS[:2]:
        got = np.asarray(fn(w))
        assert got[3, 0] == w[3, 0]
        assert got[3, 1] != 0
    codes, scales = QUANTIZER.codes(w)
    np.testing.assert_array_equal(QUANTIZER.dequantize(codes, scales)[:3, :4], 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_group_alone(bad):
    w = weights(1)
    spoilt = w.copy()
    spoilt[2, 5] = bad
    for fn in FUNCTIONS:
        got, expected = np.asarray(fn(spoilt)), np.asarray(fn(w))
        assert not np.all(np.isfinite(got[2, 4:]))
        got, expected = (np.delete(x.reshape(12, 4), 5, 0) for x in (got, expected))
        np.testing.assert_array_equal(got, expected)
    assert not np.any(np.isfinite(QUANTIZER.round_nearest(spoilt)[2, 4:]))


def test_nothing_but_the_variance_overflows_at_1e30():
    w = weights(2)
    huge = w * np.float32(2.0**100)
    for fn in (*FUNCTIONS[:2], block_slope):
        expected = np.asarray(fn(w)) * np.float32(2.0**100)
        np.testing.assert_array_equal(fn(huge), expected)
    # The variance of weights of 1e30 is about 1e58.
    expected = np.where(np.asarray(QUANTIZER.variance(w)) == 0, 0.0, np.inf)
    np.testing.assert_array_equal(QUANTIZER.variance(huge), expected)


def test_the_end_of_the_range_is_rounded_too():
    w = np.array([3e38, -1.4e38, 1e38], np.float32)
    np.testing.assert_array_equal(
        make_quantizer("int2").round_nearest(w), [w[0], 0.0, 0.0]
    )


def test_a_single_weight_is_its_own_largest():
    quantizer = make_quantizer("int3")
    for value in (0.3, -7.7, 0.0):
        w = np.float32(value)
        assert quantizer.round_nearest(w) == w
        assert quantizer.round_random(KEY, w) == w
        assert quantizer.variance(w) == 0
        assert slope(quantizer, w) == 0
    single = np.full((3, 1), 0.3, np.float32)
    by_row = make_quantizer("int3", per_channel(0))
    np.testing.assert_array_equal(by_row.round_nearest(single), single)


@pytest.mark.parametrize("granularity", [per_tensor(), per_channel(0), per_block(4)])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_empty_arrays_pass_through(granularity, shape):
    quantizer, w = make_quantizer("fp4", granularity), jnp.zeros(shape)
    assert quantizer.round_nearest(w).shape == shape
    assert quantizer.round_random(KEY, w).shape == shape
    assert quantizer.variance(w).shape == shape
    codes, scales = quantizer.codes(w)
    assert quantizer.dequantize(codes, scales).shape == shape


def test_bfloat16_is_unbiased_to_half_a_unit_of_the_weight():
    # Six standard errors of 20,000 draws for each of 64 weights: 2e-9 each.
    w = jnp.asarray(np.random.default_rng(3).standard_normal((8, 8)), jnp.bfloat16)
    quantizer = make_quantizer("int4")
    keys = jax.random.split(KEY, 20_000)
    draws = jax.vmap(quantizer.round_random, (0, None))(keys, w)
    assert draws.dtype == jnp.bfloat16
    mean = np.asarray(draws, np.float64).mean(0)
    error = np.abs(mean - np.asarray(w, np.float64))
    step = float(quantizer.scale(w))
    # Both neighbours are cast to bfloat16: half a unit is 2^-8 of a weight, to a step.
    cast_error = 2.0**-8 * (np.abs(np.asarray(w, np.float64)) + step)
    assert np.all(error <= cast_error + 6 * 0.5 * step / np.sqrt(20_000))


@pytest.mark.parametrize("name", ["int8", pytest.param("int4", marks=pytest.mark.slow)])
def test_small_float16_weights_are_rounded_as_others_are(name):
    # Six standard errors of 5,000 draws for each of 48 weights: 2e-9 each.
    sizes = np.array([1e-3, 1e-4, 1e-5, 1e-6, 1e-6, 1e-7])[:, None]
    w = jnp.asarray(sizes * weights(6), jnp.float16)
    quantizer = make_quantizer(name, per_block(8))
    nearest, draws = quantizer.round_nearest(w), float16_draws(quantizer, w)
    exact = np.float64(quantizer.dequantize(*quantizer.codes(w)))
    np.testing.assert_array_equal(nearest, exact.astype(np.float16))
    for rounded in (nearest, draws[0]):
        np.testing.assert_array_equal(quantizer.round_nearest(rounded), rounded)
        np.testing.assert_array_equal(float16_draws(quantizer, rounded)[0], rounded)
        assert not np.any(quantizer.variance(rounded))
    plain, step = np.float64(w), np.float64(quantizer.scale(w))
    error = np.abs(np.float64(draws).mean(0) - plain)
    # Both neighbours are cast to float16, whose least unit is 2^-24.
    unit = np.maximum(2.0**-24, 2.0**-10 * (np.abs(plain) + step))
    assert np.all(error <= 0.5 * unit + 3 * (step + unit) / np.sqrt(5_000))


def float16_draws(quantizer, w):
    return draw_all(quantizer, jax.random.split(KEY, 5_000), w)


@functools.partial(jax.jit, static_argnums=0)
def draw_all(quantizer, keys, w):
    return jax.vmap(quantizer.round_random, (0, None))(keys, w)


def test_float64_stays_float64():
    w = np.random.default_rng(4).standard_normal((50, 8))
    with jax.enable_x64(True):
        rounded = QUANTIZER.round_random(KEY, jnp.asarray(w))
        scale, again = QUANTIZER.scale(rounded), QUANTIZER.round_nearest(rounded)
        assert jax.eval_shape(QUANTIZER.variance, rounded).dtype == jnp.float64
    assert rounded.dtype == scale.dtype == jnp.float64
    np.testing.assert_array_equal(again, rounded)
    expected = np.abs(w).reshape(50, 2, 4).max(-1) / 7
    np.testing.assert_allclose(scale, expected, rtol=1e-15)


def test_vmap_is_the_loop():
    w, keys = weights(5, (3, *SHAPE)), jax.random.split(KEY, 3)
    random = jax.vmap(QUANTIZER.round_random)(keys, w)
    nearest = jax.vmap(QUANTIZER.round_nearest)(w)
    for i in range(3):
        np.testing.assert_array_equal(random[i], QUANTIZER.round_random(keys[i], w[i]))
        np.testing.assert_array_equal(nearest[i], QUANTIZER.round_nearest(w[i]))


FP4 = make_quantizer("fp4", per_block(4))
CODES = jnp.zeros((2, 8), jnp.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FP4.dequantize(CODES, jnp.ones((2, 2), int)), "scales .*floating"),
        (
            lambda: FP4.dequantize(CODES, jnp.ones((2, 3))),
            r"scales .*\(2, 2\).*\(2, 3\)",
        ),
        (lambda: FP4.dequantize(CODES, jnp.ones(())), r"scales .*\(2, 2\).*got \(\)"),
        (lambda: FP4.dequantize(0.5 * CODES, jnp.ones((2, 2))), "codes .*integer"),
        (lambda: FP4.round_random(None, jnp.ones(4)), "key must be .*got None"),
        (
            lambda: quantize_tree(cast(Any, "int4"), {}),
            "made by make_quantizer, got 'in",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "granularity"),
    [("int4", per_tensor()), ("fp8", per_block(5)), ("nf4", per_channel(1))],
)
def test_weights_over_eight_devices_give_the_same(name, granularity):
    quantizer, w = make_quantizer(name, granularity), weights(6, (16, 12))
    mesh = jax.make_mesh((8,), ("data",))
    layout = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    sharded = jax.device_put(w, layout)

    @jax.jit
    def everything(w):
        codes, scales = quantizer.codes(w)
        return (
            quantizer.round_nearest(w),
            quantizer.round_random(KEY, w),
            quantizer.variance(w),
            slope(quantizer, w),
            quantizer.dequantize(codes, scales),
        )

    got, expected = everything(sharded), everything(w)
    for a, b in zip(got, expected, strict=True):
        assert a.sharding.is_equivalent_to(layout, 2)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[0], expected[0])


# --- pytrees ------------------------------------------------------------------------


def test_a_tree_is_rounded_where_the_mask_says():
    quantizer = make_quantizer("int3")
    model = small_model()
    rounded = quantize_tree(quantizer, model)
    for layer, old in zip(rounded.layers, model.layers, strict=True):
        np.testing.assert_array_equal(layer.weight, quantizer.round_nearest(old.weight))
        np.testing.assert_array_equal(layer.bias, old.bias)
    assert rounded.activation is model.activation
    assert rounded(jnp.ones(3)).shape == (2,)
    first = quantize_tree(quantizer, model, where_path(lambda path: "layers/0" in path))
    np.testing.assert_array_equal(first.layers[1].weight, model.layers[1].weight)
    np.testing.assert_array_equal(
        first.layers[0].bias, quantizer.round_nearest(model.layers[0].bias)
    )


def test_each_leaf_draws_with_its_own_key():
    quantizer, w = make_quantizer("int3"), jnp.linspace(-3.0, 3.0, 300)[None]
    tree = {"a": w, "b": [jnp.ones(2), w]}
    drawn = quantize_tree(quantizer, tree, key=KEY)
    assert np.any(drawn["a"] != drawn["b"][1])
    for i, leaf in ((0, drawn["a"]), (2, drawn["b"][1])):
        expected = quantizer.round_random(jax.random.fold_in(KEY, i), w)
        np.testing.assert_array_equal(leaf, expected)
    np.testing.assert_array_equal(drawn["b"][0], jnp.ones(2))


def test_an_empty_tree_passes_through():
    assert quantize_tree(make_quantizer("int4"), {}) == {}


@pytest.mark.parametrize("axis", [0, 1])
def test_a_nan_in_a_large_leaf_spoils_its_channel_and_no_other(axis):
    w = np.ones((64, 64), np.float32)
    w[32, 5] = np.nan
    quantizer = make_quantizer("int4", per_channel(axis))
    spoilt = np.isnan(np.asarray(quantizer.round_nearest(w)))
    expected = np.zeros((64, 64), bool)
    expected[(32, slice(None)) if axis == 0 else (slice(None), 5)] = True
    np.testing.assert_array_equal(spoilt, expected)
