"""Population annealing: chains that are resampled as the temperature falls."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.core.drivers import optimize
from jaxopt_suite.core.trees import statistics_dtype
from jaxopt_suite.problems.landscape import Landscape
from jaxopt_suite.stochastic.chains import (
    ChainRecord,
    chain_record,
    keys_of_chains,
    task_and_starts,
)


class PopulationRecord(NamedTuple):
    r"""What :func:`population_annealing` returns.

    Attributes:
        chains: the record of the places of the population, one row per stage, taken
            before its resampling; row 0 is the start. A place changes hands when the
            population is resampled, so ``best_value`` and ``first_hit`` are those of a
            place.
        effective_size: :math:`(\sum_c w_c)^2 / \sum_c w_c^2` of the resampling after
            every stage but the last. Far below the number of chains the next
            temperature is too far.
    """

    chains: ChainRecord
    effective_size: Float[Array, " stages-1"]


def systematic_resample(
    key: PRNGKeyArray, log_weights: Float[Array, " n"]
) -> Int[Array, " n"]:
    r"""Indices drawn in proportion to weights, with as little chance as possible.

    Index i comes :math:`\lfloor n p_i \rfloor` or :math:`\lceil n p_i \rceil` times,
    :math:`n p_i` in the mean, where :math:`p_i = w_i / \sum_j w_j`: one uniform number
    shifts n equally spaced points.

    Args:
        key: typed key.
        log_weights: :math:`\log w_i`, up to a constant. What is not finite has weight
            0; if nothing is finite all weights are equal.

    Returns:
        n indices, in ascending order.

    Raises:
        ValueError: ``log_weights`` is not of shape ``(n,)`` with n >= 1.

    Example:
        >>> weights = jnp.array([0.5, 0.25, 0.25, 0.0])
        >>> systematic_resample(jax.random.key(0), jnp.log(weights))
        Array([0, 0, 1, 2], dtype=int32)

    Source: Carpenter, Clifford, Fearnhead, "Improved Particle Filter for Nonlinear
    Problems" (1999), IEE Proceedings - Radar, Sonar and Navigation 146.
    """
    log_weights = jnp.asarray(log_weights)
    if log_weights.ndim != 1 or not log_weights.size:
        raise ValueError(
            f"log_weights must have shape (n,), n >= 1, got shape {log_weights.shape}"
        )
    # In bfloat16 a sum of more than 256 equal weights stops growing.
    count, dtype = len(log_weights), statistics_dtype(log_weights.dtype)
    log_weights = log_weights.astype(dtype)
    edges = jnp.cumsum(_weights(log_weights))
    shift = jax.random.uniform(key, (), dtype)
    # Rounding must not carry the last point past the last weight.
    points = jnp.minimum((jnp.arange(count) + shift) / count, 1 - jnp.finfo(dtype).eps)
    found = jnp.searchsorted(edges, points * edges[-1], side="right")
    return found.astype(jnp.int32)


def _weights(log_weights: Array) -> Array:
    """Weights whose largest is 1."""
    alive = jnp.isfinite(log_weights)
    largest = jnp.max(log_weights, where=alive, initial=-jnp.inf)
    weights = jnp.where(alive, jnp.exp(log_weights - largest), 0.0)
    return jnp.where(jnp.any(alive), weights, 1.0)


def population_annealing(
    problem: Landscape,
    optimizer: Callable[[PRNGKeyArray, Any], optax.GradientTransformation],
    key: PRNGKeyArray,
    *,
    temperatures: Float[Array, " stages"],
    steps_per_stage: int,
    num_chains: int,
    init: Callable[[PRNGKeyArray], PyTree] | PyTree | None = None,
    target: float | Float[Array, ""] | None = None,
) -> PopulationRecord:
    r"""Anneals a population of chains and resamples it between two temperatures.

    In stage j every chain makes ``steps_per_stage`` steps at :math:`T_j`. Then the
    population is resampled (:func:`systematic_resample`) with the weights

    .. math:: w_c = \exp(-(1/T_{j+1} - 1/T_j) f(x_c))

    which carry the Gibbs measure of :math:`T_j` to that of :math:`T_{j+1}`: chains that
    are stuck in high valleys are replaced by copies of others, over any barrier. The
    optimizer starts anew in each stage. A chain whose value is not finite has weight 0;
    it stays in the record, which counts it.

    Args:
        problem: the landscape.
        optimizer: ``optimizer(key, temperature)``, as ``lambda key, T: langevin(T,
            0.01, key)``, or :func:`~jaxopt_suite.stochastic.annealed_sgd` at the
            rate ``schedules.rate_for_temperature(T, noise_std)``.
        key: typed key. ``init_key, stage_key = split(key)``; chain c starts with
            ``fold_in(init_key, c)``; stage j runs chain c with ``fold_in(run_key, c)``,
            split as in :func:`~jaxopt_suite.stochastic.run_chains`, where ``run_key,
            resample_key = split(fold_in(stage_key, j))``.
        temperatures: :math:`T_j > 0`, one per stage, falling; may be traced.
        steps_per_stage: gradient queries of a chain in a stage.
        num_chains: size of the population.
        init: as in :func:`~jaxopt_suite.stochastic.run_chains`.
        target: likewise.

    Raises:
        ValueError: a count is below 1, a concrete temperature is not positive, there is
            no temperature, ``optimizer`` is no function, or as
            :func:`~jaxopt_suite.stochastic.run_chains`.

    Example:
        >>> from jaxopt_suite.problems import rastrigin
        >>> from jaxopt_suite.stochastic import langevin
        >>> record = population_annealing(
        ...     rastrigin(2, A=1.0), lambda key, T: langevin(T, 0.01, key),
        ...     jax.random.key(0), temperatures=jnp.geomspace(1.0, 0.05, 8),
        ...     steps_per_stage=50, num_chains=64,
        ... )
        >>> bool(record.chains.in_basin[-1].mean() > 0.9)
        True

    Source: Hukushima and Iba, "Population Annealing and Its Application to a Spin
    Glass" (2003), AIP Conference Proceedings 690.
    """
    check_interval("temperatures", temperatures, 0.0, closed="()")
    check_integer("steps_per_stage", steps_per_stage)
    check_interval("target", target, 0.0)
    if not callable(optimizer):
        raise ValueError(
            "optimizer must be a function of a key and a temperature, as lambda key, "
            f"T: langevin(T, 0.01, key), got {optimizer!r}"
        )
    temperatures = jnp.asarray(temperatures)
    if temperatures.ndim != 1 or not temperatures.size:
        raise ValueError(
            "temperatures must be an array with one entry per stage, got shape "
            f"{temperatures.shape}"
        )
    task, starts = task_and_starts(problem, num_chains, init)
    init_key, stage_key = jax.random.split(key)
    if starts is None:
        starts = jax.vmap(task.init)(keys_of_chains(init_key, num_chains))

    def advance(key, start, now):
        run_key, optimizer_key = jax.random.split(key)
        tx = optimizer(optimizer_key, now)
        steps = steps_per_stage
        result = optimize(tx, task, run_key, steps, params=start, record_every=steps)
        return result.params, jax.tree.map(lambda row: row[-1], result.record)

    def stage(population, inputs):
        number, now, cooling = inputs
        stage_keys = jax.random.split(jax.random.fold_in(stage_key, number))
        run_keys = keys_of_chains(stage_keys[0], num_chains)
        population, row = jax.vmap(advance, (0, 0, None))(run_keys, population, now)
        value = row["value"]
        log_weights = -cooling * value.astype(statistics_dtype(value.dtype))
        chosen = systematic_resample(stage_keys[1], log_weights)
        # The last stage cools by 0: it keeps its population as it is.
        chosen = jnp.where(cooling == 0, jnp.arange(num_chains), chosen)
        weights = _weights(log_weights)
        size = jnp.sum(weights) ** 2 / jnp.sum(weights**2)
        return jax.tree.map(lambda x: x[chosen], population), (row, size)

    inverse = 1 / temperatures
    cooling = jnp.append(inverse[1:], inverse[-1]) - inverse
    inputs = jnp.arange(len(temperatures)), temperatures, cooling
    final, (rows, sizes) = jax.lax.scan(stage, starts, inputs)
    first = jax.vmap(task.metrics)(starts)
    rows = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rows)
    chains = chain_record(problem, final, rows, steps_per_stage, target)
    return PopulationRecord(chains, sizes[:-1])
