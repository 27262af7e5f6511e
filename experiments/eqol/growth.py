"""How regret grows with the dimension and with the number of rounds."""

import functools

import jax
import numpy as np

from experiments.claims import Claim, at_most
from experiments.eqol import gaps
from experiments.eqol.config import Config
from experiments.eqol.policies import ROWS, World, index_policies
from experiments.eqol.runs import race, slope, together
from experiments.figures import log_axes, new_figure
from experiments.results import Metric

HORIZON, FIRST = 1500, 2**10
NOISE = 0.5
NAMES = [policy.name for policy in index_policies(NOISE)]


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of shape (d, policies, seeds), and (policies, seeds, horizons)."""
    growth_key, *keys = jax.random.split(key, 1 + len(config.dimensions))

    def at_dimension(d, key):
        world = World(d, 20, NOISE, "pool", 10)
        seeds = jax.random.split(key, config.few_seeds)
        return race(index_policies(NOISE), world, seeds, HORIZON).regret[..., -1]

    def over_rounds():
        return race(
            index_policies(NOISE),
            ROWS["fixed10"],
            jax.random.split(growth_key, config.study_seeds),
            config.growth_horizon,
            checkpoints=config.growth_horizon // FIRST,
        ).regret

    calls = [
        functools.partial(at_dimension, d, k)
        for d, k in zip(config.dimensions, keys, strict=True)
    ]
    *dimensions, regret = together([*calls, over_rounds])
    places = horizons(config) // FIRST - 1
    return {"dimensions": np.stack(dimensions), "rounds": regret[..., places]}


def horizons(config: Config) -> np.ndarray:
    """Powers of two up to the longest horizon."""
    doublings = int(np.log2(config.growth_horizon // FIRST))
    return FIRST * 2 ** np.arange(doublings + 1)


def summarize(config: Config, data: dict[str, np.ndarray], gap_data: dict):
    """Metrics, figures and claims, with the study over d at a gap beside."""
    metrics = {
        "dimension_regret": Metric(
            data["dimensions"],
            (
                ("d", config.dimensions),
                ("policy", NAMES),
                ("seed", range(config.few_seeds)),
            ),
        ),
        "growth_regret": Metric(
            data["rounds"],
            (
                ("policy", NAMES),
                ("seed", range(config.study_seeds)),
                ("rounds", horizons(config)),
            ),
        ),
    }
    claims = []
    for name in ("EQOL", "OFUL"):
        place = NAMES.index(name)
        value, interval = slope(config.dimensions, data["dimensions"][:, place])
        claims.append(
            Claim(
                f"Pool of 10 sets, d in {config.dimensions}: slope of log regret in "
                f"log d for {name} (1 in the bound)",
                value,
                at_most(1.1) if name == "EQOL" else None,
                interval,
            )
        )
        value, interval = slope(horizons(config), data["rounds"][place].T)
        claims.append(
            Claim(
                f"d=10, K=50 fixed arms, T from {FIRST:,} to {config.growth_horizon:,}"
                f": slope of log regret in log T for {name}",
                value,
                at_most(0.6) if name == "EQOL" else None,
                interval,
            )
        )
    return metrics, {"growth": _figure(config, data, gap_data)}, tuple(claims)


def _figure(config, data, gap_data):
    figure, panels = new_figure("Growth of the mean regret", columns=3)
    by_gap = gap_data["d_regret"][..., -1]
    parts = (
        (config.dimensions, data["dimensions"].mean(-1).T, NAMES, "d, pool of 10"),
        (config.gap_dimensions, by_gap.mean(-1).T, gaps.NAMES, "d, gap 0.3"),
        (horizons(config), data["rounds"].mean(1), NAMES, "rounds, d=10, fixed arms"),
    )
    for axes, (x, curves, names, label) in zip(panels[0], parts, strict=True):
        for name, curve in zip(names, curves, strict=True):
            if name not in gaps.NAMES:
                continue
            axes.plot(x, curve, label=name)
        axes.set(xlabel=label, ylabel="regret")
        log_axes(axes, "xy", ticks=list(x))
    panels[0, 0].legend()
    return figure
