"""The exact table for one coordinate of levy: the class of functions is broad."""

import numpy as np

from experiments.claims import Claim, at_most
from experiments.figures import GREY, new_figure
from experiments.results import Metric
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.landscapes import LEVY
from experiments.step_size_decay.oracle_tables import (
    decay_runs,
    fixed_against_decay,
    largest_deviation,
    queries_by_rate,
    ratio_claims,
)

TARGETS = (0.15, 0.12, 0.1, 0.08)
DECAY_TEMPERATURES = np.geomspace(0.4, 0.08, 10)
STEP = 0.02
FIXED_QUERIES = {0.15: 8_149, 0.12: 20_424, 0.1: 49_076, 0.08: 206_303}
LEAST_RATIOS = {0.15: 1.3, 0.12: 2.4, 0.1: 4.5, 0.08: 11.0}


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Queries of every fixed rate, and the decay runs."""
    del key
    temperatures = np.geomspace(0.3, 0.08, 16)[: config.num_levy_fixed]
    _, decay = decay_runs(LEVY, STEP, TARGETS, DECAY_TEMPERATURES, config.levy_powers)
    return {
        "fixed": queries_by_rate(LEVY, temperatures, TARGETS),
        "decay": decay.queries,
        "num_queries": decay.num_queries,
        "expected": decay.expected,
    }


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the table."""
    fixed, decay = data["fixed"].min(axis=0), data["decay"]
    axes = (("target", TARGETS),)
    metrics = {
        "levy_fixed_queries": Metric(fixed, axes),
        "levy_decay_queries": Metric(decay, axes),
        "levy_decay_run_value": Metric(
            data["expected"], (("queries", data["num_queries"].astype(int)),)
        ),
    }
    claims = (
        Claim(
            f"One coordinate of levy: exact queries of the best of "
            f"{config.num_levy_fixed} fixed rates equal the known ones (largest "
            "relative deviation)",
            largest_deviation(TARGETS, fixed, FIXED_QUERIES),
            at_most(0.02),
        ),
        *ratio_claims("One coordinate of levy", TARGETS, fixed / decay, LEAST_RATIOS),
    )
    return metrics, {"levy": _figure(fixed, decay)}, claims


def _figure(fixed, decay):
    figure, panels = new_figure(
        "One coordinate of levy: another landscape, the same picture", columns=2
    )
    left, right = panels[0]
    grid = LEVY.grid(STEP)
    left.plot(grid, np.asarray(LEVY.h(grid)), marker="", color="#000000")
    start = LEVY.start(grid)
    left.fill_between(
        grid, start / start.max(), color=GREY, alpha=0.3, label="where chains start"
    )
    left.set(xlabel="x", ylabel="h(x)", ylim=(0, 6), title="the landscape")
    left.legend()
    fixed_against_decay(right, 1 / np.array(TARGETS), fixed, decay)
    right.set(xlabel="1 / excess", title="queries, exact")
    right.legend()
    return figure
