"""Labelled data as bandits: every mistake costs 1."""

import functools

import jax
import numpy as np

from experiments.claims import Claim
from experiments.eqol.policies import (
    Named,
    World,
    data_world,
    eqol_point,
    index,
    thompson,
)
from experiments.eqol.runs import ratio_of_means, together
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import (
    OFUL_POINT,
    THEORY_POINT,
    lazy_ensembles,
    lazy_size,
    standard_ensembles,
    thompson_point,
)
from experiments.lazy_ensemble.runs import race
from experiments.lazy_ensemble.sizes import policies_figure
from experiments.results import Metric

SMALL = (5, 30)
# Members of 650 parameters each: those of all seeds at once leave the cache.
LARGE = ("digits",)


def size(config: Config, world: World) -> int:
    """The recommended number of members for all arms' parameters."""
    return lazy_size(world.d * world.K, config.data_rounds)


def policies(config: Config, world: World) -> list[Named]:
    """Lazy ensembles of every size; standard ones, which are stored, only small."""
    noise = world.noise
    return [
        *standard_ensembles(SMALL),
        *lazy_ensembles((*SMALL, size(config, world))),
        Named("LinTS v=R", thompson, thompson_point(noise)),
        Named("LinTS theory", thompson, THEORY_POINT),
        Named("OFUL", index, OFUL_POINT),
        Named("LinUCB alpha=R", index, eqol_point(a=np.inf, cap=0.0, alpha=noise)),
        Named("EQOL", index, eqol_point()),
        Named("greedy", index, eqol_point(a=0.0)),
    ]


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Mistakes on every data set, of shape (policies, seeds)."""

    def call(number, name):
        world = data_world(name)
        return race(
            policies(config, world),
            world,
            jax.random.split(jax.random.fold_in(key, number), config.data_seeds),
            config.data_rounds,
            one_by_one=name in LARGE,
        ).regret[..., -1]

    calls = [functools.partial(call, *item) for item in enumerate(config.data_sets)]
    return dict(zip(config.data_sets, together(calls), strict=True))


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    metrics, finals, claims = {}, {}, []
    for name in config.data_sets:
        mistakes = data[name]
        names = [policy.name for policy in policies(config, data_world(name))]
        axes = (("policy", names), ("seed", range(config.data_seeds)))
        metrics[f"mistakes_{name}"] = Metric(mistakes, axes)
        metrics[f"mean_mistakes_{name}"] = Metric(mistakes.mean(axis=-1), axes[:1])
        found = dict(zip(names, mistakes.astype(np.float64), strict=True))
        finals[name] = found
        lazy = found[f"lazy m={size(config, data_world(name))}"]
        for peer in ("LinTS v=R", "OFUL", f"lazy m={SMALL[0]}"):
            value, interval = ratio_of_means(lazy, found[peer])
            claims.append(
                Claim(
                    f"{name}: mean mistakes in {config.data_rounds:,} rounds, lazy "
                    f"m={size(config, data_world(name))} over {peer}",
                    value,
                    None,
                    interval,
                )
            )
    title = f"Mistakes in {config.data_rounds:,} rounds: every seed, and the mean"
    return metrics, {"data": policies_figure(title, finals, "mistakes")}, tuple(claims)
