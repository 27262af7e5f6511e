"""Norms over pytrees: values, extremes, gradients, dtypes."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxopt_suite.core.trees import clip_to_norm, global_norm, statistics_dtype

# Squares of these overflow float32, sums of six of them do not.
FLOATS = st.floats(-(2.0**125), 2.0**125, width=32, allow_subnormal=False)

compiled_norm, compiled_clip = jax.jit(global_norm), jax.jit(clip_to_norm)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (jnp.bfloat16, jnp.float32),
        (jnp.float16, jnp.float32),
        (jnp.float32, jnp.float32),
        (jnp.float64, jnp.float64),
    ],
)
def test_statistics_are_kept_in_at_least_float32(dtype, wide):
    assert statistics_dtype(jnp.dtype(dtype)) == wide


@given(x=hnp.arrays(np.float32, 6, elements=FLOATS))
@settings(deadline=None, max_examples=50)
def test_the_norm_equals_numpy_in_float64(x):
    expected = np.linalg.norm(x.astype(np.float64))
    tree = {"w": x[:4].reshape(2, 2), "b": (x[4], x[5:])}
    np.testing.assert_allclose(compiled_norm(tree), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ([], 0.0),
        ({"a": None, "b": jnp.zeros((0, 3))}, 0.0),
        (jnp.zeros(3), 0.0),
        (jnp.array(-2.0), 2.0),
        (jnp.array([3e-38, 0.0]), 3e-38),
        (jnp.array([3e30, 4e30]), 5e30),
        (jnp.array([1.5e38, -2e38]), 2.5e38),
        (jnp.array([1.0, jnp.inf]), np.inf),
        (jnp.array([1.0, jnp.nan]), np.nan),
        ([jnp.array([jnp.inf]), jnp.array([jnp.nan])], np.nan),
    ],
)
def test_the_norm_at_the_extremes(tree, expected):
    for norm in (global_norm, compiled_norm):
        np.testing.assert_allclose(norm(tree), expected, rtol=1e-6)


def test_the_gradient_of_the_norm_is_the_unit_vector_and_zero_at_zero():
    gradient = jax.jit(jax.grad(global_norm))
    np.testing.assert_allclose(gradient(jnp.array([3.0, -4.0])), [0.6, -0.8], rtol=1e-6)
    np.testing.assert_allclose(gradient(jnp.array([3e30, 4e30])), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(gradient(jnp.zeros(2)), [0.0, 0.0])


def test_the_norm_of_narrow_floats_is_float32_and_of_float64_is_float64():
    # 4096 ones: summed in bfloat16 the square would stop growing at 256.
    norm = global_norm(jnp.ones(4096, jnp.bfloat16))
    assert norm.dtype == jnp.float32
    assert norm == 64.0
    with jax.enable_x64(True):
        norm = global_norm([jnp.ones(2, jnp.float64), jnp.ones(2, jnp.float32)])
        assert norm.dtype == jnp.float64


@given(x=hnp.arrays(np.float32, 5, elements=FLOATS), bound=st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=50)
def test_clipping_equals_numpy_in_float64(x, bound):
    wide = x.astype(np.float64)
    norm = np.linalg.norm(wide)
    expected = wide * (min(1.0, bound / norm) if norm else 1.0)
    clipped = compiled_clip({"a": x[:2], "b": x[2:]}, bound)
    clipped = np.concatenate([clipped["a"], clipped["b"]])
    np.testing.assert_allclose(clipped, expected, rtol=1e-5, atol=1e-30)


def test_what_lies_within_the_bound_is_returned_bit_for_bit():
    x = jnp.array([0.1, -0.7, 0.3])
    np.testing.assert_array_equal(clip_to_norm(x, 1.0), x)
    np.testing.assert_array_equal(clip_to_norm(x, jnp.inf), x)
    np.testing.assert_array_equal(clip_to_norm(jnp.zeros(3), 1.0), jnp.zeros(3))
    assert clip_to_norm({}, 1.0) == {}


def test_clipping_never_hides_a_value_that_is_not_finite():
    assert jnp.isnan(clip_to_norm(jnp.array([jnp.nan, 1.0]), 1.0)).all()
    assert jnp.isnan(clip_to_norm(jnp.array([jnp.inf, 1.0]), 1.0)[0])
    assert jnp.isinf(clip_to_norm(jnp.array([jnp.inf, 1.0]), jnp.inf)[0])


def test_clipping_has_finite_gradients_at_zero_and_keeps_dtypes():
    total = lambda x: jnp.sum(clip_to_norm(x, 1.0))  # noqa: E731
    gradient = jax.jit(jax.grad(total))
    np.testing.assert_array_equal(gradient(jnp.zeros(3)), jnp.ones(3))
    # d/dx_i of sum_j x_j / |x| = (1 - x_i sum_j x_j / |x|^2) / |x|, at (3, 4).
    np.testing.assert_allclose(
        gradient(jnp.array([3.0, 4.0])), [4 / 125, -3 / 125], rtol=1e-5
    )
    tree = {"a": jnp.full(2, 3.0, jnp.bfloat16), "b": jnp.ones([], jnp.float32)}
    clipped = clip_to_norm(tree, jnp.float32(1.0))
    assert jax.tree.map(lambda x: x.dtype, clipped) == {
        "a": jnp.bfloat16,
        "b": jnp.float32,
    }
