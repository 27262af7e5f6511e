"""Quasi-optimistic linear bandits (EQOL) against optimism, sampling and greed.

The method: "EQOL" (2026), in reconstruction. Every policy plays the same problems with
the same random numbers, and index policies of one problem share one program.
"""

import jax
import jax.numpy as jnp

from experiments.eqol import (
    comparison,
    drift,
    extensions,
    gaps,
    growth,
    labels,
    paths,
    sensitivity,
    shop,
)
from experiments.eqol.config import SCALES, Config
from experiments.eqol.policies import ROWS, World, data_world, index_policies
from experiments.eqol.runs import play, stack_points
from experiments.results import Result
from experiments.stages import COMPUTE, Stages

__all__ = ["SCALES", "STAGES", "Config", "run", "shapes"]

PARTS = {
    "comparison": comparison,
    "gaps": gaps,
    "growth": growth,
    "paths": paths,
    "sensitivity": sensitivity,
    "labels": labels,
    "extensions": extensions,
    "drift": drift,
    "shop": shop,
}
STAGES = tuple(PARTS)


def run(config: Config, key: jax.Array, stages: Stages = COMPUTE) -> Result:
    """Runs all parts that the config does not leave empty; each is a stage."""
    keys = dict(zip(STAGES, jax.random.split(key, len(STAGES)), strict=True))
    there = {
        "growth": config.growth_horizon,
        "sensitivity": config.heat_rows,
        "extensions": config.extension_rounds,
        "drift": config.drift_updates,
        "shop": config.shop_rounds,
    }
    data = {
        name: stages(name, part.compute, config, keys[name])
        for name, part in PARTS.items()
        if there.get(name, True)
    }
    metrics, figures, claims = {}, {}, ()
    for name, found in data.items():
        others = (data["gaps"],) if name == "growth" else ()
        part = PARTS[name].summarize(config, found, *others)
        metrics |= part[0]
        figures |= part[1]
        claims += tuple(part[2])
    return Result(metrics, figures, claims)


def shapes(config: Config) -> None:
    """Traces the large computations of ``config`` without running them."""

    def trace(world: World, seeds: int, horizon: int, **options) -> None:
        keys = jax.random.split(jax.random.key(0), seeds)
        named = index_policies(world.noise)
        points = [{**policy.point, "gap": 0.1} for policy in named]
        regret, _, _ = play.eval_shape(
            keys,
            stack_points(points),
            family=named[0].family,
            world=world,
            horizon=horizon,
            **options,
        )
        assert regret.shape == (len(named), seeds, options.get("checkpoints", 1))

    for row in config.rows:
        trace(ROWS[row], config.num_seeds, config.horizon, checkpoints=12)
    for d in config.gap_dimensions:
        trace(gaps.WORLD._replace(d=d), config.study_seeds, config.gap_horizon)
    for d in config.dimensions:
        world = World(d, 20, growth.NOISE, "pool", 10)
        trace(world, config.few_seeds, growth.HORIZON)
    trace(ROWS["fixed10"], config.study_seeds, config.growth_horizon)
    trace(ROWS["pool20"], config.num_seeds, config.horizon, delay=config.delay)
    for name in config.data_sets:
        trace(data_world(name), config.few_seeds, config.data_rounds)
    keys = jax.random.split(jax.random.key(0), extensions.num_seeds(config))
    extensions.neural_mistakes.eval_shape(
        keys, rounds=config.extension_rounds // extensions.BLOCKS
    )
    jax.eval_shape(
        lambda key: paths.watch(jnp.zeros((), int), key, config.path_horizon), keys[0]
    )
