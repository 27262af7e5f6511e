"""Logistic regression on the breast cancer data, Cauchy noise on every gradient."""

import functools

import numpy as np

from experiments.claims import Claim
from experiments.figures import log_axes, new_figure
from experiments.median_of_means.config import Config
from experiments.median_of_means.methods import (
    Method,
    Task,
    race,
    sgd_methods,
    upper_quantile,
)
from experiments.results import Metric
from experiments.statistics import ratio_of_quantiles
from jaxopt_suite import problems, stochastic

OURS = "MoM 15x1"


@functools.cache
def task(oracle_calls: int) -> Task:
    """Distance to the optimum of regularized logistic regression."""
    data = problems.breast_cancer()

    def make_problem(law, batch):
        del law
        return problems.logistic_regression(
            data, l2=1e-2, batch=batch, noise=stochastic.cauchy(0.1)
        )

    return Task(make_problem, "distance", oracle_calls)


def methods(config: Config) -> tuple[Method, ...]:
    """Everything that races here; at the smallest scale the two that claims name."""
    if config.all_methods:
        return sgd_methods(True)
    return tuple(m for m in sgd_methods(False) if m.name in ("mean + clip", OURS))


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """The race."""
    return race(
        methods(config),
        task(config.logistic_calls),
        0,
        key,
        config.tuning_seeds,
        config.num_seeds,
    )


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the race."""
    names = [method.name for method in methods(config)]
    axes = (("method", names), ("seed", range(config.num_seeds)))
    metrics = {
        "logistic_distance": Metric(data["final"], axes),
        "logistic_tuned_q95": Metric(data["tuned"], axes[:1]),
    }
    claims = []
    for peer in (p for p in ("mean + clip", "per-sample clip") if p in names):
        ratio, interval = ratio_of_quantiles(
            data["final"][names.index(peer)],
            data["final"][names.index(OURS)],
            0.95,
        )
        claims.append(
            Claim(
                "Breast cancer, logistic regression with Cauchy noise: 95% quantile of "
                f"the distance to the optimum, {peer} over MoM 15x1",
                ratio,
                interval=interval,
            )
        )
    return metrics, {"logistic": _figure(names, data)}, tuple(claims)


def _figure(names, data):
    order = np.argsort(upper_quantile(data["final"]))[::-1]
    figure, panels = new_figure(
        "Breast cancer: distance to the optimum on fresh seeds",
        panel=(6.0, 0.26 * len(names) + 1.2),
    )
    axes = panels[0, 0]
    for row, index in enumerate(order):
        axes.plot(
            data["final"][index],
            np.full(data["final"].shape[1], row),
            "|",
            linestyle="",
            color="#56B4E9",
        )
        upper = upper_quantile(data["final"][index])
        axes.plot([upper], [row], "o", color="#D55E00", label="_" if row else "95%")
    axes.set(
        yticks=range(len(names)),
        yticklabels=[names[i] for i in order],
        xlabel="||w - w*||",
    )
    log_axes(axes, "x")
    axes.legend()
    return figure
