"""How fast one may cool: every schedule at equal budget, and the laws along the way.

All laws are exact. Every family of schedules is a staircase of 14 stages from the same
hot temperature to the same cold one, so that they differ in their shape alone.
"""

import functools
import itertools
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from experiments.claims import Claim, at_most
from experiments.figures import GREY, PALETTE, log_axes, new_figure
from experiments.results import Metric
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.landscapes import BARRIER, RASTRIGIN
from jaxopt_suite.stochastic import annealing_oracle as oracle
from jaxopt_suite.stochastic import schedules
from jaxopt_suite.stochastic.schedule_planning import plan_schedule

STAGES, HOT = 14, 0.6
WELL = (-0.5, 0.5)
FIXED_TEMPERATURES = np.geomspace(0.45, 0.14, 12)
PLAN_COLDEST = 0.08
# Numbers of stages after which the laws are drawn.
STOPS = (0, 1, 5, 8, 11, 14)
FIXED_HOT, FIXED_COLD = 0.25, 0.1
FAST_POWER = 7
COLOURS = ("#000000", *PALETTE[:6], "#8C510A", "#BBBBBB", GREY)
HEAT = LinearSegmentedColormap.from_list(
    "heat", ["#0072B2", "#6A51A3", "#B5446E", "#D55E00", "#E69F00"]
)


@functools.cache
def families(coldest: float) -> dict[str, np.ndarray]:
    """Temperatures of the stages; the count of a schedule is that of the stage."""
    last = STAGES - 1
    ratio = HOT / coldest
    found: dict[str, Any] = {
        "geometric": schedules.geometric(HOT, coldest, last),
        "linear": schedules.wsd(HOT, 0, 0, last, coldest),
        "cosine": schedules.cosine(HOT, last, coldest),
        "stable, then linear": schedules.wsd(HOT, 0, last // 2, last - 6, coldest),
        "three drops": schedules.stagewise(HOT, ratio ** (-1 / 3), 4),
        "1/k": schedules.polynomial(HOT, last / (ratio - 1), 1.0),
        "1/sqrt(k)": schedules.polynomial(HOT, last / (ratio**2 - 1), 0.5),
        "two cycles": schedules.cyclic(HOT, coldest, STAGES // 2),
    }
    # Rounding must not end below the temperature that the grid is made for.
    return {
        name: np.maximum(np.asarray(schedule(np.arange(STAGES)), float), coldest)
        for name, schedule in found.items()
    }


def classical(queries: int) -> np.ndarray:
    """B / log k at the middle of every stage: what never fails, given forever."""
    middles = (np.arange(STAGES) + 0.5) * queries / STAGES
    temperatures: Any = schedules.inverse_log(BARRIER)(middles)
    return np.minimum(np.asarray(temperatures, np.float64), HOT)


def names(config: Config) -> tuple[str, ...]:
    """Everything that is compared."""
    return (*families(config.quench_coldest), "c/log(k)", "best fixed rate")


def budgets(config: Config) -> np.ndarray:
    """Numbers of queries."""
    return STAGES * 2 ** np.array(config.quench_powers)


def _judge(grid, law) -> tuple[float, float]:
    """Mean excess, and the mass in the well of the minimum."""
    return (
        float(oracle.expected_value(law, RASTRIGIN.h, grid)),
        float(oracle.well_mass(law, grid, WELL)),
    )


def _stages(temperatures, powers, *, law=None, grid):
    """The laws after stages of 2^i steps at these temperatures, for each i."""
    return oracle.schedule_queries(
        RASTRIGIN.h,
        RASTRIGIN.gradient,
        grid,
        RASTRIGIN.noise_std,
        RASTRIGIN.start(grid) if law is None else law,
        np.array([1.0]),
        RASTRIGIN.rates(temperatures),
        powers,
    ).law


def _after(temperatures, length: int, grid):
    """Excess and mass in the well after stages of any length, by temperature."""
    law = oracle.propagate_stages(
        RASTRIGIN.gradient,
        grid,
        RASTRIGIN.rates(temperatures),
        RASTRIGIN.noise_std,
        RASTRIGIN.start(grid),
        length,
    )
    return _judge(grid, law)


def _others(counts) -> list[list[tuple[float, float]]]:
    """The classical schedule, whose stages depend on the budget, and fixed rates."""
    # One grid for all budgets of a method: every new grid is a compile of h.
    grid = RASTRIGIN.coarsest_grid(classical(max(counts)).min())
    logarithmic = [_after(classical(n), n // STAGES, grid) for n in counts]
    grid = RASTRIGIN.coarsest_grid(FIXED_TEMPERATURES.min())
    fixed = [min(_after([t], n, grid) for t in FIXED_TEMPERATURES) for n in counts]
    return [logarithmic, fixed]


def columns(config: Config) -> dict[str, tuple[np.ndarray, int]]:
    """Runs whose laws are drawn: temperatures of the stages, and i of their length."""
    decay, power = families(config.quench_coldest)["geometric"], config.picture_power
    return {
        "cooled slowly": (decay, power),
        "cooled too fast": (decay, FAST_POWER),
        "fixed and hot": (np.full(STAGES, FIXED_HOT), power),
        "fixed and cold": (np.full(STAGES, FIXED_COLD), power),
    }


def _laws_along(temperatures, power, grid) -> np.ndarray:
    laws = [RASTRIGIN.start(grid)]
    for first, last in itertools.pairwise(STOPS):
        laws.append(
            _stages(temperatures[first:last], (power,), law=laws[-1], grid=grid)[0]
        )
    return np.stack(laws)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Excess and success of every family, laws along four runs, and a planned one."""
    del key
    grid = RASTRIGIN.coarsest_grid(config.quench_coldest)
    judged = [
        [_judge(grid, law) for law in _stages(t, config.quench_powers, grid=grid)]
        for t in families(config.quench_coldest).values()
    ]
    judged += _others([int(n) for n in budgets(config)])
    plan_grid = RASTRIGIN.coarsest_grid(PLAN_COLDEST)
    plan = plan_schedule(
        RASTRIGIN.h,
        config.plan_stages * config.plan_length,
        grid=plan_grid,
        p0=RASTRIGIN.start(plan_grid),
        noise_std=RASTRIGIN.noise_std,
        hottest=HOT,
        coldest=PLAN_COLDEST,
        num_stages=config.plan_stages,
        num_iterations=config.plan_iterations,
    )
    return {
        "judged": np.array(judged),
        "grid": grid,
        "laws": np.stack([_laws_along(*run, grid) for run in columns(config).values()]),
        "plan": plan.temperatures,
        "plan_values": np.array([plan.expected_value, plan.geometric_value]),
        "plan_checked": np.array(
            _after(plan.temperatures, config.plan_length, plan_grid)
        ),
    }


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the laws."""
    axes = (("schedule", names(config)), ("queries", budgets(config)))
    excess, success = np.moveaxis(data["judged"], -1, 0)
    metrics = {
        "quench_excess": Metric(excess, axes),
        "quench_success": Metric(success, axes),
        "plan_excess": Metric(
            data["plan_values"], (("schedule", ("planned", "geometric")),)
        ),
        "plan_temperature": Metric(
            data["plan"], (("stage", range(config.plan_stages)),)
        ),
    }
    claims = (
        *_quench_claims(config, excess, success),
        *_plan_claims(config, excess, data),
    )
    figures = {
        "cooling": _cooling_figure(config, data),
        "quench": _quench_figure(config, excess, success, data),
    }
    return metrics, figures, claims


def _plan_claims(config, excess, data):
    planned, geometric = data["plan_values"]
    stages = f"{config.plan_stages} stages of {config.plan_length} steps"
    yield Claim(
        f"A schedule planned through the exact law, {stages}: excess over that of "
        "geometric decay between the same temperatures",
        planned / geometric,
        at_most(np.nextafter(1.0, 0.0)),
    )
    budget = config.plan_stages * config.plan_length
    if budget in budgets(config):
        rivals = excess[:, list(budgets(config)).index(budget)]
        best = int(np.argmin(rivals))
        yield Claim(
            f"The same over the best other schedule of {budget:,} steps, "
            f"{names(config)[best]} to T = {config.quench_coldest:g}",
            planned / rivals[best],
        )
    yield Claim(
        "The law of the planned schedule, computed anew on the host: relative "
        "deviation from the planner's excess",
        abs(data["plan_checked"][0] / planned - 1),
        at_most(1e-6),
    )


def _quench_claims(config, excess, success):
    shown = names(config)
    geometric, fixed = shown.index("geometric"), shown.index("best fixed rate")
    counts = budgets(config)
    yield Claim(
        f"Geometric decay in {counts[0]:,} steps is too fast: probability that a "
        "coordinate ends in the wrong well",
        1 - success[geometric, 0],
    )
    yield Claim(
        f"The same decay in {counts[-1]:,} steps: that probability",
        1 - success[geometric, -1],
    )
    yield Claim(
        f"Geometric decay against the best fixed rate at {counts[-1]:,} steps: mean "
        "excess over mean excess",
        excess[geometric, -1] / excess[fixed, -1],
    )
    best = int(np.argmin(excess[:, -1]))
    yield Claim(
        f"Best of all at {counts[-1]:,} steps: {shown[best]}; its excess over that of "
        "geometric decay",
        excess[best, -1] / excess[geometric, -1],
    )


def _cooling_figure(config, data):
    figure, panels = new_figure(
        "Rastrigin, A = 1, one coordinate: the exact law of SGD from its start (top) "
        "to its end (bottom), over the landscape",
        columns=len(columns(config)),
        panel=(3.3, 4.6),
        sharex=True,
        sharey=True,
    )
    grid = data["grid"]
    shades = np.log(HOT / config.quench_coldest)
    for axes, (name, (temperatures, power)), laws in zip(
        panels[0], columns(config).items(), data["laws"], strict=True
    ):
        height = np.asarray(RASTRIGIN.h(grid), np.float64)
        axes.fill_between(
            grid, height / 12 - 1.2, -2.0, color=GREY, alpha=0.3, zorder=3
        )
        for row, (stop, law) in enumerate(zip(STOPS, laws, strict=True)):
            base = len(STOPS) - 1 - row
            temperature = temperatures[max(stop - 1, 0)]
            warm = 1 - np.log(HOT / temperature) / shades
            colour = GREY if stop == 0 else HEAT(warm)
            axes.fill_between(
                grid, base + 0.92 * law / law.max(), base, color=colour, alpha=0.85
            )
            axes.axhline(base, color=colour, linewidth=0.6, marker="")
            steps = stop * 2**power
            label = "start" if stop == 0 else f"{steps:,}\nT = {temperature:.2g}"
            axes.text(-2.4, base + 0.08, label, fontsize=7.5, va="bottom")
        excess, success = _judge(grid, laws[-1])
        axes.set(
            title=f"{name}\nexcess {excess:.3f}, {success:.1%} in the well",
            xlabel="x",
            xlim=(-2.5, 4.2),
            ylim=(-1.25, len(STOPS)),
            yticks=[],
        )
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
    return figure


def _quench_figure(config, excess, success, data):
    figure, panels = new_figure(
        "Rastrigin, A = 1: every schedule at equal budget, exact",
        columns=3,
        panel=(4.6, 3.6),
    )
    left, middle, right = panels[0]
    for index, name in enumerate(names(config)):
        look: dict[str, Any] = {"color": COLOURS[index], "marker": "", "label": name}
        if name in ("geometric", "best fixed rate"):
            look["linewidth"] = 2.5
        for axes, lines in ((left, excess), (middle, 1 - success)):
            axes.plot(budgets(config), lines[index], **look)
    left.set(ylabel="mean excess per coordinate", xlabel="queries")
    middle.set(ylabel="probability of the wrong well", xlabel="queries")
    for axes in (left, middle):
        log_axes(axes)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=len(labels))
    stages = np.arange(config.plan_stages)
    right.plot(stages, data["plan"], label="planned")
    right.plot(
        stages,
        np.geomspace(HOT, PLAN_COLDEST, config.plan_stages),
        label="geometric",
    )
    planned, geometric = data["plan_values"]
    right.set(
        xlabel="stage",
        ylabel="temperature",
        title=f"planned: excess {planned:.4f} against {geometric:.4f}",
    )
    log_axes(right, "y")
    right.legend()
    return figure
