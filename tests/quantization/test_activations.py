"""Randomly rounded activations: unbiased forward, the penalty's slope backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lotion_reference import penalty_and_slope

from jaxopt_suite.quantization import per_block, per_token, smooth_activations

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 5)).astype(np.float32)
UPSTREAM = RNG.standard_normal((2, 3, 5)).astype(np.float32)
KEY = jax.random.key(0)


@jax.jit
def pulled(x, batch_size, strength):
    """The rounded activations, and what UPSTREAM becomes; one compile for all."""

    def smooth(x):
        return smooth_activations(
            "int4", x, KEY, batch_size=batch_size, strength=strength
        )

    value, pull_back = jax.vjp(smooth, x)
    return value, pull_back(jnp.asarray(UPSTREAM, value.dtype))[0]


def test_forward_is_randomized_rounding_of_every_token():
    value, _ = pulled(X, 6.0, 1.0)
    expected = jax.jit(per_token("int4", jnp.asarray(X)).round_random)(KEY, X)
    np.testing.assert_array_equal(value, expected)
    top = np.abs(X).max(axis=-1)
    np.testing.assert_array_equal(np.abs(value).max(axis=-1), top)
    codes = np.asarray(value) / (top[..., None] / 7)
    np.testing.assert_allclose(codes, np.round(codes), atol=1e-5)


@pytest.mark.parametrize(("batch_size", "strength"), [(6.0, 1.0), (100.0, 0.5)])
def test_backward_adds_the_slope_of_the_penalty(batch_size, strength):
    _, got = pulled(X, batch_size, strength)
    second_moment = np.mean(UPSTREAM.reshape(6, 5).astype(np.float64) ** 2, axis=0)
    c = np.broadcast_to(batch_size * second_moment, X.shape)
    _, slope = penalty_and_slope("int4", X, c, per_block(5))
    size = np.abs(slope).max()
    np.testing.assert_allclose(got, UPSTREAM + strength * slope, atol=1e-5 * size)


def test_strength_zero_is_a_straight_through_estimator():
    _, got = pulled(X, 6.0, 0.0)
    np.testing.assert_array_equal(got, UPSTREAM)


def test_the_batch_size_is_by_default_the_number_of_tokens():
    def gradient(x, **arguments):
        smooth = lambda x: jnp.sum(smooth_activations("int4", x, KEY, **arguments))  # noqa: E731
        return jax.grad(smooth)(x)

    x = jnp.asarray(X, jnp.bfloat16)
    default, given = jax.jit(lambda: (gradient(x), gradient(x, batch_size=6)))()
    np.testing.assert_array_equal(default, given)
    assert default.dtype == jnp.bfloat16


def test_examples_one_by_one_take_the_given_batch_size():
    x, upstream = jnp.asarray(X[0, :1]), jnp.asarray(UPSTREAM[0, :1])

    def one(x, g):
        smooth = lambda x: smooth_activations("int4", x, KEY, batch_size=7.0)  # noqa: E731
        return jax.vjp(smooth, x)[1](g)[0]

    got = jax.jit(jax.vmap(one))(x, upstream)
    c = 7 * UPSTREAM[0, :1].astype(np.float64) ** 2
    _, slope = penalty_and_slope("int4", X[0, :1], c, per_block(5))
    np.testing.assert_allclose(got, upstream + slope, rtol=1e-4, atol=1e-4)


def test_on_the_grid_of_bfloat16_the_gradient_comes_back_as_it_is():
    x = jnp.asarray(X, jnp.bfloat16)
    x = jax.jit(per_token("int4", x).round_nearest)(x)
    upstream = jnp.asarray(UPSTREAM, jnp.bfloat16)
    _, got = pulled(x, 6.0, 1.0)
    np.testing.assert_array_equal(got, upstream)


@pytest.mark.parametrize(
    ("x", "arguments", "message"),
    [
        (1.0, {}, r"x must have a last axis of features, got shape \(\)"),
        (np.ones((2, 0)), {}, r"x must have a last axis .* \(2, 0\)"),
        (np.ones((2, 3), int), {}, "x must have a floating dtype, got int32"),
        (X, {"key": None}, "key must be a typed key"),
        (X, {"strength": np.inf}, "strength must be finite and >= 0, got inf"),
        (X, {"batch_size": np.inf}, "batch_size must be finite and > 0, got inf"),
        (X, {"strength": -1.0}, "strength must be >= 0, got -1.0"),
        (X, {"batch_size": 0}, "batch_size must be > 0, got 0"),
    ],
)
def test_bad_arguments_are_refused(x, arguments, message):
    with pytest.raises(ValueError, match=message):
        smooth_activations("int4", jnp.asarray(x), **{"key": KEY, **arguments})
