"""A strongly convex quadratic: decay gains a logarithmic factor there, and no more.

The second moment of a coordinate of curvature 1 under noise of variance 1 obeys
v <- (1 - rate)^2 v + rate^2 whatever the law of the noise, so the queries to reach
E x^2 / 2 <= eps are counted exactly.
"""

import jax
import numpy as np

from experiments.claims import Claim, at_most
from experiments.figures import log_axes, new_figure
from experiments.results import Metric
from experiments.step_size_decay.config import Config
from jaxopt_suite.stochastic import schedules

START = 9.0
TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
DECAY_QUERIES = (5, 50, 500, 5000)
FIXED_QUERIES = (9, 117, 1486, 17_976)
RATES = np.geomspace(1e-6, 1.0, 4000)
MAX_DECAY = 6000


def second_moments(rates: np.ndarray) -> np.ndarray:
    """E x^2 before the first step and after every one."""
    moments = [START]
    for rate in rates:
        moments.append((1 - rate) ** 2 * moments[-1] + rate**2)
    return np.array(moments)


def fixed_rate_queries(rates: np.ndarray, target: float) -> np.ndarray:
    """Least queries to E x^2 / 2 <= target at each fixed rate; inf where it never is.

    The moment nears rate / (2 - rate) geometrically, by (1 - rate)^2 a step.
    """
    limit = rates / (2 - rates)
    left = (2 * target - limit) / (START - limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.ceil(np.log(left) / (2 * np.log1p(-rates)))
    return np.where(left > 0, np.maximum(steps, 1), np.inf)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Queries of the best schedule of all and of the best fixed rate."""
    del config, key
    schedule = schedules.polynomial(0.9, 10 / 9, 1.0)
    moments = second_moments(
        np.asarray(jax.vmap(schedule)(np.arange(MAX_DECAY)), np.float64)
    )
    every = np.array([fixed_rate_queries(RATES, target) for target in TARGETS])
    return {
        "decay": np.array([np.argmax(moments / 2 <= target) for target in TARGETS]),
        "fixed": every.min(axis=1),
        "best_rate": RATES[every.argmin(axis=1)],
    }


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the counts."""
    del config
    axes = (("target", TARGETS),)
    metrics = {
        "control_decay_queries": Metric(data["decay"], axes),
        "control_fixed_queries": Metric(data["fixed"], axes),
        "control_best_rate": Metric(data["best_rate"], axes),
    }
    ratio = data["fixed"] / data["decay"]
    # A logarithmic factor gains the same amount with each decade.
    gains = np.diff(ratio)
    claims = (
        Claim(
            "Quadratic, the best schedule of all: queries to eps = 1e-1 to 1e-4 are "
            "5, 50, 500, 5000 (largest relative deviation)",
            np.max(np.abs(data["decay"] / DECAY_QUERIES - 1)),
            at_most(0.0),
        ),
        Claim(
            "Quadratic, the best of 4000 fixed rates: 9, 117, 1486, 17,976 queries "
            "(largest relative deviation)",
            np.max(np.abs(data["fixed"] / FIXED_QUERIES - 1)),
            at_most(0.01),
        ),
        Claim(
            "Quadratic: what a decade of accuracy adds to fixed/decay (largest; a "
            "logarithmic factor adds the same each time, an exponential one ever more)",
            gains.max(),
        ),
        Claim(
            "Quadratic: fixed/decay at eps = 1e-4, where the rippled landscape has "
            "thousands already at 5e-2",
            ratio[-1],
        ),
    )
    return metrics, {"control": _figure(data)}, claims


def _figure(data):
    figure, panels = new_figure(
        "Control, a strongly convex quadratic: no exponential gap", columns=2
    )
    left, right = panels[0]
    inverse = 1 / np.array(TARGETS)
    left.plot(inverse, data["fixed"], label="best fixed rate")
    left.plot(inverse, data["decay"], label="best decay, 1/k")
    left.set(xlabel="1 / target", ylabel="queries")
    log_axes(left, ticks=list(inverse))
    left.legend()
    right.plot(inverse, data["fixed"] / data["decay"], color="#000000")
    right.set(xlabel="1 / target", ylabel="fixed / decay", ylim=(0, 5))
    log_axes(right, "x", ticks=list(inverse))
    right.set_title("a straight line: a logarithm")
    return figure
