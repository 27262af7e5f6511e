"""What restarts are worth that come late, or at the wrong times."""

import functools

import jax
import numpy as np

from experiments.claims import Claim
from experiments.dars_dbco.benchmarks import DELAY, Cell, ratio_to_dars
from experiments.dars_dbco.config import Config
from experiments.dars_dbco.runs import Case, equal_starts, play, together
from experiments.figures import GREY, new_figure
from experiments.results import Metric

LATE_BY = 0.05


def schedules(config: Config) -> dict[str, tuple[int, ...]]:
    """Restarts by name, on the convex benchmark's judged cell."""
    cell = Cell(*config.judged[0])
    true = equal_starts(cell.horizon, cell.count)
    late = tuple(s + round(LATE_BY * cell.length) * (s > 0) for s in true)
    found = {"DARS": true, f"{LATE_BY:.0%} of L late": late}
    for part in config.periods:
        period = round(part * cell.length)
        found[f"every {part:.3g} L"] = tuple(range(0, cell.horizon, period))
    return found


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of every schedule, of shape (schedules, seeds)."""
    cell = Cell(*config.judged[0])
    keys = jax.random.split(key, config.num_seeds)
    calls = [
        functools.partial(
            play,
            Case(cell.horizon, starts),
            keys,
            delays=(DELAY,),
            lengths=(cell.length,),
            checkpoints=cell.count,
        )
        for starts in schedules(config).values()
    ]
    return {"regret": np.stack([regret[:, 0, -1] for regret in together(calls)])}


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, a figure, and the price of each schedule."""
    names, regret = list(schedules(config)), data["regret"].astype(np.float64)
    axes = (("restarts", names), ("seed", range(config.num_seeds)))
    claims = [
        Claim(
            f"Benchmark 1, restarts {name}: regret over that at the true starts",
            *_ratio(row, regret[0]),
        )
        for name, row in zip(names[1:], regret[1:], strict=True)
    ]
    return (
        {"restarts": Metric(regret, axes)},
        {"restarts": _figure(config, names, regret)},
        tuple(claims),
    )


def _ratio(regret, ours):
    value, interval = ratio_to_dars(regret, ours)
    return value, None, interval


def _figure(config, names, regret):
    cell = Cell(*config.judged[0])
    figure, panels = new_figure(
        f"Restarts at other times: regret, {cell.count} segments of L = {cell.length}",
        panel=(5.4, 0.3 * len(names) + 1.0),
    )
    axes, rows = panels[0, 0], np.arange(len(names))[::-1]
    axes.plot(regret, rows[:, None], ".", color=GREY, markersize=3)
    axes.plot(regret.mean(axis=1), rows, linestyle="")
    axes.axvline(regret[0].mean(), color=GREY, linewidth=1, marker="")
    axes.set_yticks(rows, names)
    axes.set(xlabel="regret (large: mean; small: seeds)", xlim=(0, None))
    return figure
