"""Quantization-aware training by smoothing the quantized loss (LOTION).

Source: Kwun, Morwani, Su, Gil, Anand, Kakade, "LOTION: Smoothing the Optimization
Landscape for Quantized Training" (2025), arXiv 2510.08757.
"""

import jax

from experiments.lotion import (
    finetune,
    landscape,
    language,
    large,
    regression,
    transformer,
    two_layer,
)
from experiments.lotion.config import SCALES, Config
from experiments.results import Result
from experiments.stages import COMPUTE, Stages

__all__ = ["SCALES", "STAGES", "Config", "run", "shapes"]

# A part has compute(config, key), summarize(config, data) and shapes(config).
PARTS = {
    "landscape": landscape,
    "regression": regression,
    "two_layer": two_layer,
    "finetune": finetune,
    "language": language,
    "transformer": transformer,
}
STAGES = tuple(PARTS)


def run(config: Config, key: jax.Array, stages: Stages = COMPUTE) -> Result:
    """Runs all parts; each is a stage."""
    metrics, figures, claims = {}, {}, ()
    for index, (name, part) in enumerate(PARTS.items()):
        data = stages(name, part.compute, config, jax.random.fold_in(key, index))
        part_metrics, part_figures, part_claims = part.summarize(config, data)
        metrics |= part_metrics
        figures |= part_figures
        claims += tuple(part_claims)
    return Result(metrics, figures, claims)


def shapes(config: Config) -> None:
    """Traces the large computations of ``config`` without running them."""
    for part in PARTS.values():
        part.shapes(config)
    for large_config in large.LARGE.values():
        large.shapes(large_config)
