"""How far weights are from their grid, and what rounding them costs."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_integer, check_interval, check_key
from jaxopt_suite.quantization.masks import Mask, resolve_mask
from jaxopt_suite.quantization.rounding import (
    Quantizer,
    check_quantizer,
    quantize_tree,
)


def _selected(params: PyTree, mask: Mask) -> list[Array]:
    """The leaves that the mask selects, at least one weight in all."""
    chosen = jax.tree.leaves(resolve_mask(mask, params))
    leaves = jax.tree.leaves(params)
    kept = [x for x, keep in zip(leaves, chosen, strict=True) if keep and x.size]
    if not kept:
        raise ValueError("mask must select at least one weight of params, got none")
    return kept


def _mean(arrays: list[Array]) -> Float[Array, ""]:
    total = sum(jnp.sum(x) for x in arrays)
    return jnp.asarray(total / sum(x.size for x in arrays))


def quantization_error(
    quantizer: Quantizer, params: PyTree, mask: Mask = None
) -> Float[Array, ""]:
    r"""Mean squared change of the selected weights under rounding to nearest.

    Args:
        quantizer: of :func:`make_quantizer`.
        params: any pytree.
        mask: which leaves, as in :func:`quantize_tree`.

    Raises:
        ValueError: the mask does not fit, or selects no weight.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> quantization_error(make_quantizer("int3"), jnp.array([[3.0, 0.5]]))
        Array(0.125, dtype=float32)
    """
    check_quantizer("quantizer", quantizer)

    def squared(w):
        wide = w.astype(jnp.promote_types(w.dtype, jnp.float32))
        return (wide - quantizer.round_nearest(w).astype(wide.dtype)) ** 2

    return _mean([squared(w) for w in _selected(params, mask)])


def fraction_on_grid(
    quantizer: Quantizer,
    params: PyTree,
    mask: Mask = None,
    *,
    tolerance: float | Float[Array, ""] = 0.01,
) -> Float[Array, ""]:
    """Fraction of the selected weights within ``tolerance`` of a step from the grid.

    Args:
        quantizer: of :func:`make_quantizer`.
        params: any pytree.
        mask: which leaves, as in :func:`quantize_tree`.
        tolerance: distance in units of the gap that the weight lies in, from 0 to 0.5.

    Raises:
        ValueError: the mask does not fit, or selects no weight; a concrete
            ``tolerance`` is outside [0, 0.5].

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> w = jnp.array([[3.0, 0.5, 0.995, 0.0]])
        >>> fraction_on_grid(make_quantizer("int3"), w)
        Array(0.75, dtype=float32)
    """
    check_quantizer("quantizer", quantizer)
    check_interval("tolerance", tolerance, 0.0, 0.5)

    def near(w):
        _, _, delta = quantizer.neighbours(w)
        return (jnp.minimum(delta, 1.0 - delta) <= tolerance).astype(delta.dtype)

    return _mean([near(w) for w in _selected(params, mask)])


class QuantizedLoss(NamedTuple):
    """What :func:`quantized_loss` returns.

    Attributes:
        nearest: the loss of the weights rounded to nearest.
        random_mean: mean loss over random roundings, an estimate of the smoothed loss.
        random_std: its standard deviation over the roundings.
    """

    nearest: Float[Array, ""]
    random_mean: Float[Array, ""]
    random_std: Float[Array, ""]


def quantized_loss(
    loss: Callable[[PyTree], Float[Array, ""]],
    quantizer: Quantizer,
    params: PyTree,
    key: PRNGKeyArray,
    num_samples: int,
    mask: Mask = None,
) -> QuantizedLoss:
    """The loss of rounded weights, to nearest and at random.

    Args:
        loss: params -> scalar.
        quantizer: rounds each selected leaf.
        params: any pytree.
        key: typed key; one is split off for each random rounding.
        num_samples: random roundings; static. They are evaluated one by one.
        mask: which leaves, as in :func:`quantize_tree`.

    Raises:
        ValueError: ``num_samples`` is not a positive integer, ``key`` is none, or the
            mask does not fit.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> quantizer, w = make_quantizer("int3"), jnp.array([[3.0, 0.75]])
        >>> quantized_loss(jnp.sum, quantizer, w, jax.random.key(0), 4).nearest
        Array(4., dtype=float32)
    """
    check_quantizer("quantizer", quantizer)
    check_key("key", key)
    check_integer("num_samples", num_samples)
    draws = jax.lax.map(
        lambda key: loss(quantize_tree(quantizer, params, mask, key)),
        jax.random.split(key, num_samples),
    )
    nearest = loss(quantize_tree(quantizer, params, mask))
    return QuantizedLoss(nearest, jnp.mean(draws), jnp.std(draws))


def bits_per_weight(
    quantizer: Quantizer, params: PyTree, mask: Mask = None, *, scale_bits: int = 32
) -> float:
    """Mean bits of a selected weight, its share of the scales included.

    Args:
        quantizer: of :func:`make_quantizer`.
        params: any pytree of arrays, or of their shapes and dtypes.
        mask: which leaves, as in :func:`quantize_tree`.
        scale_bits: bits that a scale is stored in.

    Raises:
        ValueError: the mask does not fit, or selects no weight.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer, per_block
        >>> bits_per_weight(make_quantizer("int4", per_block(32)), jnp.ones((2, 64)))
        5.0
    """
    check_quantizer("quantizer", quantizer)
    check_integer("scale_bits", scale_bits, 0)
    leaves = _selected(params, mask)
    bits = sum(stored_bits(quantizer, leaf.shape, scale_bits) for leaf in leaves)
    return bits / sum(math.prod(leaf.shape) for leaf in leaves)


def stored_bits(quantizer: Quantizer, shape: tuple[int, ...], scale_bits: int) -> int:
    """Bits of the codes and scales of an array."""
    array = jax.ShapeDtypeStruct(shape, jnp.float32)
    scales = jax.eval_shape(quantizer.scale, array)
    return quantizer.format.bits * math.prod(shape) + scale_bits * scales.size
