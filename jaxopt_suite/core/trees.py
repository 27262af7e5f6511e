"""Norms over whole pytrees that neither overflow nor divide by zero."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


def statistics_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that statistics of ``dtype`` values are kept in: at least float32."""
    return jnp.promote_types(dtype, jnp.float32)


def global_norm(tree: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
    r"""Euclidean norm of a whole pytree, scaled so that squares cannot overflow.

    .. math:: \|x\|_2 = s \sqrt{\sum_i (x_i / s)^2}, \quad s = \max_i |x_i|

    A finite entry of 1e30 in float32 gives 1e30 and not inf, and an inf gives inf. The
    norm is at least float32; that of an empty tree is 0, and its gradient at 0 is 0.

    Example:
        >>> global_norm({"w": jnp.array([3e30, 0.0]), "b": jnp.array(4e30)})
        Array(5.e+30, dtype=float32)
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [x.astype(statistics_dtype(x.dtype)) for x in leaves if x.size]
    if not leaves:
        return jnp.zeros([], jnp.float32)
    largest = jax.lax.stop_gradient(
        jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in leaves]))
    )
    usable = (largest > 0) & jnp.isfinite(largest)
    scale = jnp.where(usable, largest, 1.0).astype(largest.dtype)
    total = sum(jnp.sum(jnp.square(x / scale)) for x in leaves)
    is_zero = total == 0
    return jnp.where(is_zero, 0.0, scale * jnp.sqrt(jnp.where(is_zero, 1.0, total)))


def clip_to_norm(
    tree: PyTree[Float[Array, "..."]], max_norm: Float[Array, ""] | float
) -> PyTree[Float[Array, "..."]]:
    r"""Scales a pytree by :math:`\min(1, \lambda / \|x\|_2)`; zero stays zero.

    Example:
        >>> clip_to_norm(jnp.array([3.0, 4.0]), 1.0)
        Array([0.6, 0.8], dtype=float32)
    """
    norm = global_norm(tree)
    max_norm = jnp.asarray(max_norm, norm.dtype)
    clips = norm > max_norm
    scale = jnp.where(clips, max_norm / jnp.where(clips, norm, 1.0), 1.0)
    # A NaN norm compares False: carry it, so that the NaN is seen.
    scale = jnp.where(jnp.isnan(norm), norm, scale)
    return jax.tree.map(lambda x: (x * scale).astype(x.dtype), tree)
