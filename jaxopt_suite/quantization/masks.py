"""Which leaves of a pytree of parameters are quantized."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

Mask = PyTree[bool] | Callable[[PyTree], PyTree[bool]] | None


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, or stands for one."""
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def default_mask(params: PyTree) -> PyTree[bool]:
    """Selects floating leaves with two axes or more: matrices, kernels, embeddings.

    Vectors (biases, gains of a norm) stay in full precision, as is usual.

    Example:
        >>> default_mask({"w": jnp.ones((2, 3)), "b": jnp.ones(3)})
        {'b': False, 'w': True}
    """

    def select(leaf):
        floating = is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return bool(floating and len(leaf.shape) >= 2)

    return jax.tree.map(select, params)


def where_path(predicate: Callable[[str], bool]) -> Callable[[PyTree], PyTree[bool]]:
    """A mask that selects leaves by their path, such as ``"layers/0/weight"``.

    The names are those of dict keys, of fields (Equinox, Flax) and of positions, joined
    by slashes. Leaves that are no arrays (an activation function) are never selected.

    Args:
        predicate: path -> whether the leaf is quantized.

    Returns:
        A function of the parameters, for any ``mask`` argument.

    Example:
        >>> mask = where_path(lambda path: path.endswith("kernel"))
        >>> mask({"dense": {"bias": jnp.ones(3), "kernel": jnp.ones((2, 3))}})
        {'dense': {'bias': False, 'kernel': True}}
    """

    def mask(params):
        def select(path, leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return is_array(leaf) and bool(predicate(name))

        return jax.tree_util.tree_map_with_path(select, params)

    return mask


def resolve_mask(mask: Mask, params: PyTree) -> PyTree[bool]:
    """A Python bool for each leaf of ``params``, whatever form the mask has.

    Args:
        mask: None for :func:`default_mask`; a function of ``params``; or a pytree of
            bools, where one bool may stand for a whole subtree.
        params: any pytree. Leaves that are no arrays are never selected.

    Raises:
        ValueError: the mask does not fit ``params``, one of its leaves is not a static
            bool, or it selects an array that is not floating; the message has the path.

    Example:
        >>> resolve_mask({"a": True, "b": False}, {"a": [1.0 * jnp.ones(2)], "b": 1})
        {'a': [True], 'b': False}
    """
    if mask is None:
        mask = default_mask
    # An Equinox model of bools may be callable and is still a tree.
    if callable(mask) and not _is_tree_of_bools(mask):
        mask = mask(params)
    try:
        chosen = jax.tree.broadcast(mask, params)
    except ValueError as error:
        raise ValueError(
            "mask must be a pytree of bools with the structure of params, or with a "
            f"bool in place of a subtree: {error}"
        ) from None
    return jax.tree_util.tree_map_with_path(_checked, chosen, params)


def _is_tree_of_bools(mask: Any) -> bool:
    leaves = jax.tree.leaves(mask)
    return bool(leaves) and all(isinstance(x, (bool, np.bool_)) for x in leaves)


def _checked(path: Any, selected: Any, leaf: Any) -> bool:
    where = jax.tree_util.keystr(path)
    if not isinstance(selected, (bool, np.bool_)):
        raise ValueError(f"mask{where} must be a static bool, got {selected!r}")
    if not selected or not is_array(leaf):
        return False
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise ValueError(
            f"params{where} is selected by the mask and must have a floating dtype, "
            f"got {leaf.dtype}: leave it out of the mask"
        )
    return True


def map_selected(
    fn: Callable[..., Array], chosen: PyTree[bool], params: PyTree, *rest: PyTree
) -> PyTree:
    """Applies ``fn`` to the leaves a resolved mask selects; others stay as they are.

    Raises:
        ValueError: ``fn`` refuses a leaf; the message has its path.
    """

    def apply(path, selected, leaf, *others):
        return at_path(path, fn, leaf, *others) if selected else leaf

    return jax.tree_util.tree_map_with_path(apply, chosen, params, *rest)


def at_path(path: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """``fn(*args)``, where what it refuses is said with the leaf's path."""
    try:
        return fn(*args)
    except ValueError as error:
        where = f"params{jax.tree_util.keystr(path)}"
        raise ValueError(f"{where} cannot be quantized: {error}") from error
