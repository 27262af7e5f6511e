"""The table: all policies on five synthetic problems, and late feedback on one."""

import functools

import jax
import numpy as np

from experiments.claims import Claim, at_most
from experiments.eqol.config import Config
from experiments.eqol.policies import (
    ROWS,
    Named,
    all_policies,
    index_policies,
    perturbed,
    row_title,
)
from experiments.eqol.runs import race, ratio_of_means, together
from experiments.figures import GREY, PALETTE, log_axes, new_figure
from experiments.results import Metric

CHECKPOINTS = 12
LATE_ROW, HISTORY_ROW = "pool20", "fixed5"
SAFETY_ROW = "fixed5"
# What EQOL's mean regret may be of OFUL's, by problem.
FRACTIONS = {"fixed10": 0.55, "pool20": 0.8, "pool5": 0.55, "fixed5": 0.55}
BALANCED = {"fixed10": 0.75, "pool5": 0.75, "fixed5": 0.75}


def policies(config: Config, row: str) -> list[Named]:
    """Everything that runs on a problem; perturbed histories on the smallest alone."""
    world = ROWS[row]
    if not config.everything:
        return index_policies(world.noise)
    found = all_policies(world, config.horizon)
    if row == HISTORY_ROW:
        found.append(Named("LinPHE scale=R", perturbed, {"perturb": world.noise}))
    return found


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of every problem, of shape (policies, seeds, checkpoints)."""
    keys = [jax.random.fold_in(key, i) for i in range(len(ROWS))]
    keys = dict(zip(ROWS, keys, strict=True))

    def call(row, delay=0):
        named = policies(config, row) if not delay else index_policies(ROWS[row].noise)
        seeds = jax.random.split(keys[row], config.num_seeds)
        return race(
            named,
            ROWS[row],
            seeds,
            config.horizon,
            checkpoints=CHECKPOINTS,
            delay=delay,
        )

    calls = [functools.partial(call, row) for row in config.rows]
    if config.delay:
        calls.append(functools.partial(call, LATE_ROW, config.delay))
    races = together(calls)
    data = {row: race.regret for row, race in zip(config.rows, races, strict=False)}
    if config.delay:
        data["late"], data["late_gap"] = races[-1].regret, races[-1].gap[0]
    return data


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims of the table."""
    seeds = range(config.num_seeds)
    metrics = {}
    for row in config.rows:
        names = [policy.name for policy in policies(config, row)]
        axes = (("policy", names), ("seed", seeds))
        metrics[f"regret_{row}"] = Metric(data[row][..., -1], axes)
        metrics[f"mean_regret_{row}"] = Metric(
            data[row][..., -1].mean(axis=-1), axes[:1]
        )
    if config.delay:
        names = [policy.name for policy in index_policies(0.0)]
        metrics["regret_late"] = Metric(
            data["late"][..., -1], (("policy", names), ("seed", seeds))
        )
    return metrics, {"comparison": _figure(config, data)}, tuple(_claims(config, data))


def _finals(config, data, row):
    names = [policy.name for policy in policies(config, row)]
    return dict(zip(names, data[row][..., -1].astype(np.float64), strict=True))


def _claims(config, data):
    rows = {row: _finals(config, data, row) for row in config.rows}
    for name, fractions in (("EQOL", FRACTIONS), ("EQOL balanced", BALANCED)):
        for row, fraction in fractions.items():
            if row not in rows:
                continue
            value, interval = ratio_of_means(rows[row][name], rows[row]["OFUL"])
            yield Claim(
                f"{row_title(row)}: mean regret, {name} over OFUL",
                value,
                at_most(fraction),
                interval,
            )
    for row in FRACTIONS:
        if row in rows:
            worst = {name: regret.max() for name, regret in rows[row].items()}
            yield Claim(
                f"{row_title(row)}: regret of the worst seed, EQOL over OFUL",
                worst["EQOL"] / worst["OFUL"],
                at_most(1.0),
            )
    if SAFETY_ROW in rows:
        worst = {name: regret.max() for name, regret in rows[SAFETY_ROW].items()}
        for peer in ("greedy", "LinUCB alpha=R"):
            yield Claim(
                f"{row_title(SAFETY_ROW)}: regret of the worst seed, EQOL over {peer}",
                worst["EQOL"] / worst[peer],
                at_most(0.25),
            )
    for row, finals in rows.items():
        if "LinTS theory" in finals:
            value, interval = ratio_of_means(finals["LinTS theory"], finals["OFUL"])
            yield Claim(
                f"{row_title(row)}: mean regret, LinTS with the scale of theory over "
                "OFUL",
                value,
                None,
                interval,
            )
    if config.delay:
        yield _late_claim(config, data, rows[LATE_ROW]["EQOL"])


def _late_claim(config, data, prompt):
    late = data["late"][0, :, -1].astype(np.float64)
    allowed = 1.1 * prompt + config.delay * data["late_gap"].astype(np.float64)
    value, interval = ratio_of_means(late, allowed)
    return Claim(
        f"{row_title(LATE_ROW)}: all feedback {config.delay} rounds late, EQOL's mean "
        f"regret ({late.mean():.0f}) over 1.1 times that without delay "
        f"({prompt.mean():.0f}) plus {config.delay} times the largest gap",
        value,
        at_most(1.0),
        interval,
    )


def _figure(config, data):
    names = [p.name for p in max((policies(config, r) for r in config.rows), key=len)]
    figure, panels = new_figure(
        f"Regret after {config.horizon:,} rounds: every seed, and the mean over "
        f"{config.num_seeds} seeds (dashed: OFUL's)",
        columns=len(config.rows),
        panel=(2.7, 0.24 * len(names) + 1.1),
        sharey=True,
    )
    heights = np.arange(len(names))[::-1]
    for axes, row in zip(panels[0], config.rows, strict=True):
        finals = _finals(config, data, row)
        for height, name in zip(heights, names, strict=True):
            if name not in finals:
                continue
            regret = finals[name]
            colour = PALETTE[1] if name.startswith("EQOL") else PALETTE[0]
            axes.plot(
                regret,
                np.full(len(regret), height),
                ".",
                linestyle="",
                color=colour,
                alpha=0.35,
                markeredgewidth=0,
            )
            axes.plot(regret.mean(), height, "D", color=colour)
        axes.axvline(
            finals["OFUL"].mean(), color=GREY, linestyle="--", linewidth=1, marker=""
        )
        axes.set(yticks=heights, yticklabels=names, xlabel="regret")
        axes.set_title(row_title(row).replace(", R", "\nR"), fontsize=9)
        log_axes(axes, "x")
    return figure
