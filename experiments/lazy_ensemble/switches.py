"""Any policy, switched rarely: regret against the number of switches."""

import functools

import jax
import numpy as np

from experiments.claims import Claim
from experiments.eqol.policies import ROWS, Named, eqol_point, row_title
from experiments.eqol.runs import ratio_of_means, together
from experiments.figures import log_axes, new_figure
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import (
    OFUL_POINT,
    rare_index,
    rare_thompson,
    thompson_point,
)
from experiments.lazy_ensemble.runs import race
from experiments.results import Metric

ROW = "fixed10"
FAMILIES = {
    "OFUL": (rare_index, OFUL_POINT),
    "EQOL": (rare_index, eqol_point()),
    "LinTS v=R": (rare_thompson, thompson_point(ROWS[ROW].noise)),
}


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret and switches, both of shape (policies, growths, seeds)."""
    keys = jax.random.split(key, config.other_seeds)

    def call(family):
        named = [
            Named(name, family, {**point, "growth": growth})
            for name, (rare, point) in FAMILIES.items()
            if rare is family
            for growth in config.switch_growths
        ]
        return race(named, ROWS[ROW], keys, config.horizon)

    runs = together([functools.partial(call, f) for f in (rare_index, rare_thompson)])
    shape = (-1, len(config.switch_growths), config.other_seeds)
    regret = [run.regret.reshape(shape) for run in runs]
    switches = [run.epoch.reshape(shape) for run in runs]
    return {"regret": np.concatenate(regret), "switches": np.concatenate(switches)}


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    axes = (
        ("policy", tuple(FAMILIES)),
        ("growth", config.switch_growths),
        ("seed", range(config.other_seeds)),
    )
    metrics = {
        "switch_regret": Metric(data["regret"], axes),
        "switches": Metric(data["switches"], axes),
    }
    claims = []
    always, rare = (config.switch_growths.index(growth) for growth in (0.0, 1.0))
    for name, regret, switches in zip(
        FAMILIES, data["regret"], data["switches"], strict=True
    ):
        value, interval = ratio_of_means(regret[rare], regret[always])
        claims.append(
            Claim(
                f"{row_title(ROW)}: mean regret, lazy({name}) with growth 1 "
                f"({switches[rare].mean():.0f} switches in {config.horizon:,} rounds) "
                f"over {name} itself",
                value,
                None,
                interval,
            )
        )
    return metrics, {"switches": _figure(config, data)}, tuple(claims)


def _figure(config, data):
    figure, panels = new_figure(
        f"Rare switches in {config.horizon:,} rounds: mean, 2 standard errors",
        panel=(5.6, 3.8),
    )
    axes = panels[0, 0]
    axes.set_title(row_title(ROW))
    for name, regret, switches in zip(
        FAMILIES, data["regret"], data["switches"], strict=True
    ):
        error = 2 * regret.std(axis=-1, ddof=1) / np.sqrt(regret.shape[-1])
        axes.errorbar(
            switches.mean(axis=-1),
            regret.mean(axis=-1),
            error,
            capsize=3,
            label=f"lazy({name})",
        )
    growths = config.switch_growths
    axes.set(
        xlabel=f"switches of the policy (growth {growths[-1]:g}, left, to "
        f"{growths[0]:g}, right)",
        ylabel="regret",
    )
    log_axes(axes, "xy")
    axes.legend()
    return figure
