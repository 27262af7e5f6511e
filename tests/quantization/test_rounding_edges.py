"""Zero groups, NaN, narrow and wide dtypes, empty and scalar arrays, pytrees."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def slope(quantizer, w):
    return jax.grad(lambda w: jnp.sum(quantizer.variance(w)))(w)


def test_zero_groups_are_rounded_to_zero():
    quantizer = make_quantizer("int4", per_block(3))
    top = quantizer.format.qmax
    w = np.zeros((4, 3), np.float32)
    w[1] = np.array([1e-40, -1e-44, 3e-39], np.float32)
    w[2] = np.array([0.9, -0.3, 0.2], np.float32) * TINY * np.float32(top)
    w[3] = np.array([1.1, -0.45, 0.2], np.float32) * TINY * np.float32(top)
    scale = quantizer.scale(w)
    np.testing.assert_array_equal(scale[:3], 1.0)
    np.testing.assert_allclose(scale[3], 1.1 * TINY, rtol=1e-6)
    for rounded in (quantizer.round_nearest(w), quantizer.round_random(KEY, w)):
        np.testing.assert_array_equal(rounded[:3], 0.0)
        assert rounded[3, 0] == w[3, 0]
        assert rounded[3, 1] != 0
    np.testing.assert_array_equal(quantizer.variance(w)[:3], 0.0)
    np.testing.assert_array_equal(slope(quantizer, jnp.asarray(w))[:3], 0.0)
    codes, scales = quantizer.codes(w)
    np.testing.assert_array_equal(quantizer.dequantize(codes, scales)[:3], 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_group_alone(bad):
    quantizer = make_quantizer("int4", per_block(4))
    w = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    spoilt = w.copy()
    spoilt[2, 1] = bad
    others = np.arange(6) != 2
    for fn in (
        quantizer.round_nearest,
        lambda w: quantizer.round_random(KEY, w),
        quantizer.variance,
        lambda w: slope(quantizer, w),
    ):
        got = np.asarray(fn(jnp.asarray(spoilt)))
        np.testing.assert_array_equal(
            got[others], np.asarray(fn(jnp.asarray(w)))[others]
        )
        assert not np.all(np.isfinite(got[2]))
    assert not np.any(np.isfinite(quantizer.round_nearest(spoilt)[2]))


def test_nothing_but_the_variance_overflows_at_1e30():
    quantizer = make_quantizer("int4", per_block(8))
    w = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)
    huge = w * np.float32(2.0**100)
    for fn in (
        quantizer.scale,
        quantizer.round_nearest,
        lambda w: quantizer.round_random(KEY, w),
        lambda w: slope(quantizer, w),
    ):
        expected = np.asarray(fn(jnp.asarray(w))) * np.float32(2.0**100)
        np.testing.assert_array_equal(fn(jnp.asarray(huge)), expected)
    # The variance of weights of 1e30 is about 1e58.
    expected = np.where(quantizer.variance(w) == 0, 0.0, np.inf)
    np.testing.assert_array_equal(quantizer.variance(huge), expected)


def test_the_end_of_the_range_is_rounded_too():
    w = np.array([3e38, -1.4e38, 1e38], np.float32)
    np.testing.assert_array_equal(
        make_quantizer("int2").round_nearest(w), [w[0], 0.0, 0.0]
    )


@pytest.mark.parametrize("granularity", [per_tensor(), per_block(4)])
def test_a_single_weight_is_its_own_largest(granularity):
    quantizer = make_quantizer("int3", granularity)
    shape = () if granularity.kind == "tensor" else (1,)
    for value in (0.3, -7.7, 0.0):
        w = jnp.full(shape, value)
        np.testing.assert_array_equal(quantizer.round_nearest(w), w)
        np.testing.assert_array_equal(quantizer.round_random(KEY, w), w)
        np.testing.assert_array_equal(quantizer.variance(w), jnp.zeros(shape))
        np.testing.assert_array_equal(slope(quantizer, w), jnp.zeros(shape))


@pytest.mark.parametrize("granularity", [per_tensor(), per_channel(0), per_block(4)])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_empty_arrays_pass_through(granularity, shape):
    quantizer, w = make_quantizer("fp4", granularity), jnp.zeros(shape)
    assert quantizer.round_nearest(w).shape == shape
    assert quantizer.round_random(KEY, w).shape == shape
    assert quantizer.variance(w).shape == shape
    codes, scales = quantizer.codes(w)
    assert quantizer.dequantize(codes, scales).shape == shape


def test_a_short_block_is_a_block_and_padding_is_not_seen():
    quantizer, whole = make_quantizer("int4", per_block(4)), make_quantizer("int4")
    w = jnp.asarray(np.random.default_rng(2).standard_normal((3, 10)), jnp.float32)
    rounded = quantizer.round_nearest(w)
    for row in range(3):
        for part in (slice(0, 4), slice(4, 8), slice(8, 10)):
            np.testing.assert_array_equal(
                rounded[row, part], whole.round_nearest(w[row, part])
            )
            np.testing.assert_allclose(
                slope(quantizer, w)[row, part], slope(whole, w[row, part]), rtol=1e-6
            )


def test_bfloat16_is_unbiased_to_half_a_unit_of_the_weight():
    # Six standard errors of 20,000 draws for each of 64 weights: 2e-9 each.
    w = jnp.asarray(np.random.default_rng(3).standard_normal((8, 8)), jnp.bfloat16)
    quantizer = make_quantizer("int4")
    draws = jax.vmap(quantizer.round_random, (0, None))(
        jax.random.split(KEY, 20_000), w
    )
    assert draws.dtype == jnp.bfloat16
    mean = np.asarray(draws, np.float64).mean(0)
    error = np.abs(mean - np.asarray(w, np.float64))
    step = float(quantizer.scale(w))
    # Both neighbours are cast to bfloat16: half a unit is 2^-8 of a weight, to a step.
    cast_error = 2.0**-8 * (np.abs(np.asarray(w, np.float64)) + step)
    assert np.all(error <= cast_error + 6 * 0.5 * step / np.sqrt(20_000))


def test_float64_stays_float64():
    with jax.enable_x64(True):
        quantizer = make_quantizer("fp4", per_block(4))
        w = jnp.asarray(np.random.default_rng(4).standard_normal((50, 8)))
        rounded = quantizer.round_random(KEY, w)
        assert rounded.dtype == quantizer.scale(w).dtype == jnp.float64
        assert quantizer.variance(w).dtype == jnp.float64
        np.testing.assert_array_equal(quantizer.round_nearest(rounded), rounded)
        np.testing.assert_allclose(
            quantizer.scale(w), np.abs(w).reshape(50, 2, 4).max(-1) / 6, rtol=1e-15
        )


def test_vmap_is_the_loop():
    quantizer = make_quantizer("int4", per_channel(0))
    w = jnp.asarray(np.random.default_rng(5).standard_normal((4, 3, 5)), jnp.float32)
    keys = jax.random.split(KEY, 4)
    batched = jax.jit(jax.vmap(quantizer.round_random))(keys, w)
    nearest = jax.vmap(quantizer.round_nearest)(w)
    for i in range(4):
        np.testing.assert_array_equal(batched[i], quantizer.round_random(keys[i], w[i]))
        np.testing.assert_array_equal(nearest[i], quantizer.round_nearest(w[i]))


# --- pytrees ------------------------------------------------------------------------


def test_a_tree_is_rounded_where_the_mask_says():
    quantizer = make_quantizer("int3")
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(1))
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
