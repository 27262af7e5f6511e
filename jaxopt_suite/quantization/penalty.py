"""A penalty on the leaves that are quantized, and how its slope joins the updates.

Trees here hold ``optax.MaskedNode`` in place of every leaf that is not quantized.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxopt_suite.core.checks import check_interval
from jaxopt_suite.core.trees import statistics_dtype
from jaxopt_suite.quantization.rounding import Quantizer

Scalar = float | Float[Array, ""]


def penalty_and_slope(
    quantizer: Quantizer,
    weights: PyTree[Float[Array, "..."]],
    curvature: PyTree[Float[Array, "..."]],
    differentiate_scale: bool,
) -> tuple[Float[Array, ""], PyTree[Float[Array, "..."]]]:
    """``1/2 sum c sigma^2(w)`` with ``c`` constant, and its gradient."""
    curvature = jax.lax.stop_gradient(curvature)

    def penalty(weights):
        total = jnp.zeros([], jnp.float32)
        for w, c in zip(
            jax.tree.leaves(weights), jax.tree.leaves(curvature), strict=True
        ):
            variance = quantizer.variance(w, differentiate_scale)
            total += 0.5 * jnp.sum(c * variance).astype(jnp.float32)
        return total

    return jax.value_and_grad(penalty)(weights)


def add_slope(updates: PyTree, slope: PyTree, strength: Any) -> PyTree:
    """``updates + strength * slope`` where there is one; the updates with 0."""

    def add(r, u):
        pushed = u + jnp.asarray(strength, r.dtype) * r
        # 0 times a slope that is not finite would be NaN.
        return jnp.where(strength == 0, u, pushed).astype(u.dtype)

    return jax.tree.map(
        lambda r, u: u if is_masked(r) else add(r, u), slope, updates, is_leaf=is_masked
    )


def is_masked(node: Any) -> bool:
    """Whether a leaf is not quantized."""
    return isinstance(node, optax.MaskedNode)


def keep_chosen(chosen: PyTree[bool], tree: PyTree, fn: Callable[[Any], Any]) -> PyTree:
    """``fn`` of the selected leaves; optax.MaskedNode in place of the others."""
    return jax.tree.map(
        lambda selected, x: fn(x) if selected else optax.MaskedNode(), chosen, tree
    )


def map_kept(fn: Callable[..., Any], kept: PyTree, *rest: PyTree) -> PyTree:
    """``fn`` of the leaves that are there; the masked stay masked."""
    return jax.tree.map(
        lambda x, *others: x if is_masked(x) else fn(x, *others),
        kept,
        *rest,
        is_leaf=is_masked,
    )


def wide(leaf: Any) -> Array:
    """The leaf in at least float32."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(statistics_dtype(leaf.dtype))


def wide_zeros(leaf: Array) -> Array:
    """Zeros of the leaf's shape in at least float32."""
    return jnp.zeros(jnp.shape(leaf), statistics_dtype(jnp.result_type(leaf)))


def at_count(value: Any, count: Int[Array, ""]) -> Any:
    """The value of a number or a schedule."""
    return value(count) if callable(value) else value


def matching_curvature(
    given: PyTree, params: PyTree, chosen: PyTree[bool]
) -> PyTree[Float[Array, "..."]]:
    """The given curvature on the selected leaves, checked."""
    treedef = jax.tree.structure(params)
    try:
        treedef.flatten_up_to(given)
    except ValueError as error:
        raise ValueError(
            f"curvature must be a pytree like params, {treedef}, got "
            f"{jax.tree.structure(given)}: {error}"
        ) from None

    def check(path, selected, p, c):
        if not selected:
            return optax.MaskedNode()
        where = f"curvature{jax.tree_util.keystr(path)}"
        if jnp.shape(c) != p.shape:
            raise ValueError(f"{where} must have shape {p.shape}, got {jnp.shape(c)}")
        check_interval(where, c, 0.0)
        return jnp.asarray(c, statistics_dtype(p.dtype))

    return jax.tree_util.tree_map_with_path(check, chosen, params, given)
