"""Grids and codes against the bit patterns of ml_dtypes, and what is refused."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from rounding_reference import NAMES, grid_of

from jaxopt_suite.quantization import (
    Granularity,
    QuantFormat,
    fp4_e2m1,
    fp8_e4m3,
    get_format,
    int_format,
    make_quantizer,
    nf4,
    per_block,
    per_channel,
    per_tensor,
)

BITS = {"int2": 2, "int3": 3, "int4": 4, "int8": 8, "fp4": 4, "fp8": 8, "nf4": 4}


@pytest.mark.parametrize("name", NAMES)
def test_grids_are_those_of_their_definitions(name):
    fmt = get_format(name)
    # The reference has the levels of nf4 to four digits.
    tolerance = 1e-4 if name == "nf4" else 0.0
    np.testing.assert_allclose(fmt.grid, grid_of(name), rtol=0, atol=tolerance)
    assert fmt.qmax == fmt.grid[-1]
    assert fmt.name == name
    assert fmt.bits == BITS[name]


def test_makers_and_names_agree():
    assert get_format("int5") == int_format(5)
    assert get_format("fp4") == fp4_e2m1()
    assert get_format("fp8") == fp8_e4m3()
    assert get_format("nf4") == nf4()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp4", ml_dtypes.float4_e2m1fn), ("fp8", ml_dtypes.float8_e4m3fn)],
)
def test_codes_of_floats_are_their_bit_patterns(name, dtype):
    fmt = get_format(name)
    # The largest value is there, so the scale is 1 and every weight its own code.
    codes, scale = make_quantizer(fmt).codes(jnp.asarray(fmt.grid, jnp.float32))
    assert scale == 1
    assert codes.dtype == jnp.uint8
    # No code is spent on a negative zero.
    patterns = np.asarray(fmt.grid).astype(dtype).view(np.uint8)
    np.testing.assert_array_equal(codes, patterns)


def test_codes_of_integers_and_of_levels():
    codes, _ = make_quantizer("int3").codes(jnp.arange(-3.0, 4.0))
    assert codes.dtype == jnp.int8
    np.testing.assert_array_equal(codes, np.arange(-3, 4))
    codes, _ = make_quantizer("nf4").codes(jnp.asarray(nf4().grid, jnp.float32))
    assert codes.dtype == jnp.uint8
    np.testing.assert_array_equal(codes, np.arange(16))


def test_a_grid_of_ones_own():
    quantizer = make_quantizer(QuantFormat((-4.0, 0.0, 1.0, 4.0), 4.0, "mine"))
    w = jnp.array([-4.0, -2.5, -1.5, 0.4, 0.6, 2.4, 2.6])
    np.testing.assert_array_equal(
        quantizer.round_nearest(w), [-4.0, -4.0, 0.0, 0.0, 1.0, 1.0, 4.0]
    )
    np.testing.assert_array_equal(quantizer.codes(w)[0], [0, 0, 1, 1, 2, 2, 3])
    # Ties to the even index where the grid is not symmetric.
    tied = quantizer.codes(jnp.array([-4.0, -2.0, 0.5, 2.5]))[0]
    np.testing.assert_array_equal(tied, [0, 0, 2, 2])


@pytest.mark.parametrize("kind", [list, np.array])
def test_a_grid_of_another_kind_becomes_a_tuple(kind):
    written = QuantFormat(kind([-1, -0.0, 1]), cast(Any, np.float32(1)), "mine")
    quantizer = make_quantizer(written)
    assert quantizer is make_quantizer(QuantFormat((-1.0, 0.0, 1.0), 1.0, "mine"))
    assert str(quantizer.format.grid) == "(-1.0, 0.0, 1.0)"


def test_formats_and_quantizers_are_static_arguments_made_once():
    quantizers = {
        make_quantizer("int4"),
        make_quantizer(int_format(4)),
        make_quantizer(get_format("int4"), per_tensor()),
    }
    assert len(quantizers) == 1
    assert make_quantizer("fp4", per_block(8)) is make_quantizer("fp4", per_block(8))
    traces = 0

    def counted(quantizer, w):
        nonlocal traces
        traces += 1
        return quantizer.round_nearest(w)

    rounded = jax.jit(counted, static_argnums=0)
    for granularity in (per_channel(0), per_channel(0)):
        rounded(make_quantizer("int4", granularity), jnp.ones((2, 2)))
    assert traces == 1


# --- bad input ----------------------------------------------------------------------

ALL_FORMATS = "int2, int3, int4, int5, int6, int7, int8, fp4, fp8, nf4"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: int_format(1), "bits must be an integer from 2 to 8, got 1"),
        (lambda: int_format(9), "bits must be an integer from 2 to 8, got 9"),
        (lambda: int_format(cast(Any, 4.0)), "bits must be an integer .* got 4.0"),
        (lambda: int_format(True), "bits must be an integer .* got True"),
        (
            lambda: get_format("int9"),
            f"format must be one of {ALL_FORMATS}, got 'int9'",
        ),
        (lambda: get_format(cast(Any, ["int4"])), "format must be one of .*'int4'"),
        (
            lambda: make_quantizer("int4", Granularity("block", -1, cast(Any, 1.5))),
            "size must be an integer >= 1, got 1.5",
        ),
        (lambda: make_quantizer("int4", Granularity("block")), "size must be .*got 0"),
        (
            lambda: make_quantizer("int4", Granularity("channel", cast(Any, 1.5))),
            "axis must be a static integer, got 1.5",
        ),
        (lambda: make_quantizer("fp5"), "format must be one of .*got 'fp5'"),
        (lambda: make_quantizer(cast(Any, 4)), "fmt must be a format .*got 4"),
        (lambda: per_block(0), "size must be an integer >= 1, got 0"),
        (lambda: per_block(cast(Any, 2.0)), "size must be an integer >= 1, got 2.0"),
        (lambda: per_block(2, cast(Any, 0.5)), "axis must be .*integer, got 0.5"),
        (lambda: per_channel(cast(Any, None)), "axis must be .*integer, got None"),
        (
            lambda: make_quantizer("int4", Granularity("row")),
            r"granularity must be per_tensor\(\), .*'row'",
        ),
        (
            lambda: make_quantizer("int4", cast(Any, "tensor")),
            r"granularity must be per_tensor\(\), .*'tensor'",
        ),
    ],
)
def test_bad_formats_and_granularities_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("grid", "qmax"),
    [
        ((-1.0, 1.0, 0.0), 1.0),
        ((-1.0, 0.5, 1.0), 1.0),
        ((-2.0, 0.0, 1.0), 1.0),
        ((-1.0, 0.0, 1.0), 2.0),
        (tuple(np.arange(-150.0, 151.0)), 150.0),
        ((), 0.0),
        ("mine", 1.0),
        (((-1.0, 0.0, 1.0),), 1.0),
    ],
)
def test_grids_that_do_not_serve_are_refused(grid, qmax):
    with pytest.raises(ValueError, match=r"format.grid must be 3 to 256 ascending"):
        make_quantizer(QuantFormat(grid, qmax, "mine"))


@pytest.mark.parametrize("granularity", [per_channel(2), per_block(4, -3)])
def test_an_axis_that_the_array_lacks_is_refused(granularity):
    quantizer = make_quantizer("int4", granularity)
    axis = granularity.axis
    for call in (quantizer.scale, quantizer.round_nearest, quantizer.variance):
        with pytest.raises(ValueError, match=rf"axis .*got {axis} .*shape \(2, 3\)"):
            call(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"per_tensor\(\)"):
        quantizer.codes(jnp.ones([]))


def test_arrays_that_are_not_floating_are_refused():
    with pytest.raises(ValueError, match="w must have a floating dtype, got int32"):
        make_quantizer("int4").round_nearest(jnp.arange(3))
