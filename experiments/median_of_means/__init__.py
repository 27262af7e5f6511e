"""Median-of-means gradients and clipped methods under extreme noise.

Family: Puchkin, Gorbunov, Kutuzov, Gasnikov, "Breaking the Heavy-Tailed Noise Barrier
    in
Stochastic Optimization Problems" (2023), arXiv 2311.04161.
"""

import concurrent.futures
from typing import Any

import jax
import jax.numpy as jnp

from experiments.median_of_means import (
    devices,
    estimator_law,
    logistic,
    neighbourhood,
    network,
    quadratic,
)
from experiments.median_of_means.config import SCALES, Config
from experiments.median_of_means.methods import errors
from experiments.results import Result
from experiments.stages import COMPUTE, Stages

__all__ = ["SCALES", "STAGES", "Config", "run", "shapes"]

STAGES = (
    "estimator_law",
    *(f"quadratic_{law}" for law in quadratic.LAWS),
    "accelerated",
    "neighbourhood",
    "logistic",
    "network",
    "devices",
)


def run(config: Config, key: jax.Array, stages: Stages = COMPUTE) -> Result:
    """Runs all parts; each is a stage."""
    keys = dict(zip(STAGES, jax.random.split(key, len(STAGES)), strict=True))

    def stage(name: str, compute, *args) -> Any:
        return stages(name, compute, config, keys[name], *args)

    # The eight-device check is a process of its own: it runs beside the other stages.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(devices.compute)
        parts = [
            estimator_law.summarize(
                config, stage("estimator_law", estimator_law.compute)
            ),
            quadratic.summarize(
                config,
                {
                    law: stage(f"quadratic_{law}", quadratic.compute, law)
                    for law in quadratic.LAWS
                },
                stage("accelerated", quadratic.compute_accelerated),
            ),
            neighbourhood.summarize(
                config, stage("neighbourhood", neighbourhood.compute)
            ),
            logistic.summarize(config, stage("logistic", logistic.compute)),
            network.summarize(config, stage("network", network.compute)),
            devices.summarize(stages("devices", pending.result)),
        ]
    metrics, figures, claims = {}, {}, ()
    for part_metrics, part_figures, part_claims in parts:
        metrics |= part_metrics
        figures |= part_figures
        claims += tuple(part_claims)
    return Result(metrics, figures, claims)


def shapes(config: Config) -> None:
    """Traces the large computations of ``config`` without running them."""
    key = jax.random.key(0)
    keys = jax.random.split(key, config.num_seeds)
    task = quadratic.task(config.dimension, config.oracle_calls)
    for method in quadratic.methods(config):
        points = {n: jnp.asarray(v) for n, v in method.points().items()}
        traced = jax.eval_shape(
            lambda k, p, m=method: errors(m, task, 0, k, p, rows=1), keys, points
        )
        assert traced.shape == (config.num_seeds, len(next(iter(points.values()))), 2)
    horizon, skews = max(config.horizons), jnp.asarray(config.skews)
    jax.eval_shape(
        lambda k: neighbourhood.final_errors(k, skews, horizon, group_size=16), keys
    )
    for method in network.methods(config):
        jax.eval_shape(
            lambda k, m=method: network.train(
                k,
                network.grid_points(config, m),
                network.REDUCTIONS.index(m),
                num_steps=config.network_steps,
            ),
            key,
        )
