"""Roundings against those of ml_dtypes and qwix."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxopt_suite.quantization import (
    make_quantizer,
    per_block,
    per_channel,
    per_tensor,
    to_qwix,
)


def qwix() -> Any:
    try:
        import qwix
    except (ImportError, AttributeError) as error:
        # Flax 0.12.8 reaches for a name that JAX 0.11 has moved.
        pytest.skip(f"qwix does not import: {error}")
    return qwix


def weights(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp4", ml_dtypes.float4_e2m1fn), ("fp8", ml_dtypes.float8_e4m3fn)],
)
@pytest.mark.parametrize("granularity", [per_block(32)])
def test_rounding_to_floats_is_the_conversion_of_ml_dtypes(name, dtype, granularity):
    quantizer, w = make_quantizer(name, granularity), weights((3_000, 32), 0)
    scale = np.asarray(quantizer.scale(w))
    # By construction no quotient exceeds the largest value but by rounding.
    scaled = np.clip(w / scale, -quantizer.format.qmax, quantizer.format.qmax)
    expected = scaled.astype(dtype)
    codes, scales = quantizer.codes(w)
    values = quantizer.dequantize(codes, jnp.ones_like(scales))
    np.testing.assert_array_equal(values, expected.astype(np.float32))


def test_ties_of_floats_go_where_those_of_ml_dtypes_go():
    for name, dtype in (
        ("fp4", ml_dtypes.float4_e2m1fn),
        ("fp8", ml_dtypes.float8_e4m3fn),
    ):
        quantizer = make_quantizer(name)
        grid = np.asarray(quantizer.format.grid, np.float32)
        tied = np.append((grid[1:] + grid[:-1]) / 2, grid[-1])
        expected = tied.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(quantizer.round_nearest(tied), expected)


@pytest.mark.parametrize(
    "granularity", [pytest.param(per_channel(0), marks=pytest.mark.slow), per_block(32)]
)
def test_int4_is_the_cast_of_qwix_at_our_scale(granularity):
    w = weights((256, 128), 1)
    quantizer = make_quantizer("int4", granularity)
    axes: dict[str, Any] = {"channelwise_axes": (0,)}
    if granularity.kind == "block":
        axes["tiled_axes"] = {1: 32}
    theirs = qwix().quantize(
        jnp.asarray(w), "int4", calibration_method=f"absmax,{7.5 / 7}", **axes
    )
    codes, scales = quantizer.codes(w)
    np.testing.assert_allclose(scales, theirs.scale, rtol=5e-7)
    # Entries whose quotient is a tie to a unit or two in the last place.
    quotient = np.abs(w / np.repeat(scales, w.shape[1] // scales.shape[1], axis=1))
    tied = np.abs(quotient % 1.0 - 0.5) < 4e-6
    assert tied.mean() < 1e-3
    np.testing.assert_array_equal(codes[~tied], np.asarray(theirs.qvalue, int)[~tied])


def test_the_default_cast_of_qwix_changes_a_rounded_array_and_ours_does_not():
    w = weights((256, 128), 2)
    quantizer = make_quantizer("int4", per_block(32))

    def theirs(x):
        cast = qwix().quantize(
            jnp.asarray(x), "int4", channelwise_axes=(0,), tiled_axes={1: 32}
        )
        return np.asarray(qwix().dequantize(cast))

    once = theirs(w)
    assert np.mean(np.abs(theirs(once) - once) > 1e-3 * np.abs(once)) > 0.2
    ours = quantizer.round_nearest(w)
    np.testing.assert_array_equal(quantizer.round_nearest(ours), ours)


@pytest.mark.parametrize(
    ("name", "granularity"),
    [
        ("fp4", per_block(16, 0)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("int2", per_tensor()),
                ("int4", per_block(32)),
                ("int6", per_channel(1)),
                ("int8", per_block(16, 0)),
                ("fp8", per_channel(0)),
                ("nf4", per_block(64)),
            ]
        ),
    ],
)
def test_a_qarray_dequantizes_to_our_rounding(name, granularity):
    w, quantizer = weights((32, 64), 3), make_quantizer(name, granularity)
    exported = to_qwix(w, quantizer)
    assert isinstance(exported, qwix().QArray)
    assert exported.shape == w.shape
    back = qwix().dequantize(exported)
    np.testing.assert_array_equal(back, quantizer.dequantize(*quantizer.codes(w)))
    np.testing.assert_allclose(back, quantizer.round_nearest(w), rtol=2e-7)


def test_a_qarray_computes_products():
    w, x = weights((64, 8), 4), weights((5, 64), 5)
    exported = to_qwix(w, make_quantizer("int4", per_channel(1)))
    product = qwix().dot(jnp.asarray(x), exported)
    expected = x @ np.asarray(make_quantizer("int4", per_channel(1)).round_nearest(w))
    np.testing.assert_allclose(product, expected, rtol=1e-4, atol=1e-4)


def test_what_qwix_cannot_hold_is_refused():
    qwix()
    with pytest.raises(ValueError, match=r"size .*must divide .*got 32 .*\(2, 40\)"):
        to_qwix(jnp.ones((2, 40)), make_quantizer("int4", per_block(32)))
    short = to_qwix(jnp.ones((2, 20)), make_quantizer("int4", per_block(32)))
    assert short.scale.shape == (2, 1)
    fmt = make_quantizer("int4").format
    disguised = make_quantizer("int3").format._replace(name="int4")
    for mine in (fmt._replace(name="mine"), disguised):
        with pytest.raises(ValueError, match=rf"one of int2, .*'{mine.name}' with the"):
            to_qwix(jnp.ones((2, 2)), make_quantizer(mine))
