"""Typed PRNG keys as leaves among others: telling them apart, and zeros for buffers."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


def is_key_array(leaf: Any) -> bool:
    """Whether ``leaf`` is an array of typed PRNG keys, concrete or abstract."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def zeros(like: PyTree, leading: tuple[int, ...] = ()) -> PyTree[Array]:
    """Zeros with the shapes (after ``leading``) and dtypes of an abstract tree.

    Typed keys get all-zero key data.

    Example:
        >>> zeros(jax.ShapeDtypeStruct((2,), jnp.int32), (3,)).shape
        (3, 2)
    """

    def one(leaf):
        if not is_key_array(leaf):
            return jnp.zeros(leading + leaf.shape, leaf.dtype)
        data = jax.eval_shape(jax.random.key_data, leaf)
        return jax.random.wrap_key_data(
            jnp.zeros(leading + data.shape, data.dtype), impl=jax.random.key_impl(leaf)
        )

    return jax.tree.map(one, like)
