"""How close clipped SGD on a median of means ends up, and what keeps it away.

Symmetric noise lets the error fall like 1/K. The skewed part leaves a bias b of the
estimator, and with it the floor b^T H^{-1} b / 2, computed here from the estimator
alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.claims import Claim, Interval, at_least, at_most
from experiments.figures import log_axes, new_figure, plot_spread
from experiments.median_of_means.config import Config
from experiments.results import Metric
from experiments.statistics import quantile_interval
from jaxopt_suite import problems, stochastic
from jaxopt_suite.core import optimization_loop, optimize, sweep

DIMENSION, GROUPS = 5, 15
SPECTRUM = np.linspace(0.2, 1.0, DIMENSION)
MINIMIZER = 3.0 * np.ones(DIMENSION)


def noise(skew) -> stochastic.Noise:
    """Cauchy plus ``skew`` times a centred Pareto law; ``skew`` may be traced."""
    return stochastic.additive(
        stochastic.cauchy(), stochastic.centred_pareto(1.6, scale=skew)
    )


def problem(skew, group_size: int, start=None):
    """The quadratic, seen through batches of 15 groups."""
    batch = GROUPS * group_size
    return problems.noisy_quadratic(
        SPECTRUM, MINIMIZER, noise(skew), batch, start=start
    )


def step_size(horizon: int) -> float:
    """The step that balances progress and noise over ``horizon`` steps."""
    return min(0.3, float(np.log(horizon)) / (0.2 * horizon))


@functools.partial(jax.jit, static_argnums=(1, 2))
def estimator_bias(key, group_size: int, draws: int, skew):
    """Mean of the estimate of a zero gradient over ``draws`` batches."""
    chunks = 20
    per_chunk = max(draws // chunks, 1)

    def chunk(key):
        shape = (GROUPS * group_size, per_chunk)
        return stochastic.median_of_means(noise(skew)(key, shape), GROUPS).mean()

    return jax.lax.map(chunk, jax.random.split(key, chunks)).mean()


def floor(bias) -> np.ndarray:
    """b^T H^{-1} b / 2 for the same bias in every coordinate."""
    return 0.5 * np.sum(1 / SPECTRUM) * np.asarray(bias, np.float64) ** 2


def final_errors(keys, skews, horizon: int, group_size: int):
    """Last errors of runs, of shape (skews, seeds)."""
    return _final_errors(keys, skews, horizon, step_size(horizon), group_size)


@functools.partial(jax.jit, static_argnames="group_size")
def _final_errors(keys, skews, horizon, rate, group_size):
    # A traced number of steps: one compile for all horizons.
    def run(key, skew):
        task = problem(skew, group_size)
        loop = optimization_loop(stochastic.mom_clipped_sgd(rate, 3.0, GROUPS), task)
        last = jax.lax.fori_loop(
            0, horizon, lambda _, state: loop.update(None, state)[1], loop.init(key)
        )
        return task.metrics(last.params)["excess"]

    # All skews of a seed share its draws, which are then made only once.
    return jax.vmap(jax.vmap(run, (0, None)), (None, 0))(keys, skews)


def average_offset(key):
    """Mean iterate minus x*, started there: no clipping, step 0.1, skew 0.5."""
    task = problem(0.5, 1, start=jnp.asarray(MINIMIZER, jnp.float32))
    optimizer = optax.chain(
        stochastic.aggregate_median_of_means(GROUPS), optax.sgd(0.1)
    )
    record = optimize(
        optimizer, task, key, 4000, record=lambda params, _: params
    ).record
    return record[401:].mean(axis=0) - MINIMIZER


def small_moment_error(key):
    """Last error under stable noise of index 0.4, where E|X|^0.35 is finite."""
    task = problems.noisy_quadratic(
        SPECTRUM, MINIMIZER, stochastic.symmetric_stable(0.4), 23
    )
    optimizer = stochastic.mom_clipped_sgd(
        0.03, 1.0, stochastic.default_num_groups(0.35)
    )
    return optimize(optimizer, task, key, 1000, record_every=1000).record["excess"][-1]


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Final errors by horizon and skew, by group size, and the floors."""
    run_key, size_key, bias_key, offset_key, small_key = jax.random.split(key, 5)
    seeds = 2 * config.num_seeds
    skews = jnp.asarray(config.skews)
    horizons = [
        final_errors(
            jax.random.split(jax.random.fold_in(run_key, horizon), seeds),
            skews,
            horizon,
            group_size=1,
        )
        for horizon in config.horizons
    ]
    last = max(config.horizons)
    sizes = [
        final_errors(
            jax.random.split(jax.random.fold_in(size_key, n), seeds),
            jnp.array([0.5]),
            last,
            group_size=n,
        )[0]
        for n in config.floor_group_sizes[1:]
    ]
    # Groups of one sample are in the first sweep already.
    sizes = [horizons[-1][config.skews.index(0.5)], *sizes]
    draws = config.floor_draws
    biases = [estimator_bias(bias_key, 1, draws, skew) for skew in config.skews]
    size_biases = [
        estimator_bias(bias_key, n, draws // n, 0.5) for n in config.floor_group_sizes
    ]
    offsets = sweep(average_offset, jax.random.split(offset_key, 16), {})
    small = sweep(small_moment_error, jax.random.split(small_key, 64), {})
    return jax.device_get(
        {
            "horizons": jnp.stack(horizons),
            "sizes": jnp.stack(sizes),
            "biases": jnp.stack(biases),
            "size_biases": jnp.stack(size_biases),
            "offsets": offsets,
            "small": small,
        }
    )


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the stage's arrays."""
    seeds = range(data["horizons"].shape[-1])
    axes = (("steps", config.horizons), ("skew", config.skews), ("seed", seeds))
    metrics = {
        "neighbourhood_excess": Metric(data["horizons"], axes),
        "neighbourhood_floor": Metric(floor(data["biases"]), (("skew", config.skews),)),
        "group_size_excess": Metric(
            data["sizes"], (("group_size", config.floor_group_sizes), ("seed", seeds))
        ),
        "group_size_floor": Metric(
            floor(data["size_biases"]), (("group_size", config.floor_group_sizes),)
        ),
        "small_moment_excess": Metric(data["small"], (("seed", range(64)),)),
    }
    return (
        metrics,
        {"neighbourhood": _figure(config, data)},
        tuple(_claims(config, data)),
    )


def _claims(config, data):
    symmetric = data["horizons"][:, config.skews.index(0.0)]
    upper = np.quantile(symmetric, 0.95, axis=-1)
    slope = np.polyfit(np.log(config.horizons), np.log(upper), 1)[0]
    yield Claim(
        "Symmetric noise: the 95% quantile of the error falls with the number of steps "
        "K (log-log slope; the rate is 1/K up to logarithms)",
        float(slope),
        at_most(-0.7),
        _slope_interval(config.horizons, symmetric),
        paper="-1",
    )
    spread = symmetric.max(axis=-1) / np.median(symmetric, axis=-1)
    yield Claim(
        f"Symmetric noise: worst over median error of {symmetric.shape[-1]} seeds "
        "(largest over K)",
        float(spread.max()),
        at_most(10.0),
    )
    yield from _floor_claims(config, data, symmetric)
    steady = -data["biases"][config.skews.index(0.5)] / SPECTRUM
    offset = data["offsets"].mean(axis=0)
    yield Claim(
        "The mean iterate under skewed noise is x* - H^{-1} b, with b the bias of the "
        "estimator alone (relative difference)",
        float(np.linalg.norm(offset - steady) / np.linalg.norm(steady)),
        at_most(0.10),
    )
    yield Claim(
        "Noise with only a moment of order 0.35, 23 groups of 1: 95% quantile of the "
        "error after 1000 steps (13.5 at the start)",
        float(np.quantile(data["small"], 0.95)),
        at_most(0.03),
        quantile_interval(data["small"], 0.95),
    )


def _floor_claims(config, data, symmetric):
    floors = floor(data["biases"])
    for skew in (s for s in (0.25, 0.5) if s in config.skews):
        index = config.skews.index(skew)
        finals = data["horizons"][-1, index]
        interval = quantile_interval(finals, 0.5)
        yield Claim(
            f"The bias enters only as the floor: skew {skew:g}, median error after "
            f"{config.horizons[-1]} steps over b^T H^-1 b / 2, minus 1, in size",
            float(abs(np.median(finals) / floors[index] - 1)),
            at_most(0.15),
            paper="0",
            interval=Interval(
                float(interval.low / floors[index] - 1),
                float(interval.high / floors[index] - 1),
                interval.method + ", signed",
            ),
        )
    if 0.25 in config.skews:
        index = config.skews.index(0.25)
        excess = np.median(data["horizons"][0, index]) - floors[index]
        factor = excess / np.median(symmetric[0])
        yield Claim(
            "The floor is added to the rest: excess over it after "
            f"{config.horizons[0]} steps at skew 0.25 against the error at skew 0 "
            "(factor, either way)",
            float(max(factor, 1 / factor)) if factor > 0 else np.inf,
            at_most(2.0),
        )
    sizes = np.median(data["sizes"], axis=-1)
    yield Claim(
        "Larger groups lower the floor (least decrease of the median error from one n "
        "to the next)",
        float(np.min(-np.diff(sizes))),
        at_least(0.0),
    )


def _slope_interval(horizons, samples) -> Interval:
    """Percentile bootstrap of the slope, with every K a stratum."""
    generator = np.random.default_rng(0)
    seeds = samples.shape[-1]
    slopes = []
    for _ in range(1000):
        rows = generator.integers(seeds, size=samples.shape)
        drawn = np.take_along_axis(samples, rows, axis=-1)
        upper = np.quantile(drawn, 0.95, axis=-1)
        slopes.append(np.polyfit(np.log(horizons), np.log(upper), 1)[0])
    low, high = np.quantile(slopes, (0.025, 0.975))
    method = f"95% percentile bootstrap over {seeds} seeds, stratified by K"
    return Interval(float(low), float(high), method)


def _figure(config, data):
    figure, panels = new_figure(
        "The final neighbourhood: 1/K until the floor", columns=2
    )
    left, right = panels[0]
    floors = floor(data["biases"])
    for index, skew in enumerate(config.skews):
        plot_spread(left, config.horizons, data["horizons"][:, index], f"skew {skew:g}")
        color = left.get_lines()[-1].get_color()
        if skew:
            left.axhline(floors[index], color=color, linestyle=":", marker="")
    left.set(xlabel="steps K", ylabel="f(x) - f*", title="dotted: predicted floor")
    log_axes(left, ticks=config.horizons)
    left.legend()
    plot_spread(right, config.floor_group_sizes, data["sizes"], "after the run")
    right.plot(
        config.floor_group_sizes,
        floor(data["size_biases"]),
        ":",
        label="predicted floor",
    )
    right.set(xlabel="group size n", title=f"skew 0.5, {max(config.horizons)} steps")
    log_axes(right, ticks=config.floor_group_sizes)
    right.legend()
    return figure
