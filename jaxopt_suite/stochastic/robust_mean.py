"""Robust estimators of a mean: median of means and its peers.

Samples are an array, or a pytree whose leaves share one leading sample axis. Means are
taken in at least float32 and results keep the samples' dtype.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import (
    check_floating,
    check_integer,
    check_interval,
    leading_size,
)
from jaxopt_suite.core.trees import clip_to_norm, global_norm, statistics_dtype

# Past this size a sorting network is longer to compile than it is fast to run.
_LARGEST_NETWORK = 64
Samples = PyTree[Float[Array, "B ..."]]


def _sorting_network(size: int) -> list[tuple[int, int]]:
    """Compare-exchange pairs of Batcher's merge exchange, for any size.

    Source: Knuth, The Art of Computer Programming 3, algorithm 5.2.2M.
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max(size - 1, 0).bit_length() >> 1
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(size - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return pairs


def _needed(pairs: list[tuple[int, int]], wires: set[int]) -> list[tuple[int, int]]:
    """The pairs of a network that the given output wires depend on."""
    kept: list[tuple[int, int]] = []
    for low, high in reversed(pairs):
        if low in wires or high in wires:
            kept.append((low, high))
            wires = wires | {low, high}
    return kept[::-1]


def _run_network(
    slices: Sequence[Array], pairs: Sequence[tuple[int, int]]
) -> list[Array]:
    slices = list(slices)
    for low, high in pairs:
        a, b = slices[low], slices[high]
        slices[low], slices[high] = jax.lax.min(a, b), jax.lax.max(a, b)
    return slices


def exact_median(x: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Median along ``axis``: the middle order statistic, or the mean of the middle two.

    Up to 64 slices it is an unrolled network of elementwise minima and maxima, which
    fuses into one pass over memory; past that it is ``jnp.median``. Equal to
    ``jnp.median`` bit for bit on finite input. A NaN in any slice gives NaN in that
    coordinate, and infinities sort as they should.

    Args:
        x: array with at least one entry along ``axis``.
        axis: the axis to remove.

    Raises:
        ValueError: ``axis`` is empty, or ``x`` is not floating.

    Example:
        >>> exact_median(jnp.array([[3.0, 1.0], [jnp.inf, 2.0], [-1.0, 9.0]]))
        Array([3., 2.], dtype=float32)
    """
    check_floating("x", x)
    size = x.shape[axis]
    check_integer(f"the size of x along axis {axis}", size)
    if size > _LARGEST_NETWORK:
        return jnp.median(x, axis=axis)
    low, high = (size - 1) // 2, size // 2
    wires = _run_network(
        jnp.unstack(x, axis=axis), _needed(_sorting_network(size), {low, high})
    )
    if low == high:
        return wires[low]
    return (wires[low] + wires[high]) * jnp.asarray(0.5, x.dtype)


def group_means(samples: Samples, num_groups: int) -> PyTree[Float[Array, "k ..."]]:
    """Means of ``num_groups`` contiguous groups along the leading axis.

    Returns leaves with leading axis ``num_groups`` in at least float32.

    Raises:
        ValueError: ``num_groups`` is not a positive odd integer or does not divide the
            batch; a leaf is not floating; two leaves differ in leading size.

    Example:
        >>> group_means(jnp.array([1.0, 3.0, 5.0, 7.0, 2.0, 2.0]), 3)
        Array([2., 6., 2.], dtype=float32)
    """
    check_integer("num_groups", num_groups, odd=True)
    check_floating("samples", samples)
    batch = leading_size("samples", samples)
    if batch % num_groups or (batch == 0 and jax.tree.leaves(samples)):
        raise ValueError(
            f"the batch size must be a positive multiple of num_groups, "
            f"got batch size {batch} and num_groups {num_groups}"
        )

    def mean(x):
        wide = x.astype(statistics_dtype(x.dtype))
        return wide.reshape(num_groups, -1, *x.shape[1:]).mean(axis=1)

    # reshape(-1) cannot infer a size for leaves without elements.
    return jax.tree.map(
        lambda x: mean(x) if x.size else jnp.zeros((num_groups, *x.shape[1:]), x.dtype),
        samples,
    )


def median_of_means_tree(
    samples: Samples,
    num_groups: int,
    *,
    smoothing: float | Float[Array, ""] = 0.0,
    key: PRNGKeyArray | None = None,
) -> PyTree[Float[Array, "..."]]:
    r"""Coordinate-wise median of group means over a pytree of samples.

    With :math:`n = B / k` and independent :math:`\zeta_j \sim N(0, I)`,

    .. math:: g_i = \mathrm{median}_j \left( \frac1n \sum_{s=jn}^{(j+1)n-1} G_{s,i}
        + \theta \zeta_{j,i} \right)

    Up to :math:`(k-1)/2` groups may be corrupted in any way without moving a coordinate
    out of the range of the others. It stays accurate where the noise has no variance or
    no mean; the price is a bias when the noise is skewed
    (:func:`jaxopt_suite.stochastic.bias_bound`). ``num_groups = 1`` is the mean and
    ``num_groups = B`` the coordinate median.

    Args:
        samples: leaves of shape ``(B, ...)``; groups are contiguous along the axis.
        num_groups: :math:`k`, a positive odd divisor of :math:`B`; static.
        smoothing: :math:`\theta \ge 0`, in units of the samples.
        key: needed iff ``smoothing`` is not 0; folded with the leaf index.

    Returns:
        The samples' structure without the leading axis, in the samples' dtypes.

    Raises:
        ValueError: as :func:`group_means`; ``smoothing`` is negative, or it is given
            without ``key``.

    Example:
        >>> samples = {"w": jnp.array([[1.0], [2.0], [1e9]])}
        >>> median_of_means_tree(samples, 3)
        {'w': Array([2.], dtype=float32)}

    Source: Nemirovsky and Yudin (1983); smoothed form: Puchkin, Gorbunov, Kutuzov,
    Gasnikov (2023), arXiv 2311.04161.
    """
    means = group_means(samples, num_groups)
    medians = median_of_groups(means, smoothing=smoothing, key=key)
    return jax.tree.map(lambda m, x: m.astype(x.dtype), medians, samples)


def median_of_groups(
    means: PyTree[Float[Array, "k ..."]],
    *,
    smoothing: float | Float[Array, ""] = 0.0,
    key: PRNGKeyArray | None = None,
) -> PyTree[Float[Array, "..."]]:
    """Coordinate-wise, optionally smoothed median over the leading axis of a pytree.

    The second half of :func:`median_of_means_tree`, for means that come from elsewhere
    (other devices, earlier steps). Arguments and errors as there.
    """
    check_interval("smoothing", smoothing, 0.0)
    if key is None:
        if not isinstance(smoothing, (int, float)) or smoothing != 0:
            raise ValueError(f"smoothing {smoothing} needs a key, got key=None")
        return jax.tree.map(exact_median, means)
    leaves, treedef = jax.tree.flatten(means)
    medians = [
        exact_median(
            leaf
            + jnp.asarray(smoothing, leaf.dtype)
            * jax.random.normal(jax.random.fold_in(key, index), leaf.shape, leaf.dtype)
        )
        for index, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, medians)


def median_of_means(
    samples: Float[Array, "..."],
    num_groups: int,
    *,
    axis: int = 0,
    smoothing: float | Float[Array, ""] = 0.0,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "..."]:
    """Coordinate-wise median of group means of an array along ``axis``.

    :func:`median_of_means_tree` for one array, along any axis; see there for the
    formula, the arguments and the errors.

    Example:
        >>> median_of_means(jnp.array([[1.0, 3.0, 0.0, 4.0, 1e9, 7.0]]), 3, axis=1)
        Array([2.], dtype=float32)
    """
    moved = jnp.moveaxis(samples, axis, 0)
    return median_of_means_tree(moved, num_groups, smoothing=smoothing, key=key)


def _distances(points: Samples, to: PyTree[Float[Array, "..."]]) -> Float[Array, "k"]:
    """Euclidean distances of stacked pytree vectors to one, without overflow."""
    return jax.vmap(lambda p: global_norm(jax.tree.map(jnp.subtract, p, to)))(points)


def _weighted_sum(weights: Array, x: Array) -> Array:
    weights = weights.astype(x.dtype)
    # An infinite group has weight 0, and 0 * inf would be NaN.
    row = weights.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.tensordot(weights, jnp.where(row == 0, 0.0, x), axes=1)


def geometric_median(
    samples: Samples, num_groups: int, *, num_iters: int = 32, eps: float = 1e-8
) -> PyTree[Float[Array, "..."]]:
    r"""Weiszfeld's iteration for :math:`\arg\min_z \sum_j \|\bar G_j - z\|_2`.

    The norm is over the whole pytree. It starts at the coordinate-wise median of the
    group means and reweights by :math:`1 / \max(\|\bar G_j - z\|, \epsilon)`. From a
    start that is itself a group mean it moves slowly, as Weiszfeld's iteration does.
    Infinite groups get weight 0 as long as the start is finite.

    Args:
        samples: leaves of shape ``(B, ...)``.
        num_groups: positive odd divisor of :math:`B`; static.
        num_iters: number of reweightings; static.
        eps: least distance, in units of the samples.

    Raises:
        ValueError: as :func:`group_means`; ``num_iters`` < 0 or ``eps`` <= 0.

    Example:
        >>> geometric_median(jnp.array([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]]), 3)
        Array([0.9999..., 0.577...], dtype=float32)

    Source: Weiszfeld (1937), Tohoku Mathematical Journal 43.
    """
    check_integer("num_iters", num_iters, 0)
    check_interval("eps", eps, 0.0, closed="()")
    means = group_means(samples, num_groups)

    def reweight(_, centre):
        weights = 1.0 / jnp.maximum(_distances(means, centre), eps)
        weights = weights / jnp.sum(weights)
        return jax.tree.map(lambda x: _weighted_sum(weights, x), means)

    if not jax.tree.leaves(means):
        return samples
    centre = jax.tree.map(exact_median, means)
    centre = jax.lax.fori_loop(0, num_iters, reweight, centre)
    return jax.tree.map(lambda m, x: m.astype(x.dtype), centre, samples)


def medoid(samples: Samples, num_groups: int) -> PyTree[Float[Array, "..."]]:
    r"""The group mean with the least summed distance to the others, first on ties.

    .. math:: \bar G_{j^*}, \quad j^* = \arg\min_j \sum_i \|\bar G_i - \bar G_j\|_2

    Fewer infinite distances come first, so that infinite groups lose while they are
    few. A NaN in any group makes the result NaN.

    Raises:
        ValueError: as :func:`group_means`.

    Example:
        >>> medoid(jnp.array([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]]), 3)
        Array([1., 0.], dtype=float32)

    Source: medoid mini-batch gradients (2026), arXiv 2605.07634.
    """
    means = group_means(samples, num_groups)
    if not jax.tree.leaves(means):
        return samples

    def row(point_and_place):
        point, place = point_and_place
        distances = _distances(means, point).at[place].set(0.0)
        infinite = ~jnp.isfinite(distances)
        return jnp.sum(infinite), jnp.sum(jnp.where(infinite, 0.0, distances))

    # One row of distances at a time: memory stays k, not k^2, copies.
    num_infinite, sums = jax.lax.map(row, (means, jnp.arange(num_groups)))
    # Against an infinite group all sums are infinite: count first, then sum.
    candidates = num_infinite == jnp.min(num_infinite)
    best = jnp.argmin(jnp.where(candidates, sums, jnp.inf))
    has_nan = sum(jnp.isnan(m).any() for m in jax.tree.leaves(means)) > 0
    return jax.tree.map(
        lambda m, x: jnp.where(has_nan, jnp.nan, m[best]).astype(x.dtype),
        means,
        samples,
    )


def sample_mean(samples: Samples) -> PyTree[Float[Array, "..."]]:
    """Mean over the leading axis, taken in at least float32.

    Raises:
        ValueError: a leaf is not floating, or two leaves differ in leading size.
    """
    check_floating("samples", samples)
    batch = leading_size("samples", samples)

    def mean(x):
        wide = x.astype(statistics_dtype(x.dtype))
        if not 0 < batch <= _LARGEST_NETWORK:
            return wide.mean(axis=0).astype(x.dtype)
        # A sum of whole slices is one pass; XLA's reduction over rows is not on CPU.
        return (functools.reduce(jnp.add, jnp.unstack(wide)) / batch).astype(x.dtype)

    return jax.tree.map(mean, samples)


def trimmed_mean(samples: Samples, trim: int) -> PyTree[Float[Array, "..."]]:
    """Per coordinate, the mean without the ``trim`` smallest and largest samples.

    Args:
        samples: leaves of shape ``(B, ...)``.
        trim: number dropped at each end, ``0 <= trim < B / 2``; static.

    Raises:
        ValueError: ``trim`` is out of range, a leaf is not floating, or two leaves
            differ in leading size.

    Example:
        >>> trimmed_mean(jnp.array([1.0, 2.0, 3.0, 1e9]), 1)
        Array(2.5, dtype=float32)
    """
    check_integer("trim", trim, 0)
    check_floating("samples", samples)
    batch = leading_size("samples", samples)
    if jax.tree.leaves(samples) and 2 * trim >= batch:
        raise ValueError(f"trim must be < {batch} / 2, half the batch, got {trim}")

    def mean(x):
        wide = x.astype(statistics_dtype(x.dtype))
        if batch <= _LARGEST_NETWORK:
            wires = _run_network(jnp.unstack(wide), _sorting_network(batch))
            ordered = jnp.stack(wires)
        else:
            ordered = jnp.sort(wide, axis=0)
            # A sort puts NaN last, where trimming would hide it.
            ordered = jnp.where(jnp.isnan(wide).any(axis=0), jnp.nan, ordered)
        return ordered[trim : batch - trim].mean(axis=0).astype(x.dtype)

    return jax.tree.map(mean, samples)


def clip_then_mean(
    samples: Samples, max_norm: float | Float[Array, ""]
) -> PyTree[Float[Array, "..."]]:
    r"""Mean of samples that are clipped one by one to a global norm.

    .. math:: \frac1B \sum_s G_s \min(1, \lambda / \|G_s\|_2)

    Args:
        samples: leaves of shape ``(B, ...)``.
        max_norm: :math:`\lambda > 0`; may be traced.

    Raises:
        ValueError: a concrete ``max_norm`` is not positive, a leaf is not floating, or
            two leaves differ in leading size.

    Example:
        >>> clip_then_mean(jnp.array([[3.0, 4.0], [0.0, 0.0]]), 1.0)
        Array([0.3, 0.4], dtype=float32)
    """
    check_interval("max_norm", max_norm, 0.0, closed="(]")
    check_floating("samples", samples)
    leading_size("samples", samples)
    if not jax.tree.leaves(samples):
        return samples
    wide = jax.tree.map(lambda x: x.astype(statistics_dtype(x.dtype)), samples)
    clipped = jax.vmap(lambda sample: clip_to_norm(sample, max_norm))(wide)
    return jax.tree.map(lambda c, x: c.mean(axis=0).astype(x.dtype), clipped, samples)
