"""Quantizers: nearest and unbiased random rounding to a scaled grid."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_floating, check_key
from jaxopt_suite.core.trees import statistics_dtype
from jaxopt_suite.quantization.formats import (
    QuantFormat,
    checked_format,
    code_table,
    get_format,
    magnitude_codes,
)
from jaxopt_suite.quantization.granularity import (
    Granularity,
    check_granularity,
    group_max,
    per_tensor,
    spread,
)
from jaxopt_suite.quantization.masks import Mask, map_selected, resolve_mask

_PER_TENSOR = per_tensor()


class Quantizer(NamedTuple):
    r"""Pure functions of a weight array ``w``, made by :func:`make_quantizer`.

    With the scale :math:`s` of a weight's group, :math:`z = w / s` lies between the
    neighbouring grid values :math:`l \le z \le h`, at :math:`\Delta = (z-l)/(h-l)`.

    Attributes:
        format: the grid.
        granularity: which weights share a scale.
        scale: ``scale(w)``, one per group: shape () for a tensor, that of ``w`` with 1
            on the reduced axes for channels, with the number of blocks on the axis for
            blocks; at least float32. Differentiable.
        neighbours: ``neighbours(w) -> (lo, hi, delta)``, in ``w``'s shape, in units of
            the scale. A weight on the grid has ``lo`` there and ``delta`` 0, and at the
            top of the grid ``hi`` there and ``delta`` 1.
        round_nearest: ``round_nearest(w)``, ties to the even code; its gradient is 0.
        round_random: ``round_random(key, w)``: ``hi`` with probability ``delta``, else
            ``lo``, times the scale, independently; its gradient is 0.
        variance: ``variance(w, differentiate_scale=True)``, that of ``round_random``:
            :math:`(w - s l)(s h - w)`; at least float32. Its gradient moves the scale
            unless told not to.
        codes: ``codes(w) -> (codes, scales)`` of ``round_nearest``: int8 for integer
            formats, else uint8.
        dequantize: ``dequantize(codes, scales)``, back to values: NaN for a code that
            stands for none, but integer formats multiply whatever code there is.
    """

    format: QuantFormat
    granularity: Granularity
    scale: Callable[..., Float[Array, "..."]]
    neighbours: Callable[..., tuple[Float[Array, "..."], ...]]
    round_nearest: Callable[..., Float[Array, "..."]]
    round_random: Callable[..., Float[Array, "..."]]
    variance: Callable[..., Float[Array, "..."]]
    codes: Callable[..., tuple[Int[Array, "..."], Float[Array, "..."]]]
    dequantize: Callable[..., Float[Array, "..."]]


def make_quantizer(
    fmt: str | QuantFormat, granularity: Granularity = _PER_TENSOR
) -> Quantizer:
    r"""A quantizer with a scale from the largest weight of each group.

    .. math:: s = \max |w| / q_{max}, \qquad \mathbb{E}\, R(w) = w, \qquad
        \mathrm{Var}\, R(w) = (w - s l)(s h - w)

    for random rounding :math:`R` to the neighbours :math:`s l \le w \le s h`. Nothing
    is clipped, as the largest weight is on the grid. Both roundings leave a rounded
    array as it is, bit for bit, and so its scale: a weight that equals a rounded value
    *is* on the grid, and the end of the grid is exactly the group's largest weight.

    A group whose scale would be below the smallest normal float32 is a zero group: its
    scale is 1, its rounding 0, its variance 0 with gradient 0. A NaN or an infinity
    spoils its group and no other. Arithmetic is at least float32. For bfloat16 the
    rounded values are those of float32 cast to bfloat16: still fixed under rounding,
    and unbiased to half a bfloat16 unit of the weight. With int8 that unit may exceed
    the grid's step, so a smaller format is of more use there. The variance is infinite
    where it exceeds the dtype's range (weights beyond 1e19 in float32); its gradient
    is not.

    Equal arguments give the same object, so a quantizer may be a static argument of
    ``jax.jit``.

    Args:
        fmt: a format, or its name (:func:`get_format`).
        granularity: :func:`per_tensor`, :func:`per_channel` or :func:`per_block`.

    Raises:
        ValueError: unknown format or granularity, or a grid that does not serve; in the
            functions, an array that is not floating, or lacks the granularity's axis.

    Example:
        >>> quantizer = make_quantizer("int4")
        >>> w = jnp.array([7.0, -2.25, 0.5, 1.5])
        >>> quantizer.round_nearest(w)
        Array([ 7., -2.,  0.,  2.], dtype=float32)
        >>> quantizer.variance(w)
        Array([0.    , 0.1875, 0.25  , 0.25  ], dtype=float32)

    Source: Kwun, Morwani, Su, Gil, Anand, Kakade, "LOTION: Smoothing the Optimization
    Landscape for Quantized Training" (2025), arXiv 2510.08757.
    """
    fmt = get_format(fmt) if isinstance(fmt, str) else fmt
    if not isinstance(fmt, QuantFormat):
        raise ValueError(f"fmt must be a format or the name of one, got {fmt!r}")
    check_granularity(granularity)
    return _make(checked_format(fmt), granularity)


def check_quantizer(name: str, quantizer: Any) -> None:
    """Requires what :func:`make_quantizer` makes.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(quantizer, Quantizer):
        raise ValueError(f"{name} must be made by make_quantizer, got {quantizer!r}")


class Measured(NamedTuple):
    """Weights in wide arithmetic, with numbers of their groups to broadcast."""

    w: Float[Array, "..."]
    scale: Float[Array, "..."]
    top: Float[Array, "..."]  # the group's largest |w|; 0 for a zero group


def _groups(
    w: Any, fmt: QuantFormat, granularity: Granularity
) -> tuple[Float[Array, "..."], ...]:
    check_floating("w", w)
    w = jnp.asarray(w)
    wide = w.astype(statistics_dtype(w.dtype))
    largest = group_max(jnp.abs(wide), granularity)
    # A product: XLA makes one of a quotient by a constant, but not everywhere.
    scale = largest * (1.0 / fmt.qmax)
    is_zero = scale < jnp.finfo(jnp.float32).tiny
    return wide, jnp.where(is_zero, 1.0, scale), jnp.where(is_zero, 0.0, largest)


def measure(w: Any, fmt: QuantFormat, granularity: Granularity) -> Measured:
    """Weights with the scale and the largest size of each one's group."""
    wide, *per_group = _groups(w, fmt, granularity)
    return Measured(wide, *(spread(x, wide.shape, granularity) for x in per_group))


def unscaled(
    m: Measured, grid_values: Float[Array, "..."], fmt: QuantFormat, dtype: Any
) -> Float[Array, "..."]:
    """Grid values as weights, rounded to the values of ``dtype`` but kept wide."""
    # scale * qmax may miss the largest weight by a unit in the last place.
    at_end = jnp.abs(grid_values) == fmt.qmax
    values = jnp.where(at_end, jnp.sign(grid_values) * m.top, m.scale * grid_values)
    return values if values.dtype == dtype else _stored(values, dtype)


def _stored(values: Float[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """The nearest values of a narrow dtype, kept wide."""
    # Not a cast there and back, which XLA may drop.
    info = jnp.finfo(dtype)
    normal = jax.lax.reduce_precision(values, info.nexp, info.nmant)
    if info.tiny <= jnp.finfo(values.dtype).tiny:
        return normal
    # reduce_precision makes zeros of what is subnormal.
    unit = float(info.smallest_subnormal)
    subnormal = jnp.round(values * (1.0 / unit)) * unit
    return jnp.where(jnp.abs(values) < float(info.tiny), subnormal, normal)


@functools.cache
def _make(fmt: QuantFormat, granularity: Granularity) -> Quantizer:
    nearest, cell = nearest_of(fmt), _cell_of(fmt)

    def scaled(m):
        # By the plain scale XLA would divide in some programs, and in others multiply
        # by 1 / scale, which may tip a tie.
        z = m.w / jnp.where(m.w == 0, 1.0, m.scale)
        return jnp.where(m.top == 0, 0.0, jnp.clip(z, fmt.grid[0], fmt.grid[-1]))

    def cells(m, dtype):
        z = scaled(m)
        closest = nearest(z)
        on_grid = unscaled(m, closest, fmt, dtype) == m.w
        z = jnp.where(on_grid, closest, z)
        lo, hi = cell(z)
        return lo, hi, (z - lo) / (hi - lo)

    def frozen(w):
        w = jnp.asarray(w)
        return w, jax.lax.stop_gradient(measure(w, fmt, granularity))

    # Compiled even where the caller is not: one pass over the weights, and the same
    # bits as within a larger program.
    @jax.jit
    def scale(w):
        return _groups(w, fmt, granularity)[1]

    @jax.jit
    def neighbours(w):
        w, m = frozen(w)
        return cells(m, w.dtype)

    @jax.jit
    def round_nearest(w):
        w, m = frozen(w)
        return unscaled(m, nearest(scaled(m)), fmt, w.dtype).astype(w.dtype)

    @jax.jit
    def round_random(key, w):
        check_key("key", key)
        w, m = frozen(w)
        lo, hi, delta = cells(m, w.dtype)
        up = jax.random.uniform(key, w.shape, delta.dtype) < delta
        drawn = jnp.where(up, hi, lo)
        return unscaled(m, drawn, fmt, w.dtype).astype(w.dtype)

    @functools.partial(jax.jit, static_argnames="differentiate_scale")
    def variance(w, differentiate_scale=True):
        w = jnp.asarray(w)
        m = measure(w, fmt, granularity)
        lo, hi, delta = cells(jax.lax.stop_gradient(m), w.dtype)
        s = m.scale if differentiate_scale else jax.lax.stop_gradient(m.scale)
        below, above = jnp.maximum(m.w - s * lo, 0.0), jnp.maximum(s * hi - m.w, 0.0)
        # On the grid it has a kink, with least subgradient 0 in the weight and scale.
        return jnp.where((delta == 0) | (delta == 1), 0.0, below * above)

    @jax.jit
    def codes(w):
        _, m = frozen(w)
        return nearest(scaled(m), codes=True), jax.lax.stop_gradient(scale(w))

    @jax.jit
    def dequantize(codes, scales):
        codes, scales = jnp.asarray(codes), jnp.asarray(scales)
        check_floating("scales", scales)
        if not jnp.issubdtype(codes.dtype, jnp.integer):
            raise ValueError(f"codes must have an integer dtype, got {codes.dtype}")
        like = jax.ShapeDtypeStruct(codes.shape, scales.dtype)
        expected = jax.eval_shape(lambda x: group_max(x, granularity), like).shape
        if scales.shape != expected:
            raise ValueError(
                f"scales must have shape {expected} for codes of shape {codes.shape} "
                f"and {granularity}, got {scales.shape}"
            )
        values = decode(fmt, codes).astype(scales.dtype)
        return values * spread(scales, codes.shape, granularity)

    return Quantizer(
        fmt,
        granularity,
        scale,
        neighbours,
        round_nearest,
        round_random,
        variance,
        codes,
        dequantize,
    )


def nearest_of(fmt: QuantFormat) -> Callable[..., Array]:
    """The nearest grid value of z (or its code), ties to the even magnitude code."""
    grid, table = np.asarray(fmt.grid), code_table(fmt)
    middles = (grid[1:] + grid[:-1]) / 2
    tie_goes_up = magnitude_codes(fmt)[1:] % 2 == 0

    def nearest(z, codes=False):
        if fmt.is_integer:
            whole = jnp.round(z)
            return whole.astype(jnp.int8) if codes else whole
        # The first number above which the upper neighbour is taken.
        exact = middles.astype(z.dtype)
        last_down = np.where(tie_goes_up, np.nextafter(exact, -np.inf), exact)
        values = table if codes else grid.astype(z.dtype)
        return _pick(z, last_down.astype(z.dtype), values, jnp.greater)

    return nearest


def _cell_of(fmt: QuantFormat) -> Callable[..., tuple[Array, Array]]:
    """The neighbours lo <= z <= hi; a grid value is its own lo but for the last."""
    grid = np.asarray(fmt.grid)

    def cell(z):
        if fmt.is_integer:
            lo = jnp.minimum(jnp.floor(z), fmt.qmax - 1)
            return lo, lo + 1
        inner, values = grid[1:-1].astype(z.dtype), grid.astype(z.dtype)
        lo = _pick(z, inner, values[:-1], jnp.greater_equal)
        hi = _pick(z, inner, values[1:], jnp.greater_equal)
        return lo, hi

    return cell


def _pick(
    z: Float[Array, "..."],
    thresholds: np.ndarray,
    values: np.ndarray,
    passes: Callable[..., Array],
) -> Array:
    """The entry of ``values`` at the number of ascending thresholds that z passes."""
    if len(values) <= 16:
        # Selects fuse with what surrounds them; gathers do not.
        picked = jnp.full_like(z, values[0], values.dtype)
        for threshold, value in zip(thresholds, values[1:], strict=True):
            picked = jnp.where(passes(z, threshold), value, picked)
        return picked
    num_steps = len(thresholds).bit_length()
    padded = np.full(2**num_steps - 1, np.inf, thresholds.dtype)
    padded[: len(thresholds)] = thresholds
    count: Any = 0
    for step in (2**k for k in reversed(range(num_steps))):
        passed = passes(z, _look_up(padded, count + step - 1))
        count = jnp.where(passed, count + step, count)
    return _look_up(values, count)


def _look_up(table: np.ndarray, index: Any) -> Array:
    """Entries of a table, laid out over devices as their indices are."""
    if isinstance(index, int):
        return jnp.asarray(table[index])
    layout = jax.typeof(index).sharding
    return jnp.asarray(table).at[index].get(out_sharding=layout)


def decode(fmt: QuantFormat, codes: Int[Array, "..."]) -> Array:
    """The grid values of codes.

    Those of an integer format are the codes themselves, within the grid or not; of any
    other format, NaN for a code that stands for no value.
    """
    if fmt.is_integer:
        return codes
    table = np.full(256, np.nan)
    table[code_table(fmt)] = fmt.grid
    return _look_up(table, jnp.asarray(codes))


def quantize_tree(
    quantizer: Quantizer,
    params: PyTree,
    mask: Mask = None,
    key: PRNGKeyArray | None = None,
) -> PyTree:
    """Rounds the selected leaves of a pytree, to nearest or at random.

    Args:
        quantizer: rounds each selected leaf.
        params: any pytree. Other leaves, arrays or not, stay as they are.
        mask: which leaves: None for floating leaves with two axes or more; a pytree of
            bools; or a function of ``params``. See :func:`resolve_mask`.
        key: None rounds to nearest; with a typed key leaf i is rounded at random with
            ``fold_in(key, i)``.

    Raises:
        ValueError: the mask does not fit, or selects a leaf that is not floating or
            lacks the granularity's axis; the message has its path.

    Example:
        >>> params = {"w": jnp.array([[7.0, 2.4]]), "b": jnp.array([0.3, 7.0])}
        >>> quantize_tree(make_quantizer("int4"), params)["w"]
        Array([[7., 2.]], dtype=float32)
    """
    check_quantizer("quantizer", quantizer)
    chosen = resolve_mask(mask, params)
    if key is None:
        return map_selected(quantizer.round_nearest, chosen, params)
    structure = jax.tree.structure(params)
    index = jax.tree.unflatten(structure, range(structure.num_leaves))
    return map_selected(
        lambda leaf, i: quantizer.round_random(jax.random.fold_in(key, i), leaf),
        chosen,
        params,
        index,
    )
