"""Lazy ensemble sampling for linear bandits against standard ensembles.

Family: Janz, Litvak, Szepesvari, "Ensemble sampling for linear bandits: small ensembles
suffice" (2024), arXiv 2311.08376.
"""

import jax
import jax.numpy as jnp

from experiments.eqol.policies import data_world
from experiments.eqol.runs import stack_points
from experiments.lazy_ensemble import (
    anytime,
    data,
    diversity,
    growth,
    rates,
    refreshes,
    sizes,
    switches,
)
from experiments.lazy_ensemble.config import SCALES, Config
from experiments.lazy_ensemble.runs import play
from experiments.results import Result
from experiments.stages import COMPUTE, Stages

__all__ = ["SCALES", "STAGES", "Config", "run", "shapes"]

PARTS = {
    "sizes": sizes,
    "growth": growth,
    "refreshes": refreshes,
    "rates": rates,
    "anytime": anytime,
    "diversity": diversity,
    "switches": switches,
    "data": data,
}
STAGES = tuple(PARTS)


def wanted(config: Config) -> tuple[str, ...]:
    """The parts that a config asks for."""
    sizes_of_parts = {
        "sizes": config.rows,
        "growth": config.growth_dimensions,
        "refreshes": config.refresh_dimensions,
        "rates": config.arm_counts,
        "anytime": config.anytime,
        "diversity": config.diversity_dimensions,
        "switches": config.switch_growths,
        "data": config.data_sets,
    }
    return tuple(name for name in STAGES if sizes_of_parts[name])


def run(config: Config, key: jax.Array, stages: Stages = COMPUTE) -> Result:
    """Runs all parts; each is a stage."""
    keys = dict(zip(STAGES, jax.random.split(key, len(STAGES)), strict=True))
    metrics, figures, claims = {}, {}, ()
    for name in wanted(config):
        part = PARTS[name]
        found = part.summarize(config, stages(name, part.compute, config, keys[name]))
        metrics |= found[0]
        figures |= found[1]
        claims += found[2]
    return Result(metrics, figures, claims)


def shapes(config: Config) -> None:
    """Traces the large computations of ``config`` without running them."""
    key = jax.random.key(0)

    def trace(policies, world, seeds, horizon):
        keys = jax.random.split(key, seeds)
        for family in dict.fromkeys(policy.family for policy in policies):
            points = stack_points([p.point for p in policies if p.family is family])
            runs = play.eval_shape(
                keys, points, family=family, world=world, horizon=horizon
            )
            assert runs.regret.shape[1:] == (seeds, 1)

    worlds = growth.worlds(config)
    largest = list(worlds)[-1]
    trace(
        growth.policies(config, largest),
        worlds[largest],
        config.few_seeds,
        config.growth_horizon,
    )
    row = config.rows[-1]
    trace(sizes.policies(config, row), sizes.ROWS[row], config.other_seeds, 10)
    world = data_world(config.data_sets[0])
    trace(data.policies(config, world), world, config.data_seeds, config.data_rounds)
    d = config.diversity_dimensions[-1]
    most = diversity.sizes(config, d)[-1]
    jax.eval_shape(
        lambda key, members: diversity.kept_rounds(
            diversity.lazy_ensemble(most, members="explicit"), config, d, key, members
        ),
        key,
        jnp.ones((), jnp.int32),
    )
