"""Which weights share a scale, and arithmetic on such groups."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxopt_suite.core.checks import check_integer


class Granularity(NamedTuple):
    """Which weights of an array share a scale; hashable.

    Attributes:
        kind: ``"tensor"``, ``"channel"`` or ``"block"``.
        axis: the axis that is kept (channel) or cut into blocks (block).
        size: weights in a block; the last block of an axis may be shorter.
    """

    kind: str
    axis: int = -1
    size: int = 0


def per_tensor() -> Granularity:
    """One scale for the whole array.

    Example:
        >>> per_tensor().kind
        'tensor'
    """
    return Granularity("tensor")


def per_channel(axis: int) -> Granularity:
    """One scale for each index of ``axis``.

    Args:
        axis: the axis that keeps its size; may count from the end.

    Raises:
        ValueError: ``axis`` is not a static integer; where it is used, the array has no
            such axis.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> make_quantizer("int4", per_channel(0)).scale(jnp.ones((3, 5))).shape
        (3, 1)
    """
    _check_axis(axis)
    return Granularity("channel", int(axis))


def per_block(size: int, axis: int = -1) -> Granularity:
    """One scale for every ``size`` neighbours along ``axis``.

    Args:
        size: weights in a block; static. The last block may be shorter.
        axis: the axis that is cut; may count from the end.

    Raises:
        ValueError: ``size`` is not a static integer >= 1, or ``axis`` none at all;
            where it is used, the array has no such axis.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> make_quantizer("int4", per_block(32)).scale(jnp.ones((3, 70))).shape
        (3, 3)
    """
    check_integer("size", size)
    _check_axis(axis)
    return Granularity("block", int(axis), int(size))


def _check_axis(axis: int) -> None:
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise ValueError(f"axis must be a static integer, got {axis}")


def check_granularity(granularity: Granularity) -> None:
    """Requires what one of the three makers makes.

    Raises:
        ValueError: it is something else.
    """
    kinds = ("tensor", "channel", "block")
    if not isinstance(granularity, Granularity) or granularity.kind not in kinds:
        raise ValueError(
            "granularity must be per_tensor(), per_channel(axis) or "
            f"per_block(size, axis), got {granularity!r}"
        )
    _check_axis(granularity.axis)
    if granularity.kind == "block":
        check_integer("size", granularity.size)


def _axis(shape: tuple[int, ...], granularity: Granularity) -> int:
    axis = granularity.axis
    if not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"axis of per_{granularity.kind} must be an axis of the array, got {axis} "
            f"for an array of shape {shape}: leave it out of the mask, or use "
            "per_tensor()"
        )
    return axis % len(shape)


def group_max(x: Float[Array, "..."], granularity: Granularity) -> Float[Array, "..."]:
    """The largest entry >= 0 of each group; 0 for an empty one.

    Its shape is () for a tensor, that of ``x`` with 1 on the reduced axes for channels,
    and with the number of blocks on the axis for blocks.
    """
    if granularity.kind == "tensor":
        return _largest(x) if x.size else jnp.zeros([], x.dtype)
    axis = _axis(x.shape, granularity)
    if granularity.kind == "channel":
        others = tuple(i for i in range(x.ndim) if i != axis)
        shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
        reduced = lambda x: _largest(x, others, keepdims=True)  # noqa: E731
    else:
        size = granularity.size
        num_blocks = -(-x.shape[axis] // size)
        shape = (*x.shape[:axis], num_blocks, *x.shape[axis + 1 :])
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, num_blocks * size - x.shape[axis])
        x = jnp.pad(x, padding) if padding[axis][1] else x
        x = x.reshape(*shape[: axis + 1], size, *shape[axis + 1 :])
        reduced = lambda x: _largest(x, axis + 1)  # noqa: E731
    return reduced(x) if x.size else jnp.zeros(shape, x.dtype)


def _largest(
    x: Float[Array, "..."],
    axes: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    # Over the leading axes of larger arrays, XLA's maximum on CPU drops NaN.
    lost = jnp.any(jnp.isnan(x), axes, keepdims=keepdims)
    return jnp.where(lost, jnp.nan, jnp.max(x, axes, keepdims=keepdims))


def spread(
    per_group: Float[Array, "..."], shape: tuple[int, ...], granularity: Granularity
) -> Float[Array, "..."]:
    """One number per group, laid out to broadcast against an array of ``shape``."""
    if granularity.kind != "block":
        return per_group
    axis = _axis(shape, granularity)
    # Broadcast and reshape: unlike a gather, XLA fuses them into what reads them.
    repeated = jnp.broadcast_to(
        jnp.expand_dims(per_group, axis + 1),
        (*per_group.shape[: axis + 1], granularity.size, *per_group.shape[axis + 1 :]),
    )
    length = per_group.shape[axis] * granularity.size
    repeated = repeated.reshape(*shape[:axis], length, *shape[axis + 1 :])
    return jax.lax.slice_in_dim(repeated, 0, shape[axis], axis=axis)
