"""Many independent chains on one landscape: values, wells and queries to a target."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import (
    check_floating,
    check_integer,
    check_interval,
    is_key_array,
    leading_size,
)
from jaxopt_suite.core.drivers import optimize
from jaxopt_suite.core.types import Problem
from jaxopt_suite.problems.landscape import Landscape, landscape_problem

OptimizerOfKey = Callable[[PRNGKeyArray], optax.GradientTransformation]


class ChainRecord(NamedTuple):
    """What :func:`run_chains` returns; r counts rows and c chains.

    Attributes:
        final: the last iterates, with a leading axis of chains.
        value: exact value of the objective.
        best_value: least value over the rows so far.
        in_basin: whether the iterate is in the well of the minimizer.
        first_hit: first recorded number of queries at which ``value`` was within the
            target of ``min_value``; -1 where it never was, or no target was given.
        queries: number of gradient queries of a chain before row r.
        min_value: the landscape's minimum.
        num_diverged: number of chains with a NaN or an infinity among their values,
            which stay as they are.
    """

    final: PyTree[Float[Array, "c ..."]]
    value: Float[Array, "r c"]
    best_value: Float[Array, "r c"]
    in_basin: Bool[Array, "r c"]
    first_hit: Int[Array, " c"]
    queries: Int[Array, " r"]
    min_value: Float[Array, ""]
    num_diverged: Int[Array, ""]


def run_chains(
    problem: Landscape,
    optimizer: OptimizerOfKey | optax.GradientTransformation,
    key: PRNGKeyArray,
    *,
    num_steps: int,
    num_chains: int,
    record_every: int,
    init: Callable[[PRNGKeyArray], PyTree] | PyTree | None = None,
    target: float | Float[Array, ""] | None = None,
) -> ChainRecord:
    """Runs independent chains of an optimizer on a landscape, with exact gradients.

    :func:`jaxopt_suite.core.optimize`, vmapped. Memory is that of the record,
    ``num_steps / record_every + 1`` rows, whatever ``num_steps`` is. It is pure: jit
    it, hand it to :func:`jaxopt_suite.core.sweep` for a grid of hyperparameters, or lay
    the chains over devices by jitting it on starts whose leading axis is sharded
    (:func:`jaxopt_suite.core.shard_leading`).

    Chain c runs ``optimizer(optimizer_key)`` under ``optimize(..., run_key, ...)`` with
    ``run_key, optimizer_key = split(fold_in(key, c))``: the first chains are the same
    whatever their number.

    Args:
        problem: the landscape.
        optimizer: a function of a key, as ``lambda key: annealed_sgd(schedule, 10.0,
            key)``, so that each chain has its own noise; or a transformation that draws
            nothing.
        key: typed key.
        num_steps: gradient queries of a chain, a multiple of ``record_every``.
        num_chains: number of chains.
        record_every: queries between two rows; row 0 is the start.
        init: ``init(key) -> x``, or starts with a leading axis of chains; None starts
            at ``problem.sample_init(key)``.
        target: excess ``value - min_value >= 0`` for ``first_hit``; may be traced.

    Raises:
        ValueError: a count is below 1, ``num_steps`` is no multiple of
            ``record_every``, ``init`` has another number of chains, another shape than
            the minimizer or an integer dtype, ``target`` is negative, ``optimizer`` is
            neither of the two, or a transformation that holds a key: all chains would
            see the same noise.

    Example:
        >>> from jaxopt_suite.problems import rastrigin
        >>> from jaxopt_suite.stochastic import annealed_sgd, schedules
        >>> landscape = rastrigin(2, A=1.0)
        >>> schedule = schedules.anneal_recipe(
        ...     landscape.smoothness, sigma=10.0, T0=0.6, N=4096, T_end=0.03
        ... )
        >>> record = run_chains(
        ...     landscape, lambda key: annealed_sgd(schedule, 10.0, key),
        ...     jax.random.key(0), num_steps=4096, num_chains=64, record_every=1024,
        ... )
        >>> record.value.shape, bool(record.in_basin[-1].mean() > 0.4)
        ((5, 64), True)
    """
    check_interval("target", target, 0.0)
    if not callable(optimizer) and not hasattr(optimizer, "update"):
        raise ValueError(
            "optimizer must be a function of a key or a transformation, got "
            f"{optimizer!r}"
        )
    task, starts = task_and_starts(problem, num_chains, init)

    def run(key, start):
        run_key, optimizer_key = jax.random.split(key)
        own = optimizer(optimizer_key) if callable(optimizer) else optimizer
        result = optimize(
            own, task, run_key, num_steps, params=start, record_every=record_every
        )
        _refuse_shared_noise(optimizer, result.state)
        return result.params, result.record

    keys = keys_of_chains(key, num_chains)
    final, rows = jax.vmap(run, out_axes=(0, 1))(keys, starts)
    return chain_record(problem, final, rows, record_every, target)


def keys_of_chains(key: PRNGKeyArray, num_chains: int) -> Key[Array, " c"]:
    """``fold_in(key, c)`` for every chain c."""
    return jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(num_chains))


def task_and_starts(
    landscape: Landscape, num_chains: int, init: Any
) -> tuple[Problem, PyTree | None]:
    """The Problem of a landscape, with its own starts or those of an ``init``."""
    check_integer("num_chains", num_chains)
    task = landscape_problem(landscape)
    if init is None:
        return task, None
    if callable(init):
        _check_start(landscape, jax.eval_shape(init, jax.random.key(0)))
        return task._replace(init=init), None
    given = leading_size("init", init)
    if given != num_chains:
        raise ValueError(
            f"init must have a leading axis of num_chains={num_chains}, got {given}"
        )
    _check_start(landscape, jax.eval_shape(lambda x: jax.tree.map(_first, x), init))
    return task, init


def _first(leaf):
    return leaf[0]


def _check_start(landscape: Landscape, start: PyTree) -> None:
    check_floating("init", start)
    shapes, wanted = (jax.tree.map(jnp.shape, x) for x in (start, landscape.minimizer))
    if shapes != wanted:
        raise ValueError(
            f"init must give starts of the minimizer's shape {wanted}, got {shapes}"
        )


def _refuse_shared_noise(optimizer: Any, state: PyTree) -> None:
    if not callable(optimizer) and any(map(is_key_array, jax.tree.leaves(state))):
        raise ValueError(
            "optimizer must be a function of a key where it draws noise, as "
            "lambda key: annealed_sgd(schedule, noise_std, key), got a transformation "
            "that holds a key: every chain would see the same noise"
        )


def chain_record(
    problem: Landscape,
    final: PyTree,
    rows: dict[str, Array],
    record_every: int,
    target: Any,
) -> ChainRecord:
    """The record of chains from the metrics of :func:`landscape_problem`, rows first.

    Args:
        problem: the landscape.
        final: the last iterates.
        rows: ``value`` and ``in_basin`` with leading axes (rows, chains).
        record_every: queries between two rows.
        target: as in :func:`run_chains`.
    """
    value = rows["value"]
    min_value = jnp.asarray(problem.min_value, value.dtype)
    queries = jnp.arange(len(value), dtype=jnp.int32) * record_every
    reached = value - min_value <= (-1.0 if target is None else target)
    hits = reached & (target is not None)
    first_hit = jnp.where(jnp.any(hits, axis=0), queries[jnp.argmax(hits, axis=0)], -1)
    diverged = jnp.any(~jnp.isfinite(value), axis=0)
    return ChainRecord(
        final=final,
        value=value,
        best_value=jax.lax.cummin(value, axis=0),
        in_basin=rows["in_basin"],
        first_hit=first_hit,
        queries=queries,
        min_value=min_value,
        num_diverged=jnp.sum(diverged, dtype=jnp.int32),
    )


def queries_to_target(
    record: ChainRecord, target: float, quantile: float = 0.5
) -> int | float:
    """First recorded number of queries at which a share of the chains is at the target.

    The share is that of chains with ``value - min_value <= target`` at that row; a
    diverged chain is not. At least ``quantile`` of the chains is the same as: the
    (lower) quantile of their excess is at most the target.

    Args:
        record: of one :func:`run_chains`, not under jit; of a sweep, one by one.
        target: excess, >= 0.
        quantile: share of the chains, in (0, 1].

    Returns:
        The number of queries, or ``inf`` where no row has it.

    Raises:
        ValueError: an argument is out of range, or the record is of several runs.

    Example:
        >>> from jaxopt_suite.problems import quadratic
        >>> record = run_chains(
        ...     quadratic(jnp.ones(2)), optax.sgd(0.5), jax.random.key(0),
        ...     num_steps=6, num_chains=1, record_every=1, init=jnp.ones((1, 2)),
        ... )
        >>> queries_to_target(record, 0.25**3), queries_to_target(record, 0.0)
        (3, inf)
    """
    _check_record(record)
    check_interval("target", target, 0.0)
    check_interval("quantile", quantile, 0.0, 1.0, closed="(]")
    share = np.mean(np.asarray(record.value - record.min_value) <= target, axis=1)
    # Shares are multiples of one over the number of chains, up to rounding.
    rows = np.flatnonzero(share >= quantile - 1e-9)
    return int(record.queries[rows[0]]) if rows.size else math.inf


def _check_record(record: ChainRecord) -> None:
    if jnp.ndim(record.value) != 2:
        raise ValueError(
            "record must be of one run, with value of shape (rows, chains), got shape "
            f"{jnp.shape(record.value)}: index or jax.vmap over the axes of a sweep"
        )


class ReplicaSummary(NamedTuple):
    """What :func:`replica_summary` returns, for every row r of the record.

    Attributes:
        mean: mean value of the chains; NaN or inf where one has diverged.
        standard_error: of the mean.
        median: median value.
        quantiles: quantiles of the value, one column each.
        success_rate: share of chains in the well of the minimizer.
        success_interval: lower and upper end of its Wilson interval.
    """

    mean: Float[Array, " r"]
    standard_error: Float[Array, " r"]
    median: Float[Array, " r"]
    quantiles: Float[Array, "r q"]
    success_rate: Float[Array, " r"]
    success_interval: Float[Array, "r 2"]


def replica_summary(
    record: ChainRecord,
    *,
    quantiles: Sequence[float] = (0.1, 0.9),
    confidence: float = 0.95,
) -> ReplicaSummary:
    r"""Mean, median, quantiles and success rate over the chains, row by row.

    The Wilson interval of a rate :math:`\hat p` among n chains is

    .. math:: \frac{\hat p + z^2/2n \pm z \sqrt{\hat p (1 - \hat p)/n + z^2/4n^2}}
        {1 + z^2/n}

    which stays inside [0, 1] and has width also at 0 and n successes.

    Args:
        record: of one :func:`run_chains`; of a sweep, under :func:`jax.vmap`.
        quantiles: levels in [0, 1].
        confidence: level of the interval, in (0, 1).

    Raises:
        ValueError: a level is out of range, or the record is of several runs.

    Example:
        >>> from jaxopt_suite.problems import quadratic
        >>> record = run_chains(
        ...     quadratic(jnp.ones(2)), optax.sgd(0.5), jax.random.key(0),
        ...     num_steps=20, num_chains=10, record_every=20,
        ... )
        >>> summary = jax.jit(replica_summary)(record)
        >>> [round(float(end), 3) for end in summary.success_interval[-1]]
        [0.722, 1.0]

    Source: Wilson (1927), Journal of the American Statistical Association 22.
    """
    _check_record(record)
    check_interval("quantiles", np.asarray(quantiles), 0.0, 1.0)
    check_interval("confidence", confidence, 0.0, 1.0, closed="()")
    value, count = record.value, record.value.shape[1]
    rate = jnp.mean(record.in_basin, axis=1)
    # From the tail: a confidence near 1 is 1 in float32, its distance to 1 is not 0.
    z = -ndtri(jnp.asarray((1 - confidence) / 2))
    centre, scale = rate + z**2 / (2 * count), 1 + z**2 / count
    half = z * jnp.sqrt(rate * (1 - rate) / count + (z / (2 * count)) ** 2)
    interval = jnp.stack([centre - half, centre + half], axis=1) / scale
    levels = jnp.atleast_1d(jnp.asarray(quantiles))
    return ReplicaSummary(
        mean=jnp.mean(value, axis=1),
        standard_error=jnp.std(value, axis=1, ddof=1) / math.sqrt(count),
        median=jnp.median(value, axis=1),
        quantiles=jnp.quantile(value, levels, axis=1).T,
        success_rate=rate,
        success_interval=jnp.clip(interval, 0.0, 1.0),
    )
