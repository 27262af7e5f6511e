"""Packed codes, files, and what is refused."""

import collections
from typing import Any, cast

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from small_model import small_model

from jaxopt_suite.quantization import (
    QuantFormat,
    load_quantized,
    make_quantizer,
    pack_int4,
    per_block,
    per_channel,
    per_tensor,
    quantize_tree,
    save_quantized,
    unpack_int4,
    where_path,
)


def test_the_first_code_is_the_low_half_of_a_byte():
    packed = pack_int4(jnp.array([[1, -1, 7], [-8, 3, 0]], jnp.int8))
    np.testing.assert_array_equal(packed, [[0xF1, 0x07], [0x38, 0x00]])
    assert packed.dtype == jnp.uint8


@given(
    codes=hnp.arrays(
        np.int8,
        # Few shapes: each is a compile.
        st.sampled_from([(0,), (8,), (3, 5)]),
        elements=st.integers(-8, 7),
    )
)
@settings(deadline=None, max_examples=40)
def test_unpacking_undoes_packing(codes):
    size = codes.shape[-1]
    packed = pack_int4(jnp.asarray(codes))
    assert packed.shape == (*codes.shape[:-1], (size + 1) // 2)
    np.testing.assert_array_equal(unpack_int4(packed, size), codes)
    bits = unpack_int4(packed, size, signed=False)
    assert bits.dtype == jnp.uint8
    np.testing.assert_array_equal(bits, codes.view(np.uint8) & 15)
    np.testing.assert_array_equal(pack_int4(bits), packed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack_int4(jnp.ones(2, jnp.int32)), "codes.dtype .*got 'int32'"),
        (
            lambda: pack_int4(jnp.ones([], jnp.int8)),
            "codes must have at least one axis",
        ),
        (lambda: pack_int4(cast(Any, [1, 2])), "codes.dtype .*got 'int32'"),
        (lambda: unpack_int4(jnp.ones(2, jnp.int8), 4), "packed.dtype .*got 'int8'"),
        (lambda: unpack_int4(jnp.ones(2, jnp.uint8), 5), r"size .*\(2,\), got 5"),
        (lambda: unpack_int4(jnp.ones(2, jnp.uint8), -1), "size .*>= 0, got -1"),
    ],
)
def test_bad_arrays_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- files --------------------------------------------------------------------------


W = {"v": jnp.ones((2, 2)), "w": jnp.array([[2.0, 1.0], [0.0, -2.0]])}
CUSTOM = QuantFormat((-2.0, 0.0, 1.0, 2.0), 2.0, "mine")


@pytest.mark.parametrize(
    ("fmt", "granularity"),
    [
        ("int4", per_block(3)),
        pytest.param("fp4", per_channel(0), marks=pytest.mark.slow),
        pytest.param("int8", per_tensor(), marks=pytest.mark.slow),
    ],
)
def test_a_file_gives_back_the_rounded_model(tmp_path, fmt, granularity):
    quantizer, params = make_quantizer(fmt, granularity), small_model()
    path = tmp_path / "model.quantized"
    save_quantized(path, quantizer, params)
    assert path.exists()
    restored = load_quantized(path, like=params)
    expected = quantize_tree(quantizer, params)
    for a, b in zip(restored.layers, expected.layers, strict=True):
        np.testing.assert_allclose(a.weight, b.weight, rtol=2e-7)
        np.testing.assert_array_equal(a.bias, b.bias)
    assert restored.activation is params.activation
    # Saved again, the same codes.
    again = tmp_path / "again"
    save_quantized(again, quantizer, restored)
    with np.load(path) as first, np.load(again) as second:
        assert set(first) == set(second)
        for name in [name for name in first if name.startswith("codes")]:
            np.testing.assert_array_equal(first[name], second[name])


def test_a_file_holds_half_a_byte_for_a_weight_of_four_bits(tmp_path):
    path, w = tmp_path / "file.npz", jnp.linspace(-1, 1, 35).reshape(5, 7)
    save_quantized(path, make_quantizer("nf4"), {"w": w, "b": jnp.ones(3)})
    with np.load(path) as file:
        assert file["codes_1"].nbytes == 18
        assert file["scales_1"].shape == ()
        assert file["array_0"].nbytes == 12


def test_without_a_model_it_is_a_dict_of_paths(tmp_path):
    path = tmp_path / "file"
    params = {
        "a": {"w": jnp.array([[2.0, 0.75, -0.8]])},
        "b": jnp.ones((2, 0), jnp.bfloat16),
        "c": [jnp.arange(3), jnp.array(1.5, jnp.bfloat16)],
        "d": "name",
    }
    mask = {"a": True, "b": True, "c": False, "d": False}
    save_quantized(path, make_quantizer(CUSTOM), params, mask)
    found = load_quantized(path)
    assert list(found) == ["a/w", "b", "c/0", "c/1"]
    np.testing.assert_array_equal(found["a/w"], [[2.0, 1.0, 0.0]])
    np.testing.assert_array_equal(found["c/0"], jnp.arange(3))
    assert found["c/0"].dtype == jnp.int32
    assert found["c/1"] == params["c"][1]
    assert found["b"].shape == (2, 0)
    assert found["b"].dtype == found["c/1"].dtype == jnp.bfloat16
    shapes = jax.eval_shape(lambda: {k: params[k] for k in "abc"}) | {"d": "other"}
    assert load_quantized(path, like=shapes)["d"] == "other"


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (W | {"w": jnp.ones((2, 3))}, r"got 'w' of shape \(2, 3\) .*'w' of .*\(2, 2\)"),
        ({"v": W["v"], "x": W["w"]}, "got 'x' of shape .* has 'w' of shape"),
        ({"a": W["w"], "v": W["v"]}, "got 'a' of shape .* has 'v' of shape"),
        ({"v": "name", "w": W["w"]}, "got nothing where .* has 'v'"),
        (W | {"z": jnp.ones(1)}, r"got 'z' of shape \(1,\) .*has nothing"),
        (W | {"w": jnp.ones((2, 2), jnp.bfloat16)}, "bfloat16 where .* float32"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, like, message):
    path = tmp_path / "file"
    save_quantized(path, make_quantizer("int4"), W)
    with pytest.raises(ValueError, match=message):
        load_quantized(path, like)


def test_another_container_with_the_same_names_fits(tmp_path):
    path, pair = tmp_path / "file", collections.namedtuple("pair", "v w")
    save_quantized(path, make_quantizer("int4"), W)
    restored = load_quantized(path, pair(**W))
    assert isinstance(restored, pair)
    np.testing.assert_array_equal(restored.w, load_quantized(path)["w"])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"a/b": W["v"], "a": {"b": W["w"]}}, "one leaf for each path.*'a/b'"),
        ({"a": jax.random.key(0)}, "params at 'a' .*typed key"),
        ({"a": jax.ShapeDtypeStruct((2,), jnp.float32)}, "params at 'a' must be"),
        ({"a": [jnp.ones((2, 2)), jnp.ones(2)]}, r"params\['a'\]\[1\] .*axis"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(tmp_path, params, message):
    path = tmp_path / "file"
    quantizer = make_quantizer("int4", per_channel(-2))
    with pytest.raises(ValueError, match=message):
        save_quantized(path, quantizer, params, where_path(lambda path: path != "a"))
    assert not path.exists()


@pytest.mark.parametrize(
    "write",
    [
        lambda file: np.savez(file, w=np.ones(2)),
        lambda file: np.savez(file, about=np.ones(2)),
        lambda file: np.savez(file, about="not JSON"),
        lambda file: np.save(file, np.ones(2)),
        lambda file: file.write(b"PK\x03\x04 no archive"),
        lambda file: file.write(b"text"),
        lambda file: None,
    ],
)
def test_another_file_is_refused(tmp_path, write):
    path = tmp_path / "other.npz"
    with open(path, "wb") as file:
        write(file)
    with pytest.raises(ValueError, match="path must be a file of save_quantized"):
        load_quantized(path)
