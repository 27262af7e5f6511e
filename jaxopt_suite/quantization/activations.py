"""LOTION for activations: unbiased rounding per token, and the penalty it costs.

Nothing here happens unless a model calls it, on the input of a layer.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxopt_suite.core.checks import check_floating, check_key
from jaxopt_suite.quantization.baselines import straight_through
from jaxopt_suite.quantization.formats import QuantFormat
from jaxopt_suite.quantization.granularity import per_block
from jaxopt_suite.quantization.penalty import Scalar, check_weight, wide, wide_variance
from jaxopt_suite.quantization.rounding import Quantizer, make_quantizer


def per_token(fmt: str | QuantFormat, x: Float[Array, "*tokens features"]) -> Quantizer:
    """A quantizer with one scale per token, that is, per vector of features.

    Args:
        fmt: a format, or its name.
        x: activations like those to be rounded.

    Raises:
        ValueError: ``x`` has no axis of features, or an empty one, or is not floating.

    Example:
        >>> x = jnp.array([[7.0, 2.4], [0.7, 0.24]])
        >>> per_token("int4", x).round_nearest(x)
        Array([[7. , 2. ],
               [0.7, 0.2]], dtype=float32)
    """
    check_floating("x", x)
    if not x.ndim or not x.shape[-1]:
        raise ValueError(f"x must have a last axis of features, got shape {x.shape}")
    return make_quantizer(fmt, per_block(x.shape[-1]))


def smooth_activations(
    fmt: str | QuantFormat,
    x: Float[Array, "*tokens features"],
    key: PRNGKeyArray,
    *,
    batch_size: Scalar | None = None,
    strength: Scalar = 1.0,
) -> Float[Array, "*tokens features"]:
    r"""Randomly rounded activations, with the gradient of the smoothed loss.

    .. math:: \hat x = R(x), \qquad
        \frac{\partial L}{\partial x_{nj}} = g_{nj} + \lambda \frac{\partial}{\partial
        x_{nj}} \sum_{m,i} \tfrac12 c_i \sigma_{mi}^2(x), \quad
        c_i = B\, \mathrm{mean}_m\, g_{mi}^2

    where g is the gradient that comes back from :math:`\hat x`. Rounding is unbiased,
    so a straight-through gradient follows the loss but misses what the variance
    :math:`\sigma^2` costs; the second moment of g is the curvature of that cost. Deploy
    with ``per_token(fmt, x).round_nearest(x)``.

    Args:
        fmt: a format, or its name.
        x: activations.
        key: typed key of the rounding; a new one for each step and layer.
        batch_size: :math:`B > 0`, tokens that the loss is a mean over; may be traced.
            None takes those of ``x``; under ``vmap`` over examples x is one of them, so
            give the number.
        strength: :math:`\lambda \ge 0`; may be traced. 0 is randomized rounding with a
            straight-through gradient.

    Returns:
        Rounded activations in the dtype of ``x``.

    Raises:
        ValueError: ``x`` has no features or is not floating, there is no key, or a
            concrete ``batch_size`` or ``strength`` is out of range.

    Example:
        >>> x = jnp.array([[7.0, 2.5]])
        >>> loss = lambda x: 2 * smooth_activations("int4", x, jax.random.key(0))[0, 1]
        >>> jax.grad(loss)(x)  # the scale moves by 1/7: 4/2 (3 0.5 - 2 0.5) / 7
        Array([[0.142857..., 2.        ]], dtype=float32)

    Source: the principle of Kwun et al. (2025), arXiv 2510.08757, which rounds weights.
    """
    x = jnp.asarray(x)
    quantizer = per_token(fmt, x)
    check_key("key", key)
    check_weight("strength", strength)
    if batch_size is None:
        batch_size = max(1, x.size // x.shape[-1])
    check_weight("batch_size", batch_size, "()")
    dtype = wide(x).dtype
    x = _penalized(
        quantizer, x, jnp.asarray(batch_size, dtype), jnp.asarray(strength, dtype)
    )
    return straight_through(quantizer.round_random(key, x), x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _penalized(quantizer, x, batch_size, strength):
    """``x``, whose gradient gains that of the penalty."""
    del quantizer, batch_size, strength
    return x


def _forward(quantizer, x, batch_size, strength):
    del quantizer
    return x, (x, batch_size, strength)


def _backward(quantizer, saved, g):
    x, batch_size, strength = saved
    squares = wide(g) ** 2
    tokens = tuple(range(x.ndim - 1))
    curvature = batch_size * jnp.mean(squares, axis=tokens, keepdims=True)

    def penalty(x):
        return 0.5 * jnp.sum(curvature * wide_variance(quantizer, x, dtype))

    dtype = x.dtype
    slope = jax.grad(penalty)(wide(x))
    moved = jnp.where(strength == 0, g, g + strength * slope).astype(g.dtype)
    return moved, jnp.zeros_like(batch_size), jnp.zeros_like(strength)


_penalized.defvjp(_forward, _backward)
