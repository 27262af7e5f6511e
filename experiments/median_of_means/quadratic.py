"""A quadratic through five kinds of noise, and the accelerated method on another."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.claims import Claim, at_least, at_most
from experiments.figures import log_axes, new_figure, plot_spread
from experiments.median_of_means.config import Config
from experiments.median_of_means.methods import (
    ROWS,
    Task,
    accelerated_methods,
    chosen_point,
    race,
    sgd_methods,
    upper_quantile,
)
from experiments.results import Metric
from experiments.statistics import quantile_interval, ratio_of_quantiles
from jaxopt_suite import problems, stochastic
from jaxopt_suite.core import optimize

LAWS = {
    "cauchy": stochastic.cauchy(),
    "additive": stochastic.additive(
        stochastic.cauchy(), stochastic.centred_pareto(1.6, scale=0.5)
    ),
    "stable": stochastic.symmetric_stable(0.7),
    "pareto": stochastic.centred_pareto(1.6),
    "gaussian": stochastic.gaussian(),
}


def one_of(laws, index) -> stochastic.Noise:
    """The law number ``index``, which may be traced: one compile for all of them."""
    samplers = [law.sample for law in laws]

    def sample(key, shape, dtype):
        branches = [lambda key, s=s: s(key, shape, dtype) for s in samplers]
        return jax.lax.switch(index, branches, key)

    return stochastic.Noise(sample, lambda q: None)


@functools.cache
def task(dimension: int, oracle_calls: int) -> Task:
    """Minimize a quadratic with spectrum 0.2 to 1 from 0 to 3."""

    def make_problem(law, batch):
        return problems.noisy_quadratic(
            jnp.linspace(0.2, 1.0, dimension),
            3.0 * jnp.ones(dimension),
            one_of(LAWS.values(), law),
            batch,
        )

    return Task(make_problem, "excess", oracle_calls)


def methods(config: Config):
    """Everything that races on the quadratic."""
    if not config.all_methods:
        return sgd_methods(False)
    return sgd_methods(True) + accelerated_methods()


def compute(config: Config, key, law: str) -> dict[str, np.ndarray]:
    """The race through one kind of noise."""
    return race(
        methods(config),
        task(config.dimension, config.oracle_calls),
        list(LAWS).index(law),
        key,
        config.tuning_seeds,
        config.num_seeds,
    )


def compute_accelerated(config: Config, key) -> dict[str, np.ndarray]:
    """Clipped SSTM on an ill-conditioned quadratic, plain mean against MoM.

    Both see 15 samples a step of 0.05 times Cauchy noise, a = 20, B = 1, 400 steps.
    """

    def run(aggregator, key):
        problem = problems.noisy_quadratic(
            jnp.linspace(1e-3, 1.0, 50), jnp.ones(50), stochastic.cauchy(0.05), 15
        )
        optimizer = optax.chain(
            aggregator, stochastic.clipped_sstm(1.0, a=20.0, clip_b=1.0)
        )

        def excess(params, state):
            return problem.metrics(stochastic.sstm_eval_params(state, params))["excess"]

        return optimize(
            optimizer, problem, key, 400, record=excess, record_every=20
        ).record

    keys = jax.random.split(key, config.num_seeds)
    curves = [
        jax.jit(jax.vmap(functools.partial(run, aggregator)))(keys).T
        for aggregator in (
            stochastic.aggregate_mean(),
            stochastic.aggregate_median_of_means(15),
        )
    ]
    return {"curves": np.stack(curves)}


def summarize(config: Config, data: dict[str, dict], accelerated: dict):
    """Metrics, figures and claims of all races."""
    names = [method.name for method in methods(config)]
    axes = (("law", list(data)), ("method", names), ("seed", range(config.num_seeds)))
    final = np.stack([race["final"] for race in data.values()])
    metrics = {
        "quadratic_excess": Metric(final, axes),
        "quadratic_q95": Metric(upper_quantile(final), axes[:2]),
        "quadratic_tuned_q95": Metric(
            np.stack([race["tuned"] for race in data.values()]), axes[:2]
        ),
        "quadratic_best_point": Metric(
            np.stack([race["best"] for race in data.values()]), axes[:2]
        ),
        "accelerated_excess": Metric(
            accelerated["curves"][:, -1],
            (("method", ("mean + clip", "MoM 15x1")), axes[2]),
        ),
    }
    figures = {
        "quadratic_ranking": _ranking(config, data, names),
        "quadratic_progress": _progress(config, data, names, accelerated),
    }
    return metrics, figures, tuple(_claims(data, names, accelerated))


def _ratio_claim(text, data, names, law, worse, better, threshold, paper=None):
    samples = [data[law]["final"][names.index(name)] for name in (worse, better)]
    ratio, interval = ratio_of_quantiles(samples[0], samples[1], 0.95)
    return Claim(text, ratio, threshold, interval, paper)


def _claims(data, names, accelerated):
    ratio = functools.partial(_ratio_claim, data=data, names=names)
    yield ratio(
        "Cauchy noise, the same number of samples for each: 95% quantile of the error, "
        "clipped mean over MoM 15x1",
        law="cauchy",
        worse="mean + clip",
        better="MoM 15x1",
        threshold=at_least(30.0),
    )
    yield ratio(
        "The same for per-sample clipping over MoM 15x1",
        law="cauchy",
        worse="per-sample clip",
        better="MoM 15x1",
        threshold=at_least(2.5),
    )
    yield ratio(
        "Cauchy plus skewed noise: clipped mean over MoM 7x8",
        law="additive",
        worse="mean + clip",
        better="MoM 7x8",
        threshold=at_least(5.0),
    )
    for method, threshold in (
        ("MoM 15x1", at_most(0.1)),
        ("mean + clip", at_least(10.0)),
    ):
        samples = data["stable"]["final"][names.index(method)]
        yield Claim(
            f"Stable noise of index 0.7: 95% quantile of the error of {method}",
            float(upper_quantile(samples)),
            threshold,
            quantile_interval(samples, 0.95),
        )
    for law, label in (
        ("pareto", "Skewed noise with a mean"),
        ("gaussian", "Gaussian"),
    ):
        yield ratio(
            f"{label}: clipped mean over MoM 7x8 (below 1: the mean is better)",
            law=law,
            worse="mean + clip",
            better="MoM 7x8",
            threshold=None,
        )
    for peer in ("smoothed MoM 15x1", "medoid 15x1", "geometric median 15x1"):
        if peer in names:
            yield ratio(
                f"Cauchy noise: {peer} over MoM 15x1 (peers)",
                law="cauchy",
                worse=peer,
                better="MoM 15x1",
                threshold=None,
            )
    mean, mom = accelerated["curves"][:, -1]
    value, interval = ratio_of_quantiles(mean, mom, 0.95)
    yield Claim(
        "Clipped SSTM on an ill-conditioned quadratic, Cauchy noise, 15 samples a "
        "step: 95% quantile of the error, mean over MoM",
        value,
        at_least(10.0),
        interval,
    )


def _ranking(config, data, names):
    figure, panels = new_figure(
        f"95% quantile of f(x) - f* after {config.oracle_calls:,} samples, tuned",
        columns=len(data),
        panel=(2.6, 0.24 * len(names) + 1.2),
        sharey=True,
    )
    rows = np.arange(len(names))[::-1]
    for axes, (law, race_) in zip(panels[0], data.items(), strict=True):
        quantiles = upper_quantile(race_["final"])
        best = quantiles.min()
        axes.plot(quantiles, rows, linestyle="", color="#0072B2", label="fresh seeds")
        axes.plot(
            race_["tuned"],
            rows,
            "x",
            linestyle="",
            color="#666666",
            label="tuning seeds",
        )
        axes.axvline(best, color="#D55E00", linewidth=1, marker="")
        axes.set(title=law, yticks=rows, yticklabels=names)
        log_axes(axes, "x")
    panels[0, 0].legend(loc="lower right")
    return figure


def _progress(config, data, names, accelerated):
    shown = ("mean + clip", "per-sample clip", "MoM 15x1", "MoM 7x8")
    figure, panels = new_figure(
        "Error along the run: median and 5% to 95% over seeds", columns=4, sharey=False
    )
    calls = np.linspace(0, config.oracle_calls, ROWS + 1)
    for axes, law in zip(panels[0], ("cauchy", "additive", "stable"), strict=False):
        for name in shown:
            curves = data[law]["curves"][names.index(name)]
            plot_spread(axes, calls, curves, name)
        axes.set(title=law, xlabel="gradient samples", ylabel="f(x) - f*")
        log_axes(axes, "y")
    last = panels[0, 3]
    steps = np.arange(0, 401, 20)
    for name, curves in zip(("mean", "MoM 15x1"), accelerated["curves"], strict=True):
        plot_spread(last, steps, curves, name)
    last.set(title="clipped SSTM, Cauchy", xlabel="steps")
    log_axes(last, "y")
    panels[0, 0].legend()
    last.legend()
    return figure


def best_points(config: Config, data: dict[str, dict]) -> dict[str, dict[str, str]]:
    """The tuned hyperparameters of every method, by kind of noise."""
    return {
        law: {
            method.name: chosen_point(method, int(index))
            for method, index in zip(methods(config), race_["best"], strict=True)
        }
        for law, race_ in data.items()
    }
