"""How regret grows with the number of rounds, on fixed and on changing arms."""

import functools

import jax
import numpy as np

from experiments.claims import Claim, at_most
from experiments.eqol.policies import Named, World, row_title
from experiments.eqol.runs import together
from experiments.figures import GREY, log_axes, new_figure
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import (
    baselines,
    lazy_ensembles,
    lazy_size,
    standard_ensembles,
    standard_size,
)
from experiments.lazy_ensemble.runs import race, slope
from experiments.results import Metric

FIRST_ROUND = 2**10
# The first problem of the comparison, on which the slope is claimed.
CLAIMED = "fixed10"


def worlds(config: Config) -> dict[str, World]:
    """The same problem on one set of arms and on a pool of 20, for every d."""
    found = {}
    for d in config.growth_dimensions:
        found[f"fixed{d}"] = World(d, 50, 0.5)
        found[f"pool{d}"] = World(d, 50, 0.5, "pool", 20)
    return found


def sizes(config: Config, d: int) -> dict[str, int]:
    """The ensembles' sizes, by what they depend on."""
    horizon = config.growth_horizon
    return {
        "d/2": max(d // 2, 1),
        "size": lazy_size(d, horizon),
        "d log T": standard_size(d, horizon),
    }


def policies(config: Config, name: str) -> list[Named]:
    """What runs on a problem; two more standard ensembles on the claimed one."""
    world = worlds(config)[name]
    size, horizon = sizes(config, world.d), config.growth_horizon
    named = standard_ensembles(tuple(size.values()))
    named += lazy_ensembles((size["d/2"], size["size"]))
    others = baselines(world, horizon)
    few = [policy for policy in others if "ES" not in policy.name]
    return named + (others if name == CLAIMED else few)


def num_seeds(config: Config, name: str) -> int:
    """The claimed problem has more seeds."""
    return config.study_seeds if name == CLAIMED else config.few_seeds


def horizons(config: Config) -> np.ndarray:
    """Powers of two up to the longest horizon."""
    doublings = int(np.log2(config.growth_horizon // FIRST_ROUND))
    return FIRST_ROUND * 2 ** np.arange(doublings + 1)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of every problem, of shape (policies, seeds, horizons)."""
    places = horizons(config) // FIRST_ROUND - 1

    def call(number, name):
        keys = jax.random.split(
            jax.random.fold_in(key, number), num_seeds(config, name)
        )
        runs = race(
            policies(config, name),
            worlds(config)[name],
            keys,
            config.growth_horizon,
            checkpoints=config.growth_horizon // FIRST_ROUND,
        )
        return runs.regret[..., places]

    calls = [functools.partial(call, *item) for item in enumerate(worlds(config))]
    return dict(zip(worlds(config), together(calls), strict=True))


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    metrics = {}
    for name in worlds(config):
        regret = data[name]
        names = [policy.name for policy in policies(config, name)]
        axes = (("policy", names), ("seed", range(num_seeds(config, name))))
        metrics[f"growth_{name}"] = Metric(
            regret, (*axes, ("rounds", horizons(config)))
        )
    claims = tuple(_claims(config, data[CLAIMED])) if CLAIMED in data else ()
    return metrics, {"growth": _figure(config, data)}, claims


def _claims(config, regret):
    world = worlds(config)[CLAIMED]
    names = [policy.name for policy in policies(config, CLAIMED)]
    size = sizes(config, world.d)
    claimed = [f"lazy m={size[label]}" for label in ("d/2", "size")]
    reported = [f"ES m={size[label]}" for label in ("d/2", "d log T")]
    for name in (*claimed, *reported, "LinTS v=R", "OFUL"):
        value, interval = slope(
            horizons(config), regret[names.index(name)].T, paired=True
        )
        yield Claim(
            f"{row_title(CLAIMED)}, T from {FIRST_ROUND:,} to "
            f"{config.growth_horizon:,}: slope of log regret in log T for {name}",
            value,
            at_most(0.5) if name in claimed else None,
            interval,
        )


def _looks(config, d) -> dict[str, tuple[str, str, str]]:
    """Name, colour and line of every policy, the same in all panels."""
    size = sizes(config, d)
    return {
        f"lazy m={size['d/2']}": ("lazy, m = d/2", "C1", "--"),
        f"lazy m={size['size']}": ("lazy, m = d log d + d log log T", "C1", "-"),
        f"ES m={size['d/2']}": ("ES, m = d/2", "C0", "--"),
        f"ES m={size['size']}": ("ES, m = d log d + d log log T", "C0", "-."),
        f"ES m={size['d log T']}": ("ES, m = d log T", "C0", "-"),
        f"ES symmetrized m={size['d/2']}": ("ES symmetrized, m = d/2", "C5", "--"),
        f"ES mixture m={size['size']}": ("ES mixture", "C5", "-"),
        "LinTS v=R": ("LinTS, v = R", "C6", "-"),
        "LinTS theory": ("LinTS, v of theory", "C6", "--"),
        "OFUL": ("OFUL", "C2", "-"),
        "rare OFUL": ("rarely switching OFUL", "C2", "--"),
        "LinUCB alpha=R": ("LinUCB, alpha = R", "C3", "-"),
        "EQOL": ("EQOL", "C4", "-"),
        "greedy": ("greedy", GREY, ":"),
    }


def _figure(config, data):
    figure, panels = new_figure(
        "Mean regret against rounds, R=0.5, K=50",
        rows=2,
        columns=len(config.growth_dimensions),
        panel=(3.9, 3.6),
        sharex=True,
    )
    for name, world in worlds(config).items():
        row = int(name.startswith("pool"))
        axes = panels[row, config.growth_dimensions.index(world.d)]
        for policy, curve in zip(
            policies(config, name), data[name].mean(axis=1), strict=True
        ):
            label, colour, line = _looks(config, world.d)[policy.name]
            axes.plot(
                horizons(config),
                curve,
                line,
                color=colour,
                label=label,
                marker="s" if colour == "C1" else "",
            )
        axes.set_title(f"d={world.d}, {'pool of 20 sets' if row else 'fixed arms'}")
        log_axes(axes, "xy", ticks=horizons(config).tolist())
        axes.tick_params(axis="x", labelrotation=45)
    for axes in panels[-1]:
        axes.set_xlabel("rounds")
    for axes in panels[:, 0]:
        axes.set_ylabel("regret")
    shown = {}
    for axes in panels.ravel():
        shown |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(shown.values(), shown, loc="outside right center")
    return figure
