"""The tables as simulation: decay, every fixed rate and other schedules at equal N.

Rastrigin with A = 1 in d dimensions, gradients with noise of standard deviation 10,
starts N(3, 0.5^2) in every coordinate. Coordinates are independent, so the exact law of
one predicts the mean of f / d.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import CubicSpline

from experiments.claims import Claim, at_most
from experiments.figures import GREY, log_axes, new_figure
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from experiments.step_size_decay import baselines
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.landscapes import RASTRIGIN
from experiments.step_size_decay.races import (
    COLD,
    HOT,
    OURS,
    ROWS,
    SIGMA,
    STARTS,
    best_point,
    families,
    fixed_rows,
    fixed_temperatures,
    noisy_sgd,
    race,
    rastrigin,
    ratio_of_best,
    schedule_rows,
    sgd,
)
from jaxopt_suite.stochastic import annealing_oracle as oracle
from jaxopt_suite.stochastic import schedules

# The simulated starts have no end, so the oracle's grid has to reach farther than for
# the tables.
COORDINATE = RASTRIGIN._replace(half_width=5.2)
STAGES_PER_ROW = 4
GRIDS = (0.1, 0.05, COLD)

rademacher_sgd = sgd(SIGMA, "rademacher")


def temperature_rows(config: Config):
    """Temperatures along the run: the fixed ones, then the starts of each family."""
    n = config.queries
    starts = np.array(STARTS if config.baselines else (HOT,))
    names = families(n) if config.baselines else {OURS: families(n)[OURS]}
    rows = [schedule_rows(family, starts, n) for family in names.values()]
    return jnp.concatenate([fixed_rows(fixed_temperatures(config), n), *rows])


def number_of_ours(config: Config) -> int:
    """Which row is the decay from HOT to COLD."""
    return config.simulated_rates + (STARTS.index(HOT) if config.baselines else 0)


def simulate(config: Config, key) -> dict[str, Any]:
    """Values f/d of all runs, and of the control with other noise."""
    temperatures = temperature_rows(config)
    rates = jnp.asarray(schedules.rate_for_temperature(temperatures, SIGMA))
    run = functools.partial(
        race, landscape=rastrigin(config.dimension), num_steps=config.queries
    )
    run_key, control_key, baseline_key = jax.random.split(key, 3)
    value = run(run_key, rates, make=noisy_sgd, num_chains=config.num_seeds)
    found: dict[str, Any] = {"value": value / config.dimension}
    if config.baselines:
        chosen = jnp.r_[: config.simulated_rates, number_of_ours(config)]
        control = run(
            control_key,
            rates[chosen],
            make=rademacher_sgd,
            num_chains=config.baseline_seeds,
            rows=1,
        )
        found["control"] = control[:, -1] / config.dimension
        found["baselines"] = baselines.simulate(config, baseline_key)
    return found


def compute(config: Config, key) -> dict[str, Any]:
    """All simulations, and what the oracle says."""
    return jax.device_get(simulate(config, key)) | predictions(config)


def shapes(config: Config) -> None:
    """Traces all runs."""
    simulated = functools.partial(simulate, config)
    value = jax.eval_shape(simulated, jax.random.key(0))["value"]
    assert value.shape[1:] == (ROWS + 1, config.num_seeds)


def _grid(temperature: float) -> np.ndarray:
    """A grid on which the oracle is exact: one of few, as each size is a compile."""
    return COORDINATE.coarsest_grid(max(t for t in GRIDS if t <= 1.001 * temperature))


def predictions(config: Config) -> dict[str, np.ndarray]:
    """Exact E h after all queries at every fixed rate, and along our decay."""
    fixed = []
    for temperature in fixed_temperatures(config):
        grid = _grid(temperature)
        found = oracle.schedule_queries(
            COORDINATE.h,
            COORDINATE.gradient,
            grid,
            SIGMA,
            COORDINATE.start(grid),
            np.ones(1),
            COORDINATE.rates([temperature]),
            (int(np.log2(config.queries)),),
        )
        fixed.append(found.expected[0])
    return {"predicted_fixed": np.array(fixed), "predicted_decay": _along_decay(config)}


def _along_decay(config: Config) -> np.ndarray:
    """E h at every row, by a staircase whose steps are too small to matter."""
    stages = ROWS * STAGES_PER_ROW
    temperatures = HOT * (COLD / HOT) ** ((np.arange(stages) + 0.5) / stages)
    grid = _grid(HOT)
    law = COORDINATE.start(grid)
    found = [oracle.expected_value(law, COORDINATE.h, grid)]
    for row in temperatures.reshape(ROWS, STAGES_PER_ROW):
        # Colder laws need a finer grid; all laws are smooth on theirs.
        finer = _grid(row[-1])
        law = np.maximum(CubicSpline(grid, law)(finer), 0.0)
        grid, law = finer, law / law.sum()
        law = oracle.propagate_stages(
            COORDINATE.gradient,
            grid,
            COORDINATE.rates(row),
            SIGMA,
            law,
            config.queries // stages,
        )
        found.append(oracle.expected_value(law, COORDINATE.h, grid))
    return np.array(found)


def summarize(config: Config, data: dict[str, Any]):
    """Metrics, figures and claims from the values, (rows of rates, rows + 1, seeds)."""
    value, temperatures = data["value"], fixed_temperatures(config)
    final, fixed = value[:, -1], config.simulated_rates
    ours, seeds = final[number_of_ours(config)], range(config.num_seeds)
    by_rate = (("temperature", [f"{t:.4g}" for t in temperatures]),)
    names = list(families(config.queries)) if config.baselines else [OURS]
    starts = STARTS if config.baselines else (HOT,)
    shape = (len(names), len(starts), config.num_seeds)
    groups = final[fixed:].reshape(shape)
    metrics = {
        "rastrigin_fixed": Metric(final[:fixed], (*by_rate, ("seed", seeds))),
        "rastrigin_fixed_oracle": Metric(data["predicted_fixed"], by_rate),
        "rastrigin_schedules": Metric(
            groups,
            (("schedule", names), ("start", starts), ("seed", seeds)),
        ),
        "rastrigin_decay_oracle": Metric(data["predicted_decay"][-1]),
    }
    figures = {"rastrigin_simulation": _figure(config, data)}
    claims = tuple(_claims(config, data, final[:fixed], ours))
    if config.baselines:
        finals = {"fixed rate": final[:fixed], **dict(zip(names, groups, strict=True))}
        others = baselines.summarize(config, finals | data["baselines"])
        return metrics | others[0], figures | others[1], claims + others[2]
    return metrics, figures, claims


def _claims(config, data, fixed, ours):
    setting = f"Rastrigin, A = 1, d = {config.dimension}, {config.queries:,} queries"
    ratio, interval = ratio_of_best(ours[None], fixed)
    yield Claim(
        f"{setting}: mean f of decay over that of the best of {len(fixed)} fixed rates",
        ratio,
        at_most(0.6),
        interval,
    )
    yield Claim(
        f"{setting}: mean f/d of decay (the oracle says "
        f"{data['predicted_decay'][-1]:.4f})",
        float(ours.mean()),
        interval=bootstrap_interval(ours),
    )
    best = fixed[best_point(fixed)]
    yield Claim(
        f"{setting}: mean f/d of the best fixed rate, T = "
        f"{fixed_temperatures(config)[best_point(fixed)]:.3f} (the oracle's best: "
        f"{data['predicted_fixed'].min():.4f})",
        float(best.mean()),
        interval=bootstrap_interval(best),
    )
    # Colder chains leave a valley too rarely for a standard error to mean anything.
    warm = fixed_temperatures(config) >= 0.1
    rows = np.concatenate([fixed[warm], ours[None]])
    expected = [*data["predicted_fixed"][warm], data["predicted_decay"][-1]]
    errors = rows.std(axis=-1, ddof=1) / np.sqrt(rows.shape[-1])
    yield Claim(
        f"{setting}: simulation against the oracle (largest distance in standard "
        f"errors over decay and the {len(rows) - 1} fixed rates with T >= 0.1)",
        float(np.max(np.abs(rows.mean(axis=-1) - expected) / errors)),
    )
    if "control" in data:
        ratio, interval = ratio_of_best(data["control"][-1:], data["control"][:-1])
        yield Claim(
            f"{setting}: the same ratio, decay over the best fixed rate, with fair "
            "signs for noise",
            ratio,
            interval=interval,
        )


def _figure(config, data):
    figure, panels = new_figure(
        f"Rastrigin, A = 1, d = {config.dimension}: mean f/d of SGD with noisy "
        f"gradients, {config.num_seeds} seeds",
        columns=2,
    )
    left, right = panels[0]
    means = data["value"].mean(axis=-1)
    temperatures, fixed = fixed_temperatures(config), config.simulated_rates
    queries = np.linspace(0, config.queries, ROWS + 1)
    best = best_point(data["value"][:fixed, -1])
    shown = {
        "decay": number_of_ours(config),
        f"best fixed, T = {temperatures[best]:.2f}": best,
        f"hotter, T = {temperatures[best // 2]:.2f}": best // 2,
        f"colder, T = {temperatures[(best + fixed) // 2]:.2f}": (best + fixed) // 2,
    }
    for name, row in shown.items():
        left.plot(queries[1:], means[row, 1:], label=name, markevery=4)
    left.plot(
        queries[1:],
        data["predicted_decay"][1:],
        color="#000000",
        linestyle="--",
        marker="",
        label="decay, oracle",
    )
    left.set(xlabel="gradient queries", ylabel="mean f/d")
    log_axes(left, "y")
    # Room for the names above the lines.
    left.set_ylim(0.05, 60)
    left.legend(loc="upper right")
    _against_the_rate(right, config, data, means[:, -1])
    return figure


def _against_the_rate(axes, config, data, means):
    temperatures, fixed = fixed_temperatures(config), config.simulated_rates
    decay = means[number_of_ours(config)]
    axes.plot(temperatures, means[:fixed], linestyle="", label="fixed rate")
    axes.plot(
        temperatures,
        data["predicted_fixed"],
        color=GREY,
        linestyle="--",
        marker="",
        label="fixed rate, oracle",
    )
    if "control" in data:
        axes.plot(
            temperatures,
            data["control"][:-1].mean(axis=-1),
            "x",
            linestyle="",
            label="fixed rate, noise of fair signs",
        )
    axes.axhline(decay, color="#D55E00", marker="", label="decay")
    axes.set(
        xlabel="temperature of the fixed rate",
        title=f"after {config.queries:,} queries",
    )
    log_axes(axes, ticks=(0.05, 0.1, 0.2, 0.4, 0.8))
    axes.legend()
