"""How much the two parameters of EQOL matter, and each branch of its bonus."""

import functools

import jax
import numpy as np

from experiments.claims import Claim
from experiments.eqol.config import Config
from experiments.eqol.policies import ROWS, Named, eqol_point, index, row_title
from experiments.eqol.runs import race, ratio_of_means, together
from experiments.figures import new_figure
from experiments.results import Metric

ABLATION = {
    "both": eqol_point(),
    "quadratic only": eqol_point(cap=np.inf),
    "cap only": eqol_point(a=np.inf),
    "neither": eqol_point(a=0.0),
}


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of shape (scales, caps, seeds), and of the ablation, by problem."""
    grid = [eqol_point(a, c) for a in config.heat_scales for c in config.heat_caps]
    points = [*grid, *ABLATION.values()]
    named = [Named(str(i), index, point) for i, point in enumerate(points)]
    keys = jax.random.split(key, config.few_seeds)
    races = together(
        functools.partial(race, named, ROWS[row], keys, config.horizon)
        for row in config.heat_rows
    )
    shape = (len(config.heat_scales), len(config.heat_caps), config.few_seeds)
    data = {}
    for row, found in zip(config.heat_rows, races, strict=True):
        final = found.regret[..., -1]
        data[f"map_{row}"] = final[: len(grid)].reshape(shape)
        data[f"ablation_{row}"] = final[len(grid) :]
    return data


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims of the maps and the ablation."""
    seeds = ("seed", range(config.few_seeds))
    metrics, claims = {}, []
    for row in config.heat_rows:
        metrics[f"sensitivity_{row}"] = Metric(
            data[f"map_{row}"],
            (("a", config.heat_scales), ("cap", config.heat_caps), seeds),
        )
        ablation = data[f"ablation_{row}"]
        metrics[f"ablation_{row}"] = Metric(
            ablation, (("bonus", list(ABLATION)), seeds)
        )
        for name, regret in zip(list(ABLATION)[1:], ablation[1:], strict=True):
            value, interval = ratio_of_means(regret, ablation[0])
            claims.append(
                Claim(
                    f"{row_title(row)}: mean regret, {name} over both branches",
                    value,
                    None,
                    interval,
                )
            )
    return metrics, {"sensitivity": _figure(config, data)}, tuple(claims)


def _figure(config, data):
    figure, panels = new_figure(
        f"EQOL's mean regret, {config.horizon:,} rounds, {config.few_seeds} seeds",
        columns=len(config.heat_rows),
        panel=(4.4, 3.6),
    )
    for axes, row in zip(panels[0], config.heat_rows, strict=True):
        means = data[f"map_{row}"].mean(axis=-1)
        logs = np.log(means)
        axes.imshow(logs, origin="lower", aspect="auto", cmap="viridis_r")
        for (i, j), value in np.ndenumerate(means):
            dark = logs[i, j] > (logs.min() + logs.max()) / 2
            axes.text(
                j, i, f"{value:.0f}", ha="center", va="center", fontsize=8,
                color="white" if dark else "black",
            )  # fmt: skip
        axes.set(
            xticks=range(len(config.heat_caps)),
            yticks=range(len(config.heat_scales)),
            xlabel="cap",
            ylabel="a",
            title=row_title(row),
        )
        axes.set_xticklabels([f"{c:g}" for c in config.heat_caps])
        axes.set_yticklabels([f"{a:g}" for a in config.heat_scales])
        axes.grid(visible=False)
    return figure
