"""Learning-rate decay as annealing: SGD that cools down against every fixed rate.

On a nonconvex landscape a fixed rate has to be small to end near the minimum, and then
needs exponentially long to leave the other valleys. An exact one-dimensional oracle
counts the queries of both; simulations confirm it where it has no answer.
"""

import jax

from experiments.results import Result
from experiments.stages import COMPUTE, Stages
from experiments.step_size_decay import (
    control,
    diffusion,
    dimensions,
    functions,
    levy_table,
    minibatch,
    oracle_tables,
    quench,
    simulation,
)
from experiments.step_size_decay.config import SCALES, Config

__all__ = ["SCALES", "STAGES", "Config", "run", "shapes"]

# Each part: compute(config, key) -> arrays, and summarize(config, arrays) -> metrics,
# figures, claims.
PARTS = {
    "rastrigin_table": (oracle_tables.compute, oracle_tables.summarize),
    "levy_table": (levy_table.compute, levy_table.summarize),
    "diffusion": (diffusion.compute, diffusion.summarize),
    "quench": (quench.compute, quench.summarize),
    "control": (control.compute, control.summarize),
    "simulation": (simulation.compute, simulation.summarize),
    "dimensions": (dimensions.compute, dimensions.summarize),
    "functions": (functions.compute, functions.summarize),
    "minibatch": (minibatch.compute, minibatch.summarize),
}
STAGES = tuple(PARTS)


def run(config: Config, key: jax.Array, stages: Stages = COMPUTE) -> Result:
    """Runs all parts; each is a stage."""
    keys = jax.random.split(key, len(STAGES))
    metrics, figures, claims = {}, {}, ()
    for part_key, (name, part) in zip(keys, PARTS.items(), strict=True):
        compute, summarize = part
        found = summarize(config, stages(name, compute, config, part_key))
        metrics |= found[0]
        figures |= found[1]
        claims += tuple(found[2])
    return Result(metrics, figures, claims)


def shapes(config: Config) -> None:
    """Checks what the sizes of ``config`` ask for, without the long computations."""
    oracle_tables.check_grids(config)
    for part in (simulation, dimensions, functions, minibatch):
        part.shapes(config)
