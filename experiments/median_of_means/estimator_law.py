"""Bias and second moment of the estimator against the bounds and the exact values."""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, Interval, at_least, at_most, between
from experiments.figures import GREY, log_axes, new_figure
from experiments.median_of_means.config import Config
from experiments.results import Metric
from jaxopt_suite import stochastic

CAUCHY, PARETO = stochastic.cauchy(), stochastic.centred_pareto(1.6)
RHOS = (0.0, 0.25, 0.5, 0.75, 1.0)
SHOWN = ("symmetric Pareto 0.625", "Cauchy", "centred Pareto 1.6", "Cauchy + Pareto")
INDICES = (0.5, 0.75, 1.0, 1.5)
BETAS = (0.5, 0.75, 1.0)


def _scale(noise: stochastic.Noise, order: float) -> float:
    """(E|X|^q)^(1/q)."""
    moment = noise.beta_moment(order)
    assert moment is not None
    return float(moment) ** (1 / order)


class Law(NamedTuple):
    """A law and the moments that its bounds are stated in.

    Attributes:
        factory: of the noise; its parameters are traced, so one compile serves all.
        parameters: positional arguments of ``factory``.
        moments: arguments of the bounds.
    """

    factory: Callable[..., stochastic.Noise]
    parameters: tuple[float, ...]
    moments: dict[str, float]


def _cauchy_and_pareto() -> stochastic.Noise:
    return stochastic.additive(CAUCHY, PARETO)


def _mixture(rho) -> stochastic.Noise:
    return stochastic.mixture(CAUCHY, PARETO, rho)


def laws(config: Config) -> dict[str, Law]:
    """The laws of the grid by their names."""
    cauchy = {"beta": 0.75, "s_beta": _scale(CAUCHY, 0.75)}
    pareto = {"alpha": 1.5, "s_alpha": _scale(PARETO, 1.5)}
    found = {}
    for beta in BETAS:
        tail = 1.25 * beta
        scale = _scale(stochastic.symmetric_pareto(tail), beta)
        found[f"symmetric Pareto {tail:g}"] = Law(
            stochastic.symmetric_pareto, (tail,), {"beta": beta, "s_beta": scale}
        )
    found["Cauchy"] = Law(stochastic.cauchy, (), cauchy)
    found["centred Pareto 1.6"] = Law(stochastic.centred_pareto, (1.6,), pareto)
    exponential = {"alpha": 2.0, "s_alpha": 1.0}
    found["centred exponential"] = Law(stochastic.centred_exponential, (), exponential)
    found["Cauchy + Pareto"] = Law(_cauchy_and_pareto, (), cauchy | pareto)
    for rho in RHOS:
        shares = {
            "s_beta": (1 - rho) ** (1 / 0.75) * cauchy["s_beta"],
            "s_alpha": rho ** (1 / 1.5) * pareto["s_alpha"],
        }
        found[f"mixture {rho:g}"] = Law(_mixture, (rho,), cauchy | pareto | shares)
    names = found if config.laws is None else config.laws
    return {name: found[name] for name in names}


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def medians(factory, parameters, key, group_counts, group_size, repetitions):
    """Median of means of repeated batches for each group count, on nested batches."""
    noise = factory(*parameters)
    draws = noise(key, (max(group_counts) * group_size, repetitions))
    return jnp.stack(
        [stochastic.median_of_means(draws[: k * group_size], k) for k in group_counts]
    )


def _moments(samples) -> np.ndarray:
    """Mean, its standard error, second moment and its standard error."""
    x = np.asarray(samples, np.float64)
    root = np.sqrt(x.shape[-1])
    return np.stack(
        [x.mean(-1), x.std(-1) / root, (x**2).mean(-1), (x**2).std(-1) / root]
    )


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Moments of every cell, and the separate figures that claims need."""
    # Row by row: to unpack them all is a program of 256 results to compile.
    many = jax.random.split(key, 256)
    keys = (many[row] for row in range(len(many)))
    counts, sizes = config.group_counts, config.group_sizes
    # Groups of 64 need many draws: fewer repetitions keep memory and time in bounds.
    repetitions = [max(1, config.repetitions // (4 if n >= 64 else 1)) for n in sizes]
    grid = np.stack(
        [
            np.stack(
                [
                    _moments(medians(*law[:2], next(keys), counts, n, reps))
                    for n, reps in zip(sizes, repetitions, strict=True)
                ],
                axis=-1,
            )
            for law in laws(config).values()
        ]
    )
    large = config.large_repetitions
    singles = medians(stochastic.cauchy, (), next(keys), (9, 15, 31), 1, large)
    eights = medians(stochastic.cauchy, (), next(keys), (15,), 8, large)
    cauchy = np.concatenate([_moments(singles)[2:], _moments(eights)[2:]], axis=1).T
    spreads = [
        [
            np.median(
                np.abs(
                    medians(
                        stochastic.symmetric_stable, (a,), next(keys), (15,), n, 20_000
                    )
                )
            )
            for n in (1, 4, 16)
        ]
        for a in INDICES
    ]
    biases = [
        _moments(
            medians(stochastic.centred_pareto, (1.6,), next(keys), (15,), n, 20_000)
        )[:2, 0]
        for n in (1, 4, 16, 64)
    ]
    mixtures = [
        _moments(medians(_mixture, (rho,), next(keys), (15,), 1, 20_000))[:2, 0]
        for rho in RHOS
    ]
    heavy = stochastic.symmetric_pareto(0.625)
    batch = np.asarray(heavy(next(keys), (20_000, 15)), np.float64)
    versus_mean = [
        (batch.mean(1) ** 2).mean(),
        (np.median(batch, axis=1) ** 2).mean(),
    ]
    return {
        "grid": grid,
        "cauchy": cauchy,
        "spreads": np.array(spreads),
        "biases": np.array(biases),
        "mixtures": np.array(mixtures),
        "versus_mean": np.array(versus_mean),
    }


def bounds(config: Config) -> np.ndarray:
    """Second-moment bound and bias bound of each cell; NaN where there is none."""
    shape = (2, len(laws(config)), len(config.group_counts), len(config.group_sizes))
    found = np.full(shape, np.nan)
    cells = itertools.product(
        enumerate(laws(config).values()),
        enumerate(config.group_counts),
        enumerate(config.group_sizes),
    )
    for (i, law), (j, k), (m, n) in cells:
        moments = law.moments
        order = min(moments.get("beta", 2.0), moments.get("alpha", 2.0))
        if order * (k + 1) / 2 <= 2:
            continue
        found[0, i, j, m] = stochastic.second_moment_bound(k, n, **moments)
        skewed = moments.get("s_alpha", 0.0) > 0
        found[1, i, j, m] = (
            stochastic.bias_bound(
                k, n, alpha=moments["alpha"], s_alpha=moments["s_alpha"]
            )
            if skewed
            else 0.0
        )
    return found


def _slope(x, y) -> float:
    return float(np.polyfit(np.log(x), np.log(np.abs(y)), 1)[0])


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the stage's arrays."""
    names = list(laws(config))
    axes = (
        ("law", names),
        ("groups", config.group_counts),
        ("group_size", config.group_sizes),
    )
    bias, bias_error, second, _ = np.moveaxis(data["grid"], 1, 0)
    bound = bounds(config)
    metrics = {
        "bias": Metric(bias, axes),
        "bias_standard_error": Metric(bias_error, axes),
        "second_moment": Metric(second, axes),
        "second_moment_bound": Metric(bound[0], axes),
        "bias_bound": Metric(bound[1], axes),
        "stable_median_error": Metric(
            data["spreads"], (("index", INDICES), ("group_size", (1, 4, 16)))
        ),
    }
    return (
        metrics,
        {"estimator_law": _figure(config, names, data, bound)},
        (
            *_moment_claims(data, bound, bias, bias_error, second),
            *_rate_claims(data),
        ),
    )


def _moment_claims(data, bound, bias, bias_error, second):
    exact = np.array(
        [stochastic.cauchy_median_second_moment(k) for k in (9, 15, 31, 15)]
    )
    measured, error = data["cauchy"].T
    off = np.abs(measured / exact - 1)
    worst = int(np.argmax(off))
    yield Claim(
        "Cauchy noise: the second moment equals the exact integral for k = 9, 15, 31 "
        "and for k = 15 groups of 8 (largest relative deviation)",
        measured=off[worst],
        threshold=at_most(0.03),
        interval=Interval(
            max(0.0, off[worst] - 2 * error[worst] / exact[worst]),
            off[worst] + 2 * error[worst] / exact[worst],
            "2 standard errors",
        ),
        paper="0.204798 (k = 15)",
    )
    exists = np.isfinite(bound[0])
    yield Claim(
        "The second moment never exceeds its bound (largest ratio over the grid)",
        measured=np.max(second[exists] / bound[0][exists]),
        threshold=at_most(1.0),
    )
    excess = np.abs(bias) - 5.5 * bias_error - bound[1]
    yield Claim(
        "The bias never exceeds its bound by more than 5.5 standard errors "
        "(largest excess over the grid)",
        measured=np.max(excess[exists]),
        threshold=at_most(0.0),
    )
    mean, mom = data["versus_mean"]
    yield Claim(
        "Symmetric Pareto noise without a mean, 15 samples: second moment of the "
        "sample mean over that of the median of means",
        measured=mean / mom,
        threshold=at_least(1e3),
    )


def _rate_claims(data):
    sizes = np.array([1, 4, 16])
    slopes = np.array([_slope(sizes, row) for row in data["spreads"]])
    theory = 1 / np.array(INDICES) - 1
    yield Claim(
        "Symmetric stable noise: the error grows or shrinks with the group size as "
        "n^(1/index - 1) for index 0.5, 0.75, 1, 1.5 (largest slope deviation)",
        measured=np.max(np.abs(slopes - theory)),
        threshold=at_most(0.03),
    )
    yield Claim(
        "One-sided Pareto 1.6: the bias shrinks with the group size at the rate of the "
        "bound, slope -0.375",
        measured=_slope([1, 4, 16, 64], data["biases"][:, 0]),
        threshold=between(-0.42, -0.32),
        paper="-0.375",
    )
    bias, error = data["mixtures"].T
    yield Claim(
        "A mixture of Cauchy and Pareto noise is unbiased without its skewed part "
        "(standard errors from 0)",
        measured=abs(bias[0]) / error[0],
        threshold=at_most(5.0),
    )
    yield Claim(
        "The bias of that mixture grows with the share of the skewed part (smallest "
        "increase)",
        measured=np.min(np.diff(np.abs(bias))),
        threshold=at_least(0.0),
        interval=Interval(
            float(np.min(np.diff(np.abs(bias))) - 2 * np.max(error) * np.sqrt(2)),
            float(np.min(np.diff(np.abs(bias))) + 2 * np.max(error) * np.sqrt(2)),
            "2 standard errors",
        ),
    )


def _figure(config, names, data, bound):
    shown = [name for name in SHOWN if name in names]
    figure, panels = new_figure(
        "Median of means: what group size buys (15 groups)", rows=2, columns=len(shown)
    )
    j = config.group_counts.index(15)
    sizes = config.group_sizes
    for column, name in enumerate(shown):
        i = names.index(name)
        bias, error, second, _ = data["grid"][i][:, j]
        top, bottom = panels[:, column]
        top.plot(sizes, second, label="measured")
        top.plot(sizes, bound[0, i, j], linestyle="--", label="bound")
        if name == "Cauchy":
            exact = stochastic.cauchy_median_second_moment(15)
            top.plot(sizes, [exact] * len(sizes), ":", marker="", label="exact")
        top.set(title=name, ylabel="second moment" if column == 0 else "")
        skewed = bound[1, i, j, 0] > 0
        bottom.errorbar(sizes, np.abs(bias) if skewed else bias, yerr=2 * error)
        if skewed:
            bottom.plot(sizes, bound[1, i, j], linestyle="--")
        else:
            bottom.axhline(0.0, color=GREY, linewidth=1, marker="")
        bottom.set(xlabel="group size n", ylabel="|bias|" if skewed else "bias")
        log_axes(top, ticks=sizes)
        log_axes(bottom, "xy" if skewed else "x", ticks=sizes)
    for axes in panels[0]:
        axes.legend()
    return figure
