"""Whatever else one would try on the reference landscape, at equal queries.

Each method is judged at the best point of its own small grid, by the mean of f/d on the
seeds that it is reported on. Where a method sees exact gradients or picks the best of
several runs by exact values, which the others may not, its name says so.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.claims import Claim
from experiments.figures import log_axes, new_figure
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.landscapes import RASTRIGIN
from experiments.step_size_decay.races import (
    COLD,
    HOT,
    OURS,
    SIGMA,
    STARTS,
    best_point,
    fixed_rows,
    fixed_temperatures,
    noisy_sgd,
    race,
    rastrigin,
    schedule_rows,
)
from jaxopt_suite import stochastic
from jaxopt_suite.stochastic import schedules

MOMENTUM = 0.9
RESTARTS = (4, 16)
# Gradient descent needs few steps to the bottom of a valley, and so can start often.
DESCENT_STEPS = 64
POPULATION, STAGES = 32, 64
ADAM_RATES = np.geomspace(3e-3, 1.0, 12)
ADAM_STARTS = np.array([0.05, 0.1, 0.2, 0.4])
EXACT_STEPS = (0.006, 0.0169, 0.025)
# On noisy gradients a step alone is at temperature 50 times its size.
NOISY_STEPS = (0.0012, 0.0024, 0.0036)
# Methods whose noise never falls.
NEVER_COOL = ("fixed rate", "Adam, fixed", "gradient descent")


def momentum(key, rates):
    """Heavy ball; the average of 1/(1 - m) gradients is at the same temperature."""
    return optax.chain(
        stochastic.inject_gradient_noise(SIGMA, key),
        optax.trace(MOMENTUM),
        optax.scale_by_learning_rate(lambda k: (1 - MOMENTUM) * rates[k]),
    )


def adam(key, rates):
    """Adam on noisy gradients."""
    return optax.chain(
        stochastic.inject_gradient_noise(SIGMA, key), optax.adam(lambda k: rates[k])
    )


def langevin(key, point):
    """Langevin of a fixed step; what noise the gradients lack it adds."""
    query_key, own_key = jax.random.split(key)
    own = point["step"] * point["noise_std"] ** 2 / 2

    def missing(k):
        return jnp.maximum(point["temperature"][k] - own, 1e-9)

    return optax.chain(
        stochastic.inject_gradient_noise(point["noise_std"], query_key),
        stochastic.langevin(missing, point["step"], own_key),
    )


def descent(key, rate):
    """Gradient descent on exact gradients."""
    del key
    return optax.sgd(rate)


def _anywhere(key, dimension: int):
    """Starts uniformly in the domain."""
    low, high = rastrigin(dimension)().domain
    return jax.random.uniform(key, (dimension,), minval=low, maxval=high)


@functools.cache
def anywhere(dimension: int):
    """The same, made once."""
    return functools.partial(_anywhere, dimension=dimension)


@functools.partial(jax.jit, static_argnums=(2, 3))
def populations(keys, hot, dimension: int, num_steps: int):
    """Last values of population annealing, (starts, populations)."""

    def run(hot, key):
        record = stochastic.population_annealing(
            rastrigin(dimension)(),
            lambda key, now: stochastic.annealed_sgd(
                schedules.rate_for_temperature(now, SIGMA), SIGMA, key
            ),
            key,
            temperatures=hot * (COLD / hot) ** jnp.linspace(0.0, 1.0, STAGES),
            steps_per_stage=num_steps // STAGES,
            num_chains=POPULATION,
        )
        return record.chains.value[-1].mean()

    return jax.vmap(jax.vmap(run, (None, 0)), (0, None))(hot, keys)


def _langevin_points(num_steps: int):
    steps = np.array([*EXACT_STEPS, *NOISY_STEPS], np.float32)
    noise = np.repeat([0.0, SIGMA], [len(EXACT_STEPS), len(NOISY_STEPS)])
    cooling = schedule_rows(
        lambda hot: schedules.geometric(hot, COLD, num_steps), [HOT], num_steps
    )
    return {
        "step": jnp.asarray(steps),
        "noise_std": jnp.asarray(noise, jnp.float32),
        "temperature": jnp.broadcast_to(cooling, (len(steps), num_steps)),
    }


def simulate(config: Config, key) -> dict[str, Any]:
    """Last f/d of every method, of shape (points of its grid, seeds)."""
    n, d, seeds = config.queries, config.dimension, config.baseline_seeds
    keys = iter(jax.random.split(key, 8))
    run = functools.partial(race, landscape=rastrigin(d), rows=1)

    def last(points, make, num_chains=seeds, num_steps=n, **settings):
        value = run(
            next(keys),
            points,
            make=make,
            num_chains=num_chains,
            num_steps=num_steps,
            **settings,
        )
        return value[:, -1] / d

    def cooled(values, end):
        return schedule_rows(lambda hot: schedules.geometric(hot, end, n), values, n)

    rates = schedules.rate_for_temperature(cooled(np.array(STARTS), COLD), SIGMA)
    found = {"momentum, decay": last(rates, momentum)}
    rows = jnp.concatenate([fixed_rows(ADAM_RATES, n), cooled(ADAM_STARTS, 1e-3)])
    values = last(rows, adam)
    found["Adam, fixed"] = values[: len(ADAM_RATES)]
    found["Adam, decay"] = values[len(ADAM_RATES) :]
    values = last(_langevin_points(n), langevin)
    found["Langevin, exact gradients"] = values[: len(EXACT_STEPS)]
    found["Langevin, noisy gradients"] = values[len(EXACT_STEPS) :]
    fixed = RASTRIGIN.rates(fixed_temperatures(config))
    for runs in RESTARTS:
        values = last(fixed_rows(fixed, n // runs), noisy_sgd, seeds * runs, n // runs)
        values = values.reshape(-1, seeds, runs).min(axis=-1)
        found[f"fixed rate, best of {runs} runs"] = values
    starts = n // DESCENT_STEPS
    rate = jnp.array([0.7 / rastrigin(d)().smoothness])
    values = last(rate, descent, seeds * starts, DESCENT_STEPS, init=anywhere(d))
    values = values.reshape(-1, seeds, starts).min(axis=-1)
    found[f"gradient descent, best of {starts} starts"] = values
    population_keys = jax.random.split(next(keys), max(seeds // 4, 2))
    hot = jnp.asarray(STARTS, jnp.float32)
    values = populations(population_keys, hot, d, n)
    found["population annealing"] = values / d
    return found


def summarize(config: Config, finals: dict[str, np.ndarray]):
    """Metrics, figures and claims from last f/d, (points, seeds) for every method.

    Args:
        config: sizes.
        finals: also of SGD, under the names ``"fixed rate"``, ``"geometric"`` and so
            on.
    """
    best = {name: values[best_point(values)] for name, values in finals.items()}
    means = {name: values.mean() for name, values in best.items()}
    ranked = sorted(best, key=lambda name: means[name])
    intervals = {name: bootstrap_interval(best[name]) for name in best}
    table = np.array([[means[n], intervals[n].low, intervals[n].high] for n in ranked])
    metrics = {
        "rastrigin_methods": Metric(
            table, (("method", ranked), ("figure", ("mean", "low", "high")))
        ),
        "rastrigin_methods_point": Metric(
            [best_point(finals[name]) for name in ranked], (("method", ranked),)
        ),
    }
    cooled = [n for n in finals if not n.startswith(NEVER_COOL)]
    steady = [n for n in finals if n.startswith(NEVER_COOL)]
    claims = (
        _claim("that never cools", steady, means),
        _claim("that cools", [n for n in cooled if n != OURS], means),
    )
    return metrics, {"rastrigin_methods": _figure(config, ranked, table)}, claims


def _claim(kind, names, means):
    """The best of some methods against our decay, which is geometric."""
    name = min(names, key=lambda n: means[n])
    ours = means[OURS]
    return Claim(
        f"Rastrigin: mean f/d of the best method {kind} ({name}) over that of the "
        "geometric decay, each at the best point of its grid",
        float(means[name] / ours),
    )


def _figure(config, ranked, table):
    figure, panels = new_figure(
        f"Rastrigin, A = 1, d = {config.dimension}, {config.queries:,} queries: mean "
        "f/d, each at its best",
        panel=(6.5, 0.22 * len(ranked) + 1.0),
    )
    axes, rows = panels[0, 0], np.arange(len(ranked))[::-1]
    colors = [
        "#D55E00" if name.startswith(NEVER_COOL) else "#0072B2" for name in ranked
    ]
    axes.hlines(rows, table[:, 1], table[:, 2], color=colors, linewidth=2)
    axes.scatter(table[:, 0], rows, color=colors, s=18, zorder=3)
    axes.set(
        yticks=rows,
        yticklabels=ranked,
        xlabel="mean f/d and its 95% interval; red: never cools",
    )
    log_axes(axes, "x", ticks=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2))
    return figure
