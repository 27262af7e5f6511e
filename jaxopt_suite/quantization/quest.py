"""QuEST-style rounding: a scale fit to Gaussian weights, and a gradient with trust."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxopt_suite.core.checks import check_floating
from jaxopt_suite.quantization.baselines import (
    WeightTransform,
    per_leaf,
    round_to_scale,
    straight_through,
)
from jaxopt_suite.quantization.formats import QuantFormat
from jaxopt_suite.quantization.granularity import spread
from jaxopt_suite.quantization.learned_scale import group_sum
from jaxopt_suite.quantization.masks import Mask
from jaxopt_suite.quantization.penalty import wide
from jaxopt_suite.quantization.rounding import Quantizer, check_quantizer


def walsh_hadamard(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Multiplies an axis by the orthonormal Hadamard matrix, its own inverse.

    It spreads outliers, so that weights look Gaussian. n log n additions, no matrix.

    Args:
        x: any floating array with the axis; its size there is a power of two.
        axis: which; static.

    Raises:
        ValueError: ``x`` is not floating, there is no such axis, or its size is not a
            power of two.

    Example:
        >>> walsh_hadamard(jnp.array([4.0, 0.0, 0.0, 0.0]))
        Array([2., 2., 2., 2.], dtype=float32)
    """
    x = jnp.asarray(x)
    check_floating("x", x)
    _check_axis("axis", axis)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis must be an axis of shape {x.shape}, got {axis}")
    size = x.shape[axis]
    if size < 1 or size & (size - 1):
        raise ValueError(
            f"the size of axis {axis} must be a power of two for a Hadamard rotation, "
            f"got {size} in shape {x.shape}"
        )
    y = jnp.moveaxis(wide(x), axis, -1)
    shape = y.shape
    for level in range(size.bit_length() - 1):
        pairs = y.reshape(*shape[:-1], size >> (level + 1), 2, 1 << level)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        y = jnp.stack([first + second, first - second], axis=-2).reshape(shape)
    return jnp.moveaxis(y / math.sqrt(size), -1, axis).astype(x.dtype)


def _check_axis(name: str, axis: Any) -> None:
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise ValueError(f"{name} must be a static integer, got {axis!r}")


@functools.cache
def gaussian_scale(fmt: QuantFormat) -> float:
    r"""The scale that rounds a standard normal weight to a grid with the least error.

    .. math:: \arg\min_s \int (s\, \mathrm{cast}(x / s) - x)^2 \varphi(x)\, dx

    with weights beyond the range cast to its end. Computed once per format on the host,
    from the closed form of the integral over each cell.

    Example:
        >>> from jaxopt_suite.quantization import int_format
        >>> round(gaussian_scale(int_format(2)), 4)
        1.224
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import ndtr

    grid = np.asarray(fmt.grid)
    ends = np.concatenate([[-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]])

    def error(log_scale):
        # E (x - v)^2 = 1 - 2 E x v + E v^2 for the value v of each cell.
        scale = math.exp(log_scale)
        edges = scale * ends
        mass = np.diff(ndtr(edges))
        first_moment = -np.diff(np.exp(-(edges**2) / 2)) / math.sqrt(2 * math.pi)
        values = scale * grid
        return 1 - 2 * values @ first_moment + values**2 @ mass

    # The error may have several valleys where a grid is not uniform: scan, then refine.
    # Beyond the last scale all but the far tail is cast to 0, where 0 is on the grid.
    smallest = np.min(np.abs(grid[grid != 0]))
    logs = np.arange(math.log(1 / fmt.qmax), math.log(8 / smallest), 0.01)
    errors = np.array([error(x) for x in logs])
    padded = np.concatenate([[np.inf], errors, [np.inf]])
    valleys = np.flatnonzero((errors <= padded[:-2]) & (errors <= padded[2:]))
    found: list[Any] = [
        minimize_scalar(
            error,
            bounds=(logs[max(i - 1, 0)], logs[min(i + 1, len(logs) - 1)]),
            options={"xatol": 1e-9},
        )
        for i in valleys
    ]
    return math.exp(min(found, key=lambda result: result.fun).x)


def quest(
    quantizer: Quantizer, mask: Mask = None, *, hadamard_axis: int | None = None
) -> WeightTransform:
    r"""Rounding at the Gaussian-optimal scale, with a gradient where it is trusted.

    .. math:: q = s\, \mathrm{cast}(\mathrm{clip}(w / s)), \quad s = \alpha\,
        \mathrm{rms}(w), \quad \partial q / \partial w = [\,|q - w| \le s / 2\,]

    with :math:`\alpha` of :func:`gaussian_scale` and the root mean square of each
    group, held constant. Weights far out of the range get no gradient. It deploys these
    values, not those of the quantizer's own scale.

    Args:
        quantizer: its format and groups.
        mask: which leaves are quantized, as in :func:`quantize_tree`.
        hadamard_axis: the input axis of every quantized leaf, rotated by
            :func:`walsh_hadamard` before rounding and back after it (-2 for Flax
            kernels, -1 for Equinox weights); None rotates nothing. Deployed weights are
            on the grid in the rotated basis.

    Raises:
        ValueError: ``hadamard_axis`` is not a static integer; a quantized leaf lacks
            it, or its size there is not a power of two.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = quest(make_quantizer("int2"))
        >>> w = jnp.array([[1.0, -1.0, 1.0, 0.2, 3.0]])
        >>> values, pull_back = jax.vjp(lambda w: method.apply((), None, w), w)
        >>> pull_back(jnp.ones((1, 5)))[0]  # the scale is 1.93
        Array([[1., 1., 1., 1., 0.]], dtype=float32)

    Source: Panferov, Chen, Tabesh, Castro, Nikdan, Alistarh, "QuEST: Stable Training of
    LLMs with 1-Bit Weights and Activations" (2025), arXiv 2502.05003.
    """
    check_quantizer("quantizer", quantizer)
    if hadamard_axis is not None:
        _check_axis("hadamard_axis", hadamard_axis)
    granularity = quantizer.granularity

    def scale_of(w):
        # In units of the group's size, whose square may leave the range of the dtype.
        unit = quantizer.scale(w)
        z = wide(w) / spread(unit, w.shape, granularity)
        count = jnp.maximum(group_sum(jnp.ones_like(z), quantizer), 1)
        rms = jnp.sqrt(group_sum(z**2, quantizer) / count)
        scale = gaussian_scale(quantizer.format) * rms * unit
        return jnp.where(scale < jnp.finfo(jnp.float32).tiny, 1.0, scale)

    def rounded(w):
        w = jax.lax.stop_gradient(w)
        scale = scale_of(w)
        value, _ = round_to_scale(quantizer, w, scale)
        return value, jnp.abs(wide(value) - wide(w)) <= spread(
            scale, w.shape, granularity
        ) / 2

    def rotate(w):
        return w if hadamard_axis is None else walsh_hadamard(w, hadamard_axis)

    def forward(key, w):
        del key
        w = rotate(w)
        value, trusted = rounded(w)
        w = jnp.where(trusted, w, jax.lax.stop_gradient(w))
        return rotate(straight_through(value, w))

    def deploy(w):
        return rotate(rounded(rotate(w))[0])

    return per_leaf(forward, mask, deploy)
