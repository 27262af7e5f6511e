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
from jaxopt_suite.quantization.masks import is_array
from jaxopt_suite.quantization.rounding import Quantizer

Scalar = float | Float[Array, ""]


def penalty_and_slope(
    quantizer: Quantizer,
    weights: PyTree[Float[Array, "..."]],
    curvature: PyTree[Float[Array, "..."]],
    differentiate_scale: bool,
) -> tuple[Float[Array, ""], PyTree[Float[Array, "..."]]]:
    """``1/2 sum c sigma^2(w)`` with ``c`` constant, and its gradient.

    The grid is that of the weights' own dtype; the gradient is at least float32.
    """
    curvature = jax.lax.stop_gradient(curvature)
    dtypes = [w.dtype for w in jax.tree.leaves(weights)]

    def penalty(weights):
        total = jnp.zeros([], jnp.float32)
        for w, c, dtype in zip(
            jax.tree.leaves(weights), jax.tree.leaves(curvature), dtypes, strict=True
        ):
            variance = wide_variance(quantizer, w, dtype, differentiate_scale)
            total += 0.5 * jnp.sum(c * variance).astype(jnp.float32)
        return total

    return jax.value_and_grad(penalty)(jax.tree.map(wide, weights))


def wide_variance(
    quantizer: Quantizer,
    w: Float[Array, "..."],
    dtype: Any,
    differentiate_scale: bool = True,
) -> Float[Array, "..."]:
    """``quantizer.variance`` of weights of ``dtype`` that are given widened.

    The gradient stays wide: one in float16 has no room for small slopes.
    """
    variance = quantizer.variance(w, differentiate_scale)
    if w.dtype == dtype:
        return variance
    # A value rounded to a narrow dtype is on the grid there, and not on the wide one.
    _, _, delta = quantizer.neighbours(jax.lax.stop_gradient(w).astype(dtype))
    return jnp.where((delta == 0) | (delta == 1), 0.0, variance)


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


def check_weight(name: str, value: Any, closed: str = "[)") -> None:
    """Requires a concrete factor to be finite and not negative, or positive.

    Raises:
        ValueError: it is not, or it is None.
    """
    if value is None:
        raise ValueError(f"{name} must be a number, got None")
    check_interval(name, value, 0.0, closed=closed)


def check_bool(name: str, value: Any) -> None:
    """Requires a static bool.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_updates(updates: PyTree, params: PyTree) -> None:
    """Requires updates in the shapes of the parameters, which nothing may broadcast.

    Raises:
        ValueError: two shapes differ; the message has the path.
    """

    def check(path, p, u):
        if is_array(p) and is_array(u) and jnp.shape(u) != jnp.shape(p):
            where = jax.tree_util.keystr(path)
            raise ValueError(
                f"updates{where} must have the shape {p.shape} of params{where}, got "
                f"{u.shape}"
            )

    jax.tree_util.tree_map_with_path(check, params, updates)


def at_count(value: Any, count: Int[Array, ""]) -> Any:
    """The value of a number or a schedule."""
    return value(count) if callable(value) else value


def matching_curvature(
    given: PyTree, params: PyTree, chosen: PyTree[bool]
) -> PyTree[Float[Array, "..."]]:
    """The given curvature on the selected leaves, checked.

    Where ``params`` has ``optax.MaskedNode`` it may have anything.
    """
    treedef = jax.tree.structure(params)
    try:
        given = jax.tree.map(
            lambda p, c: p if is_masked(p) else c, params, given, is_leaf=is_masked
        )
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
