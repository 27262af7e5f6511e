"""Norms over whole pytrees that neither overflow nor divide by zero."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


def statistics_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype that statistics of ``dtype`` values are kept in: at least float32."""
    return jnp.promote_types(dtype, jnp.float32)


def _scaled_norm(
    tree: PyTree[Float[Array, "..."]],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A power of two r, and the norm of r times the tree, which cannot overflow.

    A power of two is exact to multiply by, and its range is kept where 1 / r is neither
    subnormal, which XLA flushes to 0, nor infinite.
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [x.astype(statistics_dtype(x.dtype)) for x in leaves if x.size]
    if not leaves:
        return jnp.ones([], jnp.float32), jnp.zeros([], jnp.float32)
    largest = jax.lax.stop_gradient(
        jnp.max(jnp.stack([jnp.max(jnp.abs(x)) for x in leaves]))
    )
    limits = jnp.finfo(largest.dtype)
    exponent = jnp.frexp(jnp.where(jnp.isfinite(largest), largest, 1.0))[1]
    exponent = jnp.clip(exponent, limits.minexp + 6, limits.maxexp - 3)
    rescale = jnp.ldexp(jnp.ones([], largest.dtype), -exponent)
    total = sum(jnp.sum(jnp.square(x * rescale)) for x in leaves)
    is_zero = total == 0
    norm = jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, total)))
    return rescale, norm


def global_norm(tree: PyTree[Float[Array, "..."]]) -> Float[Array, ""]:
    r"""Euclidean norm of a whole pytree, scaled so that squares cannot overflow.

    .. math:: \|x\|_2 = s \sqrt{\sum_i (x_i / s)^2}, \quad
        s \text{ the power of two next to } \max_i |x_i|

    A finite entry of 1e30 in float32 gives 1e30 and not inf, and an inf gives inf. The
    norm is at least float32; that of an empty tree is 0, and its gradient at 0 is 0.

    Example:
        >>> global_norm({"w": jnp.array([3e30, 0.0]), "b": jnp.array(4e30)})
        Array(5.e+30, dtype=float32)
    """
    rescale, norm = _scaled_norm(tree)
    return norm / rescale


def scale_to_norm(
    tree: PyTree[Float[Array, "..."]], new_norm: Float[Array, ""] | float
) -> PyTree[Float[Array, "..."]]:
    r"""Scales a pytree to a given norm, :math:`\lambda x / \|x\|_2`; zero stays zero.

    Example:
        >>> scale_to_norm(jnp.array([0.0, 3e38]), 2.0)
        Array([0., 2.], dtype=float32)
    """
    rescale, norm = _scaled_norm(tree)
    is_zero = norm == 0
    factor = jnp.asarray(new_norm, norm.dtype) / jnp.where(is_zero, 1.0, norm)
    # Two factors: their product may be too small for the dtype.
    return jax.tree.map(lambda x: ((x * rescale) * factor).astype(x.dtype), tree)


def clip_to_norm(
    tree: PyTree[Float[Array, "..."]], max_norm: Float[Array, ""] | float
) -> PyTree[Float[Array, "..."]]:
    r"""Scales a pytree by :math:`\min(1, \lambda / \|x\|_2)`; zero stays zero.

    Example:
        >>> clip_to_norm(jnp.array([3.0, 4.0]), 1.0)
        Array([0.6, 0.8], dtype=float32)
    """
    rescale, norm = _scaled_norm(tree)
    # Not ">": a NaN norm is no reason to let the other entries through as they are.
    fits = norm <= jnp.asarray(max_norm, norm.dtype) * rescale
    clipped = scale_to_norm(tree, jnp.where(fits, 1.0, max_norm))
    return jax.tree.map(lambda x, c: jnp.where(fits, x, c), tree, clipped)
