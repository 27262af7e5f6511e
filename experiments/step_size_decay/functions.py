"""Four benchmark landscapes: decay against fixed rates, both at the best of a grid.

The gradient noise is such that the largest stable rate, 0.7 / L, is at the hottest
temperature that is tried.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_most
from experiments.figures import log_axes, new_figure
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.races import (
    ROWS,
    best_point,
    fixed_rows,
    race,
    ratio_of_best,
    schedule_rows,
    sgd,
)
from jaxopt_suite import problems
from jaxopt_suite.stochastic import schedules

DIMENSION = 8
# Shares of the hottest temperature: of the fixed rates, of the starts of the decays,
# and where the decays end.
FIXED = np.geomspace(1.0, 0.003, 14)
STARTS = (1.0, 0.5, 0.25, 0.12)
END = 0.003
# A few chains stuck far out rule a mean: 32 of them leave griewank's ratio between 0.3
# and 1.3. The thresholds are for all chains; the first 32 are reported beside.
FEW = 32


class Setting(NamedTuple):
    """A landscape with the scales of its runs, and what decay has to gain on it.

    Attributes:
        landscape: makes it.
        smoothness: L where the runs are.
        hottest: the temperature of the rate 0.7 / L.
        threshold: best decay over best fixed rate.
    """

    landscape: Callable[[], problems.Landscape]
    smoothness: float
    hottest: float
    threshold: float

    @property
    def noise_std(self) -> float:
        """Standard deviation of the gradient noise."""
        return float(np.sqrt(2 * self.hottest * self.smoothness / 0.7))


_make = functools.partial
SETTINGS = {
    "rastrigin": Setting(_make(problems.rastrigin, DIMENSION, A=1.0), 41.5, 1.5, 0.75),
    "griewank": Setting(
        _make(problems.griewank, DIMENSION, scale=40.0), 1.05, 2.0, 0.65
    ),
    "ackley": Setting(_make(problems.ackley, DIMENSION), 20.0, 0.3, 0.25),
    "levy": Setting(_make(problems.levy, DIMENSION, offset=0.0), 40.0, 5.0, 0.8),
}
# What makes a run is static: made once.
MAKERS = {name: sgd(setting.noise_std) for name, setting in SETTINGS.items()}


def temperature_rows(name: str, num_steps: int):
    """Temperatures along the run: the fixed ones, then those of the decays."""
    hottest = SETTINGS[name].hottest

    def decay(share):
        return schedules.geometric(share * hottest, END * hottest, num_steps)

    return jnp.concatenate(
        [
            fixed_rows(FIXED * hottest, num_steps),
            schedule_rows(decay, STARTS, num_steps),
        ]
    )


def run(config: Config, key, name: str):
    """Values along all runs on a landscape, (rows of rates, rows + 1, seeds)."""
    setting = SETTINGS[name]
    temperatures = temperature_rows(name, config.landscape_queries)
    return race(
        key,
        schedules.rate_for_temperature(temperatures, setting.noise_std),
        make=MAKERS[name],
        landscape=setting.landscape,
        num_steps=config.landscape_queries,
        num_chains=config.landscape_seeds,
    )


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Values along all runs, by landscape."""
    keys = jax.random.split(key, len(SETTINGS))
    return {
        name: np.asarray(run(config, keys[list(SETTINGS).index(name)], name))
        for name in config.landscapes
    }


def shapes(config: Config) -> None:
    """Traces the runs on every landscape."""
    for name in SETTINGS:
        value = jax.eval_shape(
            functools.partial(run, config, name=name), jax.random.key(0)
        )
        assert value.shape[1:] == (ROWS + 1, config.landscape_seeds)


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the values."""
    names = config.landscapes
    values = np.stack([data[name] for name in names])
    final, diverged = values[:, :, -1], ~np.isfinite(values).all(axis=2)
    landscape = ("landscape", names)
    labels = [f"fixed {share:.3g}" for share in FIXED]
    labels += [f"decay from {share:g}" for share in STARTS]
    rates = ("temperature", labels)
    seeds = ("seed", range(config.landscape_seeds))
    metrics = {
        "landscape_value": Metric(final, (landscape, rates, seeds)),
        "landscape_median": Metric(np.median(final, axis=-1), (landscape, rates)),
        "landscape_diverged": Metric(diverged.sum(axis=-1), (landscape, rates)),
    }
    claims = []
    for name, last in zip(names, final, strict=True):
        claims.append(_claim(config, name, last, SETTINGS[name].threshold))
        if config.landscape_seeds > FEW:
            claims.append(_claim(config, name, last[:, :FEW], None))
    return metrics, {"landscapes": _figure(config, data)}, tuple(claims)


def _claim(config, name, final, threshold):
    """Decay over fixed rates, both at their best on the same chains."""
    count = len(FIXED)
    fixed, decay = final[:count], final[count:]
    ratio, interval = ratio_of_best(decay, fixed)
    means = [v[best_point(v)].mean() for v in (fixed, decay)]
    medians = [np.median(v[best_point(v)]) for v in (fixed, decay)]
    return Claim(
        f"{name.capitalize()}, d = {DIMENSION}, {config.landscape_queries:,} queries, "
        f"{final.shape[1]} seeds: mean f of the best of {len(STARTS)} decays over the "
        f"best of {count} fixed rates ({means[1]:.3g} over {means[0]:.3g}; their "
        f"medians {medians[1]:.3g} and {medians[0]:.3g})",
        ratio,
        None if threshold is None else at_most(threshold),
        interval,
    )


def _figure(config, data):
    figure, panels = new_figure(
        f"Mean f after {config.landscape_queries:,} queries, d = {DIMENSION}, and its "
        "95% interval",
        rows=2,
        columns=len(config.landscapes),
        panel=(3.2, 2.6),
    )
    queries = np.linspace(0, config.landscape_queries, ROWS + 1)
    for (above, below), name in zip(panels.T, config.landscapes, strict=True):
        value, hottest = data[name], SETTINGS[name].hottest
        final = value[:, -1]
        means = final.mean(axis=-1)
        spread = np.array([bootstrap_interval(row)[:2] for row in final])
        groups = (
            ("fixed", FIXED, slice(0, len(FIXED))),
            ("decay, by its start", STARTS, slice(len(FIXED), None)),
        )
        for label, shares, rows in groups:
            low, high = np.abs(spread[rows] - means[rows, None]).T
            above.errorbar(
                np.array(shares) * hottest,
                means[rows],
                (low, high),
                linestyle="",
                label=label,
            )
            best = rows.start + best_point(final[rows])
            below.plot(queries[1:], value[best, 1:].mean(axis=-1), markevery=4)
        above.set(title=name, xlabel="temperature")
        log_axes(above)
        below.set(xlabel="gradient queries")
        log_axes(below, "y")
    panels[0, 0].set_ylabel("mean f at the end")
    panels[1, 0].set_ylabel("mean f, best of each")
    panels[0, 0].legend()
    return figure
