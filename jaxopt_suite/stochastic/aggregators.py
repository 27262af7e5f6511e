"""Robust means as Optax aggregators: per-example gradients in, one update out.

Each is an ``optax.experimental.aggregating.Aggregator``: its ``update`` takes updates
with a leading sample axis and returns updates of the parameters' shape. So it is the
first link of an ``optax.chain``, or the middle of ``aggregating.process``::

    optimizer = optax.chain(aggregate_median_of_means(15), optax.adam(1e-3))
    grads = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
    updates, state = optimizer.update(grads, state, params)
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from optax.experimental import aggregating

from jaxopt_suite.core.checks import (
    check_floating,
    check_integer,
    check_interval,
    leading_size,
)
from jaxopt_suite.core.trees import statistics_dtype
from jaxopt_suite.stochastic import robust_mean

AxisName = Hashable | tuple[Hashable, ...]


class MedianOfMeansState(NamedTuple):
    """State of :func:`aggregate_median_of_means`.

    Attributes:
        key: for the smoothing noise, split once per update; None without smoothing.
        count: number of updates so far.
    """

    key: PRNGKeyArray | None
    count: Int[Array, ""]


class AggregateState(NamedTuple):
    """State of the aggregators that draw nothing: the number of updates so far."""

    count: Int[Array, ""]


def as_aggregator(
    transformation: optax.GradientTransformation,
) -> aggregating.Aggregator:
    """Marks a chain whose first link reduces a sample axis as an Aggregator."""
    supported = optax.with_extra_args_support(transformation)
    return aggregating.Aggregator(supported.init, supported.update)


def aggregate_median_of_means(
    num_groups: int,
    *,
    smoothing: float | Float[Array, ""] = 0.0,
    key: PRNGKeyArray | None = None,
    axis_name: AxisName | None = None,
) -> aggregating.Aggregator:
    r"""Reduces per-example gradients by the coordinate-wise median of group means.

    .. math:: g_i = \mathrm{median}_j \frac1n \sum_{s=jn}^{(j+1)n-1} G_{s,i},
        \quad n = B / k

    Over devices (``axis_name`` inside ``shard_map`` or ``pmap``) the leading axis holds
    this device's samples, and the batch is all devices' samples in axis order. If the
    axis size divides ``num_groups``, every device reduces its own groups and the means
    are gathered: equal to one device bit for bit. Otherwise groups straddle devices,
    group sums are added with one ``psum``, and the result is equal to rounding. Either
    way it is the same on all devices, and replicated for ``shard_map``.

    Args:
        num_groups: :math:`k`, a positive odd divisor of the batch size; static.
        smoothing: :math:`\theta \ge 0`, the standard deviation of normal noise added to
            group means before the median; may be traced.
        key: typed key, needed iff ``smoothing`` is not 0.
        axis_name: name (or names) of the mapped device axis.

    Returns:
        An Aggregator with a :class:`MedianOfMeansState`.

    Raises:
        ValueError: ``num_groups`` is not a positive odd integer or does not divide the
            batch; ``smoothing`` is negative or comes without ``key``; a leaf is not
            floating; two leaves differ in leading size.

    Example:
        >>> optimizer = optax.chain(aggregate_median_of_means(3), optax.sgd(0.1))
        >>> params = jnp.zeros(2)
        >>> per_example = jnp.array([[1.0, 2.0], [1.2, 1.8], [1e9, -1e9]])
        >>> updates, state = optimizer.update(per_example, optimizer.init(params))
        >>> updates
        Array([-0.12      , -0.17999999], dtype=float32)

    Source: as :func:`jaxopt_suite.stochastic.median_of_means_tree`.
    """
    check_integer("num_groups", num_groups, odd=True)
    check_interval("smoothing", smoothing, 0.0)
    smooths = not isinstance(smoothing, (int, float)) or smoothing != 0
    if smooths and key is None:
        raise ValueError(f"smoothing {smoothing} needs a key, got key=None")

    def init(params) -> Any:
        del params
        # A copy: a caller may donate the state, and the factory keeps its key.
        own_key = jax.random.clone(key) if smooths and key is not None else None
        return MedianOfMeansState(own_key, jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args) -> Any:
        del params, extra_args
        if axis_name is None:
            means = robust_mean.group_means(updates, num_groups)
        else:
            means = _device_group_means(updates, num_groups, axis_name)
        next_key, noise_key = state.key, None
        if smooths:
            next_key, noise_key = jax.random.split(state.key)
        medians = robust_mean.median_of_groups(
            means, smoothing=smoothing if smooths else 0.0, key=noise_key
        )
        medians = jax.tree.map(lambda m, u: m.astype(u.dtype), medians, updates)
        return medians, MedianOfMeansState(next_key, _next(state.count))

    return aggregating.Aggregator(init, update)


def _next(count: Int[Array, ""]) -> Int[Array, ""]:
    return jnp.asarray(optax.safe_increment(count))


def _device_group_means(updates, num_groups: int, axis_name: AxisName):
    """Means of all groups from each device's samples, the same on every device."""
    if not jax.tree.leaves(updates):
        return updates
    check_floating("updates", updates)
    local = leading_size("updates", updates)
    devices = jax.lax.axis_size(axis_name)
    if (devices * local) % num_groups or not devices * local:
        raise ValueError(
            f"num_groups must divide the batch over all devices, got num_groups "
            f"{num_groups} for {devices} devices with {local} samples each"
        )
    group_size = devices * local // num_groups
    if num_groups % devices == 0:
        per_device = num_groups // devices

        def gather(x):
            wide = x.astype(statistics_dtype(x.dtype))
            own = wide.reshape(per_device, group_size, *x.shape[1:]).mean(axis=1)
            return jax.lax.all_gather(own, axis_name, tiled=True, to="invarying")

        return jax.tree.map(gather, updates)
    first = jax.lax.axis_index(axis_name) * local
    rows = (first + jnp.arange(local)) // group_size

    def scatter(x):
        wide = x.astype(statistics_dtype(x.dtype))
        sums = jnp.zeros((num_groups, *x.shape[1:]), wide.dtype).at[rows].add(wide)
        return jax.lax.psum(sums, axis_name) / group_size

    return jax.tree.map(scatter, updates)


def _aggregate(reduce: Callable[[PyTree], PyTree]) -> aggregating.Aggregator:
    """Lifts a reduction of samples to an Aggregator that counts its updates."""

    def init(params):
        del params
        return AggregateState(jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        return reduce(updates), AggregateState(_next(state.count))

    return aggregating.Aggregator(init, update)


def aggregate_mean() -> aggregating.Aggregator:
    """Reduces per-example gradients by their mean, in at least float32.

    Raises:
        ValueError: a leaf is not floating, or two leaves differ in leading size.

    Example:
        >>> aggregator = aggregate_mean()
        >>> aggregator.update(jnp.array([1.0, 3.0]), aggregator.init(0.0))[0]
        Array(2., dtype=float32)
    """
    return _aggregate(robust_mean.sample_mean)


def aggregate_geometric_median(
    num_groups: int, *, num_iters: int = 32, eps: float = 1e-8
) -> aggregating.Aggregator:
    """Reduces per-example gradients by their geometric median.

    Arguments, errors and source as :func:`~jaxopt_suite.stochastic.geometric_median`.

    Example:
        >>> aggregator = aggregate_geometric_median(3)
        >>> grads = jnp.array([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]])
        >>> aggregator.update(grads, aggregator.init(jnp.zeros(2)))[0]
        Array([0., 2.], dtype=float32)
    """
    check_integer("num_groups", num_groups, odd=True)
    check_integer("num_iters", num_iters, 0)
    check_interval("eps", eps, 0.0, closed="()")
    return _aggregate(
        lambda samples: robust_mean.geometric_median(
            samples, num_groups, num_iters=num_iters, eps=eps
        )
    )


def aggregate_medoid(num_groups: int) -> aggregating.Aggregator:
    """Reduces per-example gradients by :func:`~jaxopt_suite.stochastic.medoid`.

    Arguments, errors and source as there.

    Example:
        >>> aggregator = aggregate_medoid(3)
        >>> grads = jnp.array([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]])
        >>> aggregator.update(grads, aggregator.init(jnp.zeros(2)))[0]
        Array([0., 2.], dtype=float32)
    """
    check_integer("num_groups", num_groups, odd=True)
    return _aggregate(lambda samples: robust_mean.medoid(samples, num_groups))


def aggregate_trimmed_mean(trim: int) -> aggregating.Aggregator:
    """Reduces per-example gradients by :func:`~jaxopt_suite.stochastic.trimmed_mean`.

    Arguments and errors as there.

    Example:
        >>> aggregator = aggregate_trimmed_mean(1)
        >>> grads = jnp.array([1.0, 2.0, 3.0, 1e9])
        >>> aggregator.update(grads, aggregator.init(0.0))[0]
        Array(2.5, dtype=float32)
    """
    check_integer("trim", trim, 0)
    return _aggregate(lambda samples: robust_mean.trimmed_mean(samples, trim))


def aggregate_clip_then_mean(
    max_norm: float | Float[Array, ""],
) -> aggregating.Aggregator:
    """Reduces per-example gradients by :func:`~jaxopt_suite.stochastic.clip_then_mean`.

    Arguments and errors as there; ``max_norm`` may be traced.

    Example:
        >>> aggregator = aggregate_clip_then_mean(1.0)
        >>> grads = jnp.array([[3.0, 4.0], [0.0, 0.0]])
        >>> aggregator.update(grads, aggregator.init(jnp.zeros(2)))[0]
        Array([0.3, 0.4], dtype=float32)
    """
    check_interval("max_norm", max_norm, 0.0, closed="(]")
    return _aggregate(lambda samples: robust_mean.clip_then_mean(samples, max_norm))


class AdaptiveMedianOfMeansState(NamedTuple):
    """State of :func:`adaptive_median_of_means`.

    Attributes:
        count: number of updates so far.
        group_size: the group size that the last update used; 0 before the first.
    """

    count: Int[Array, ""]
    group_size: Int[Array, ""]


def adaptive_median_of_means(
    group_size: Callable[[Int[Array, ""]], Int[Array, ""] | int],
) -> aggregating.Aggregator:
    """Median of means whose group size follows a schedule of the update count.

    Early on, many small groups resist the tails; later, larger groups shrink the bias
    that skewed noise leaves. Shapes stay static: groups are summed into as many rows as
    there are samples, and unused rows are filled half with -inf and half with inf. One
    compile serves every group size.

    Args:
        group_size: ``count -> n``. A batch of :math:`B` allows the divisors
            :math:`n` with :math:`B / n` odd; another value takes the largest allowed
            one that does not exceed it (or the smallest allowed one).

    Returns:
        An Aggregator with an :class:`AdaptiveMedianOfMeansState`.

    Raises:
        ValueError: ``group_size`` is not callable; a leaf is not floating; two leaves
            differ in leading size; the batch is empty.

    Example:
        >>> aggregator = adaptive_median_of_means(lambda count: 1 + 2 * (count > 0))
        >>> state = aggregator.init(0.0)
        >>> grads = jnp.array([1.0, 2.0, 9.0])
        >>> first, state = aggregator.update(grads, state)
        >>> second, state = aggregator.update(grads, state)
        >>> first, second
        (Array(2., dtype=float32), Array(4., dtype=float32))
    """
    if not callable(group_size):
        raise ValueError(f"group_size must be a schedule count -> n, got {group_size}")

    def init(params):
        del params
        return AdaptiveMedianOfMeansState(
            jnp.zeros([], jnp.int32), jnp.zeros([], jnp.int32)
        )

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        check_floating("updates", updates)
        batch = leading_size("updates", updates)
        if not jax.tree.leaves(updates):
            return updates, state._replace(count=_next(state.count))
        check_integer("the batch size", batch)
        sizes = [n for n in range(1, batch + 1) if batch % n == 0 and batch // n % 2]
        allowed = jnp.asarray(sizes, jnp.int32)
        wanted = jnp.asarray(group_size(state.count), jnp.int32)
        place = jnp.searchsorted(allowed, wanted, side="right") - 1
        size = allowed[jnp.maximum(place, 0)]
        reduced = jax.tree.map(lambda x: _masked_median_of_means(x, size), updates)
        return reduced, AdaptiveMedianOfMeansState(_next(state.count), size)

    return aggregating.Aggregator(init, update)


def _masked_median_of_means(x: Array, size: Int[Array, ""]) -> Array:
    """Median of the means of groups of a traced ``size``, an odd number of them."""
    batch = x.shape[0]
    wide = x.astype(statistics_dtype(x.dtype))
    sums = jnp.zeros_like(wide).at[jnp.arange(batch) // size].add(wide)
    num_groups = batch // size
    # An odd number of rows keeps the median of the groups in the middle.
    rows = batch + 1 - batch % 2
    row = jnp.arange(rows).reshape(-1, *[1] * (x.ndim - 1))
    padded = jnp.concatenate([sums, sums[: rows - batch]])
    filler = jnp.where((row - num_groups) % 2 == 0, -jnp.inf, jnp.inf)
    means = jnp.where(row < num_groups, padded / size, filler.astype(wide.dtype))
    return robust_mean.exact_median(means).astype(x.dtype)
