"""The explicit upper bound on regret against what is measured."""

import functools

import jax
import numpy as np

from experiments.claims import Claim, at_least
from experiments.dars_dbco.config import Config
from experiments.dars_dbco.runs import (
    Case,
    equal_starts,
    play,
    switching_losses,
    together,
)
from experiments.figures import new_figure
from experiments.results import Metric

DELAYS = (0, 64, 1024)


def case(config: Config, kind: str, count: int) -> Case:
    """The run with the theory's block lengths and the losses' own constants."""
    horizon = config.bound_horizon
    return Case(
        horizon,
        equal_starts(horizon, count),
        strong=kind == "strong",
        k_scale=1.0,
        true_constants=True,
    )


def explicit_bound(run: Case, delay: int) -> float:
    r"""The proven bound on expected regret on the unit ball, summed over segments.

    .. math:: 3 G \delta L + R, \qquad
        R = 2 G \sqrt{L (1.5 K + d)} \quad\text{or}\quad
        R = \tfrac{2 G^2}{\alpha} (1.5 K + d) \ln(e \lceil L / K \rceil)
    """
    schedule = run.schedule(delay)
    lengths, sizes = (np.asarray(row, np.float64) for row in schedule[1:3])
    lipschitz = float(switching_losses(2, run.strong, 1).lipschitz)
    waits = 1.5 * sizes + delay
    if run.strong:
        learning = 2 * lipschitz**2 * waits * np.log(np.e * np.ceil(lengths / sizes))
    else:
        learning = 2 * lipschitz * np.sqrt(lengths * waits)
    return float(np.sum(3 * lipschitz * schedule.delta * lengths + learning))


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of shape (cells, delays, seeds)."""
    keys = jax.random.split(key, config.num_seeds)
    calls = [
        functools.partial(play, case(config, *cell), keys, delays=DELAYS)
        for cell in config.bound_cells
    ]
    return {"regret": np.stack([regret[:, :, -1].T for regret in together(calls)])}


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, a figure, and whether the bound holds."""
    names = [f"{kind}, m = {count}" for kind, count in config.bound_cells]
    bounds = np.array(
        [
            [explicit_bound(case(config, *cell), d) for d in DELAYS]
            for cell in config.bound_cells
        ]
    )
    means = data["regret"].astype(np.float64).mean(axis=-1)
    axes = (("cell", names), ("delay", DELAYS))
    claim = Claim(
        f"Explicit upper bound over mean regret, T = {config.bound_horizon}, delays "
        "0, 64, 1024 (smallest)",
        float(np.min(bounds / means)),
        at_least(1.0),
    )
    figure, panels = new_figure("Explicit upper bound over mean regret of DARS")
    panel = panels[0, 0]
    for name, row in zip(names, bounds / means, strict=True):
        panel.plot(range(len(DELAYS)), row, label=name)
    panel.axhline(1.0, color="black", linewidth=1, marker="")
    panel.set_xticks(range(len(DELAYS)), [str(d) for d in DELAYS])
    panel.set(yscale="log", xlabel="delay", ylabel="bound / regret (1: tight)")
    panel.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    panel.legend()
    metrics = {"bound": Metric(bounds, axes), "bound_regret": Metric(means, axes)}
    return metrics, {"explicit_bound": figure}, (claim,)
