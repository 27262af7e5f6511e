"""Convex sets that a point can be projected on, also when they are shrunk.

Shrunk by s always means toward the centre c: ``c + s (X - c)``. A learner that explores
by ``delta`` keeps its centre in X shrunk by ``1 - delta / r``, r the inner radius; then
whatever it plays lies in X.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax.projections
from jaxtyping import Array, Float, PyTree

from jaxopt_suite.bandits.bco_primitives import Scalar, num_coordinates
from jaxopt_suite.core import checks
from jaxopt_suite.core.trees import global_norm, statistics_dtype

# A set shrunk to its centre alone: dividing by its size would be dividing by 0.
_LEAST_SHRINK = 1e-9


class ConvexSet(NamedTuple):
    """A convex set X with ``c + r Ball`` inside X inside ``c + D Ball``.

    Attributes:
        project: ``project(y, shrink) -> y``: the nearest point of X shrunk by
            ``shrink`` in [0, 1]; keeps structure and dtypes of the pytree ``y``.
        centre: c, a pytree like the points, or one number for all coordinates.
        inner_radius: r.
        radius: D.
    """

    project: Callable[[PyTree, Scalar], PyTree]
    centre: PyTree | float
    inner_radius: Scalar
    radius: Scalar


def l2_ball(radius: Scalar) -> ConvexSet:
    r"""The ball :math:`\|x\|_2 \le D` over a whole pytree; r = D.

    Args:
        radius: D > 0; may be traced.

    Raises:
        ValueError: ``radius`` is not positive and finite.

    Example:
        >>> l2_ball(2.0).project(jnp.array([3.0, 4.0]), 0.5)
        Array([0.6, 0.8], dtype=float32)
    """
    checks.check_interval("radius", radius, 0.0, closed="()")

    def project(y, shrink):
        scale = radius * jnp.maximum(shrink, _LEAST_SHRINK)
        return _like(y, optax.projections.projection_l2_ball(y, scale))

    return ConvexSet(project, 0.0, radius, radius)


def box(half_widths: PyTree) -> ConvexSet:
    r"""The box :math:`|x_i| \le h_i`; :math:`r = \min_i h_i`, :math:`D = \|h\|_2`.

    Args:
        half_widths: h > 0, a pytree of the shapes of the points; may be traced.

    Raises:
        ValueError: a half width is not positive and finite, there are none, or, at
            trace time, a point has other shapes.

    Example:
        >>> box(jnp.array([1.0, 2.0])).project(jnp.array([3.0, -0.5]), 0.5)
        Array([ 0.5, -0.5], dtype=float32)
    """
    leaves = jax.tree.leaves(half_widths)
    if not leaves:
        raise ValueError("half_widths must have a leaf, got an empty pytree")
    for leaf in leaves:
        checks.check_interval("half_widths", leaf, 0.0, closed="()")

    def project(y, shrink):
        _check_shapes(y, half_widths)
        upper = jax.tree.map(lambda h: shrink * jnp.asarray(h), half_widths)
        lower = jax.tree.map(jnp.negative, upper)
        return _like(y, optax.projections.projection_box(y, lower, upper))

    if all(map(checks.is_concrete, leaves)):
        flat = np.concatenate([np.ravel(np.asarray(h, np.float64)) for h in leaves])
        return ConvexSet(project, 0.0, float(flat.min()), float(np.linalg.norm(flat)))
    least = jnp.min(jnp.stack([jnp.min(jnp.asarray(h)) for h in leaves]))
    return ConvexSet(project, 0.0, least, global_norm(half_widths))


def simplex(n: int) -> ConvexSet:
    r"""The corner :math:`x \ge 0, \sum_i x_i \le 1` of n coordinates of all leaves.

    Its centre is :math:`c_i = 1 / (n + 1)`, with :math:`r = 1 / ((n + 1) \sqrt n)` and
    :math:`D = \sqrt{n^2 + n - 1} / (n + 1)`. The share that is left over,
    :math:`1 - \sum_i x_i`, makes it the probability simplex of n + 1 shares.

    Args:
        n: number of coordinates of a point.

    Raises:
        ValueError: ``n`` is below 1, or, at trace time, a point has another number of
            coordinates.

    Example:
        >>> simplex(2).project(jnp.array([2.0, -1.0]), 1.0)
        Array([1., 0.], dtype=float32)
    """
    checks.check_integer("n", n)
    centre = 1 / (n + 1)

    def project(y, shrink):
        size = num_coordinates(y)
        if size != n:
            raise ValueError(f"n of the simplex must be {size}, the point's, got {n}")
        # c + s (X - c) is the corner of size s whose tip is (1 - s) c.
        size = jnp.maximum(shrink, _LEAST_SHRINK)
        tip = (1 - size) * centre
        offset = jax.tree.map(lambda x: x - tip, y)
        inside = optax.projections.projection_non_negative(offset)
        on_face = optax.projections.projection_simplex(offset, size)
        fits = optax.tree.sum(inside) <= size
        return _like(
            y, jax.tree.map(lambda a, b: tip + jnp.where(fits, a, b), inside, on_face)
        )

    outer = (n**2 + n - 1) ** 0.5 / (n + 1)
    return ConvexSet(project, centre, centre / n**0.5, outer)


def centre_like(domain: ConvexSet, example: PyTree) -> PyTree[Float[Array, "..."]]:
    """The centre of a set as a pytree like ``example``, at least in float32.

    Raises:
        ValueError: the centre is a pytree of another structure or other shapes.

    Example:
        >>> centre_like(simplex(3), {"shares": jnp.zeros(3)})
        {'shares': Array([0.25, 0.25, 0.25], dtype=float32)}
    """
    centre = domain.centre
    if isinstance(centre, (int, float)):
        value = centre
        centre = jax.tree.map(lambda x: jnp.full(jnp.shape(x), value), example)
    return as_point("domain.centre", centre, example)


def as_point(name: str, point: PyTree, example: PyTree) -> PyTree[Float[Array, "..."]]:
    """``point`` in the dtypes of ``example``, or in float32 where those are narrower.

    Raises:
        ValueError: the two have not the same structure and shapes.
    """
    wanted, got = (jax.tree.map(jnp.shape, tree) for tree in (example, point))
    if wanted != got:
        raise ValueError(f"{name} must have the shapes {wanted}, got {got}")
    return jax.tree.map(
        lambda p, x: jnp.asarray(p, statistics_dtype(jnp.result_type(x))),
        point,
        example,
    )


def radii(domain: ConvexSet) -> dict[str, Any]:
    """The arguments ``radius`` and ``inner_radius`` of a schedule for ``domain``.

    Example:
        >>> radii(box(jnp.array([3.0, 4.0])))
        {'radius': 5.0, 'inner_radius': 3.0}
    """
    return {"radius": domain.radius, "inner_radius": domain.inner_radius}


def _check_shapes(y: PyTree, half_widths: PyTree) -> None:
    wanted, got = (jax.tree.map(jnp.shape, tree) for tree in (y, half_widths))
    if wanted != got:
        raise ValueError(f"half_widths must have the shapes {wanted}, got {got}")


def _like(y: PyTree, projected: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: b.astype(jnp.result_type(a)), y, projected)
