"""The primitives of bandit convex optimization: a gradient from one value of the loss.

A point is moved by a radius ``delta`` in a random direction, and the value seen there,
times the direction, estimates the gradient of the loss smoothed over that radius.
Blocks of K rounds share one centre; K and delta are tied so that the noise of a block's
gradient sum is as large as its drift, ``K delta^2 = k_scale (n M / G)^2``.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxopt_suite.core import checks
from jaxopt_suite.core.trees import statistics_dtype

Scalar = float | Float[Array, ""]


def num_coordinates(example: PyTree) -> int:
    """The number of coordinates of a pytree, all leaves together.

    Example:
        >>> num_coordinates({"price": jnp.zeros((2, 3)), "dose": jnp.zeros(())})
        7
    """
    return sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(example))


def scalar_dtype(example: PyTree) -> jnp.dtype:
    """The dtype of values and sums that go with a pytree: at least float32."""
    return statistics_dtype(jnp.result_type(*jax.tree.leaves(example)))


def sphere_sample(key: PRNGKeyArray, example: PyTree[Float[Array, "..."]]) -> PyTree:
    r"""A uniform direction: :math:`z / \|z\|_2` with z normal, over the whole pytree.

    Args:
        key: a typed key; all leaves come from one draw of it.
        example: a pytree of floating arrays, or of their shapes and dtypes.

    Returns:
        A pytree like ``example``, in float32 where that is narrower, of norm 1; a fair
        sign if there is a single coordinate.

    Example:
        >>> example = {"a": jnp.zeros(3), "b": jnp.zeros(())}
        >>> u = sphere_sample(jax.random.key(0), example)
        >>> float(jnp.round(optax.tree.norm(u), 6))
        1.0
    """
    leaves, treedef = jax.tree.flatten(example)
    n = num_coordinates(example)
    # A float draw of jax.random.normal is never exactly 0, so neither is the norm.
    flat = jax.random.normal(key, (n,), scalar_dtype(example))
    flat = flat / jnp.sqrt(jnp.sum(jnp.square(flat)))
    parts, start = [], 0
    for leaf in leaves:
        shape, dtype = jnp.shape(leaf), statistics_dtype(jnp.result_type(leaf))
        size = math.prod(shape)
        parts.append(flat[start : start + size].reshape(shape).astype(dtype))
        start += size
    return jax.tree.unflatten(treedef, parts)


def one_point_gradient(
    value: Scalar, direction: PyTree[Float[Array, "..."]], delta: Scalar, n: int
) -> PyTree[Float[Array, "..."]]:
    r"""The gradient that one value shows: :math:`(n / \delta)\, f(y + \delta u)\, u`.

    With u uniform on the sphere its mean is the gradient at y of the smoothed loss
    :math:`\hat f(y) = \mathbb{E}_v f(y + \delta v)`, v uniform in the ball, whatever f
    is; for a quadratic f that is the gradient of f itself.

    Args:
        value: the loss at ``y + delta * direction``.
        direction: a draw of :func:`sphere_sample`.
        delta: smoothing radius > 0.
        n: number of coordinates.

    Example:
        >>> one_point_gradient(0.5, jnp.array([0.6, -0.8]), 0.1, 2)
        Array([ 6., -8.], dtype=float32)

    Source: Flaxman, Kalai, McMahan, "Online convex optimization in the bandit setting:
    gradient descent without a gradient" (2005), arXiv cs/0408007.
    """
    scale = n / delta * value
    return jax.tree.map(lambda u: jnp.asarray(scale, u.dtype) * u, direction)


def block_length(
    n: int, bound: float, lipschitz: float, delta: float, k_scale: float = 1.0
) -> int:
    r"""Rounds per block: :math:`K = \lceil k_s (n M / (G \delta))^2 \rceil`.

    Args:
        n: number of coordinates.
        bound: M > 0, the largest absolute loss.
        lipschitz: G > 0, the Lipschitz constant of the losses.
        delta: smoothing radius > 0.
        k_scale: :math:`k_s > 0`; at 1 noise and drift of a block are equal.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> block_length(2, 1.0, 1.0, 0.1)
        400
    """
    _check_constants(n, bound, lipschitz, k_scale)
    checks.check_interval("delta", delta, 0.0, closed="()")
    return math.ceil(k_scale * (n * bound / (lipschitz * delta)) ** 2)


def smoothing_radius(
    K: int, n: int, bound: Scalar, lipschitz: Scalar, k_scale: Scalar = 1.0
) -> Scalar:
    r"""The radius that fits a block: :math:`\delta = \sqrt{k_s}\, n M / (G \sqrt K)`.

    Args:
        K: rounds per block.
        n: number of coordinates.
        bound: M > 0; may be traced.
        lipschitz: G > 0; may be traced.
        k_scale: :math:`k_s > 0`; may be traced.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> smoothing_radius(400, 2, 1.0, 1.0)
        0.1
    """
    checks.check_integer("K", K)
    _check_constants(n, bound, lipschitz, k_scale)
    return k_scale**0.5 * n * bound / (lipschitz * K**0.5)


def _check_constants(n: int, bound: Scalar, lipschitz: Scalar, k_scale: Scalar) -> None:
    checks.check_integer("n", n)
    for name, value in (
        ("bound", bound),
        ("lipschitz", lipschitz),
        ("k_scale", k_scale),
    ):
        checks.check_interval(name, value, 0.0, closed="()")
