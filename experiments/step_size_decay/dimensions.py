"""Decay for as many queries as the oracle says, in d dimensions: is the excess 1 there?

A total excess of 1 is one of 1/d per coordinate, whose queries the oracle counts; the
simulation runs as many in all d coordinates.
"""

import functools

import jax
import numpy as np

from experiments.claims import Claim
from experiments.figures import GREY, log_axes, new_figure
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.landscapes import RASTRIGIN
from experiments.step_size_decay.oracle_tables import DECAY_TEMPERATURES, decay_runs
from experiments.step_size_decay.races import (
    SIGMA,
    noisy_sgd,
    race,
    rastrigin,
    schedule_rows,
)
from jaxopt_suite.stochastic import schedules


def stage_lengths(config: Config) -> np.ndarray:
    """Steps of each of the 14 stages that lead to a mean excess of 1/d."""
    dimensions = np.array(config.confirmed_dimensions)
    # Stages of 2^10 steps lead to about 1/8, and the steps grow with the cube.
    last = 11 + int(np.ceil(3 * np.log2(dimensions.max() / 8)))
    _, found = decay_runs(
        RASTRIGIN,
        config.grid_step,
        1 / dimensions,
        DECAY_TEMPERATURES,
        tuple(range(7, last + 1)),
    )
    return np.rint(found.queries / len(DECAY_TEMPERATURES)).astype(int)


def run(key, dimension: int, stage_length: int, num_chains: int):
    """Last values of the decay in stages of that length."""
    hot, cold = DECAY_TEMPERATURES[[0, -1]]
    factor = (cold / hot) ** (1 / (len(DECAY_TEMPERATURES) - 1))
    num_steps = stage_length * len(DECAY_TEMPERATURES)
    temperatures = schedule_rows(
        lambda start: schedules.stagewise(start, factor, stage_length), [hot], num_steps
    )
    return race(
        key,
        schedules.rate_for_temperature(temperatures, SIGMA),
        make=noisy_sgd,
        landscape=rastrigin(dimension),
        num_steps=num_steps,
        num_chains=num_chains,
        rows=1,
    )[0, -1]


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Steps of a stage and last values, for every dimension."""
    lengths = stage_lengths(config)
    values = [
        run(jax.random.fold_in(key, d), d, int(length), config.num_seeds)
        for d, length in zip(config.confirmed_dimensions, lengths, strict=True)
    ]
    return {"lengths": lengths, "value": np.stack(jax.device_get(values))}


def shapes(config: Config) -> None:
    """Traces the runs, at lengths about those that the oracle will say."""
    for d in config.confirmed_dimensions:
        decay = functools.partial(
            run, dimension=d, stage_length=2 * d**3, num_chains=config.num_seeds
        )
        assert jax.eval_shape(decay, jax.random.key(0)).shape == (config.num_seeds,)


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the last values, (dimensions, seeds)."""
    dimensions, value = config.confirmed_dimensions, data["value"]
    queries = data["lengths"] * len(DECAY_TEMPERATURES)
    axes = (("dimension", dimensions),)
    metrics = {
        "dimension_queries": Metric(queries, axes),
        "dimension_value": Metric(value, (*axes, ("seed", range(config.num_seeds)))),
    }
    off = value.mean(axis=-1) - 1
    errors = value.std(axis=-1, ddof=1) / np.sqrt(value.shape[-1])
    worst = int(np.argmax(np.abs(off / errors)))
    distance = off[worst] / errors[worst]
    claims = (
        Claim(
            "Simulated decay with the queries that the oracle counts to a mean excess "
            f"of 1: the mean excess where it is farthest off, at d = "
            f"{dimensions[worst]}, {distance:+.1f} standard errors",
            float(value[worst].mean()),
            interval=bootstrap_interval(value[worst]),
        ),
    )
    return metrics, {"dimensions": _figure(config, data, queries)}, claims


def _figure(config, data, queries):
    figure, panels = new_figure(
        "Rastrigin, A = 1: decay until the oracle says that the mean of f is 1",
        columns=2,
    )
    left, right = panels[0]
    dimensions, value = np.array(config.confirmed_dimensions), data["value"]
    means = value.mean(axis=-1)
    spread = np.array([bootstrap_interval(row)[:2] for row in value])
    left.errorbar(dimensions, means, np.abs(spread - means[:, None]).T, linestyle="")
    left.axhline(1.0, color=GREY, linestyle="--", marker="")
    left.set(xlabel="dimension d", ylabel="mean f and its 95% interval", ylim=(0, 2))
    right.plot(dimensions, queries, linestyle="")
    right.plot(
        dimensions,
        queries[0] * (dimensions / dimensions[0]) ** 3.0,
        "--",
        marker="",
        color=GREY,
        label="cube of d",
    )
    right.set(xlabel="dimension d", ylabel="queries of the decay")
    log_axes(right, ticks=config.confirmed_dimensions)
    right.legend()
    return figure
