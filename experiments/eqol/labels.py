"""Real data as bandits: defaults, and every method at the best of its grid."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_most
from experiments.eqol.config import Config
from experiments.eqol.policies import (
    Named,
    all_policies,
    context_rows,
    data_world,
    epsilon,
    eqol_point,
    index,
    index_policies,
    labelled,
    thompson,
)
from experiments.eqol.runs import compiled, race, ratio_of_means, together
from experiments.figures import PALETTE, log_axes, new_figure
from experiments.results import Metric
from jaxopt_suite import bandits, problems
from jaxopt_suite.core.interaction import interaction_keys

# What EQOL's mistakes may be of those of others, by data set.
OVER_OFUL = {"digits": 0.35, "cancer": 0.7, "wine": 0.4, "iris": 0.85}
TUNED = {"LinUCB": 1.15, "LinTS": 1.05}
GRIDS = {
    "EQOL": [
        Named(f"a={a:g} cap={cap:g}", index, eqol_point(a, cap))
        for a in (0.02, 0.05, 0.1, 0.2)
        for cap in (0.1, 0.3, 1.0)
    ],
    "LinUCB": [
        Named(f"alpha={alpha:g}", index, eqol_point(np.inf, 0.0, alpha))
        for alpha in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    ],
    "OFUL": [
        Named(f"width={width:g}", index, eqol_point(np.inf, width))
        for width in (0.01, 0.03, 0.1, 0.3, 1.0)
    ],
    "LinTS": [
        Named(f"scale={s:g}", thompson, {"multiplier": 0.0, "scale": s})
        for s in (0.02, 0.05, 0.1, 0.2, 0.5)
    ],
    "epsilon-greedy": [
        Named(f"epsilon={e:g}", epsilon, {"epsilon": e}) for e in (0.0, 0.01, 0.05, 0.1)
    ],
}
GRID = [
    policy._replace(name=f"{method} {policy.name}")
    for method, policies in GRIDS.items()
    for policy in policies
]
CEILING = "all rewards seen"


def defaults(config: Config, name: str) -> list[Named]:
    """What runs untuned."""
    world = data_world(name)
    if not config.everything:
        return index_policies(world.noise)
    return all_policies(world, config.data_rounds)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Mistakes of shape (policies, seeds): the tuning seeds first."""
    num_seeds = config.tuning_seeds + config.few_seeds

    def on(name, key):
        keys = jax.random.split(key, num_seeds)
        mistakes = race(
            [*defaults(config, name), *GRID],
            data_world(name),
            keys,
            config.data_rounds,
        ).regret[..., -1]
        ceiling = full_information(name, config.data_rounds)(keys)
        return np.concatenate([mistakes, np.asarray(ceiling)[None]])

    keys = jax.random.split(key, len(config.data_sets))
    calls = [
        functools.partial(on, name, k)
        for name, k in zip(config.data_sets, keys, strict=True)
    ]
    return dict(zip(config.data_sets, together(calls), strict=True))


@functools.cache
def full_information(name: str, num_rounds: int):
    """Mistakes of ridge classification on the rows that the bandits see, by key."""
    data, world = labelled(name), data_world(name)
    rows, environment = context_rows(name), world.environment({})
    learner = bandits.supervised_ridge(world.d, world.K)

    def run(key):
        keys = interaction_keys(key)
        start, context = environment.init(keys.environment)
        nothing = bandits.LinearDecision(jnp.zeros((), int), context.features)

        def step(carry, t):
            shown, state = carry
            row = problems.LabelledData(rows[shown.row], data.labels[shown.row])
            decision, state = learner.update(row, state)
            shown, _, _ = environment.step(
                shown, nothing, jax.random.fold_in(keys.step, t)
            )
            return (shown, state), 1 - decision.reward

        first = (start, learner.init(rows[0]))
        return jax.lax.scan(step, first, np.arange(num_rounds))[1].sum()

    return compiled(jax.vmap(run))


def split(config: Config, name: str, mistakes: np.ndarray):
    """Defaults with the ceiling on report seeds; grids on tuning and report seeds."""
    count, tuning = len(defaults(config, name)), config.tuning_seeds
    names = [policy.name for policy in defaults(config, name)] + [CEILING]
    untuned = np.concatenate([mistakes[:count, tuning:], mistakes[-1:, tuning:]])
    ends = np.cumsum([len(policies) for policies in GRIDS.values()])[:-1]
    grids = dict(zip(GRIDS, np.split(mistakes[count:-1], ends), strict=True))
    return dict(zip(names, untuned.astype(np.float64), strict=True)), {
        method: (grid[:, :tuning].astype(float), grid[:, tuning:].astype(float))
        for method, grid in grids.items()
    }


def chosen(grids) -> dict[str, np.ndarray]:
    """Mistakes on report seeds of the point that is best on tuning seeds."""
    return {
        method: report[np.argmin(tuning.mean(axis=1))]
        for method, (tuning, report) in grids.items()
    }


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims on all data sets."""
    metrics, claims = {}, []
    seeds = ("seed", range(config.few_seeds))
    for name in config.data_sets:
        untuned, grids = split(config, name, data[name])
        metrics[f"mistakes_{name}"] = Metric(
            np.stack(list(untuned.values())), (("policy", list(untuned)), seeds)
        )
        metrics[f"grid_{name}"] = Metric(
            np.concatenate([report for _, report in grids.values()]),
            (("point", [policy.name for policy in GRID]), seeds),
        )
        best = chosen(grids)
        metrics[f"tuned_{name}"] = Metric(
            np.stack(list(best.values())), (("method", list(best)), seeds)
        )
        claims += [*_default_claims(config, name, untuned), *_tuned(name, grids)]
    figures = {"data": _figure(config, data), "data_grids": _grid_figure(config, data)}
    return metrics, figures, tuple(claims)


def _default_claims(config, name, untuned):
    wanted = [("EQOL", "OFUL", at_most(OVER_OFUL[name]))]
    if name == "digits":
        wanted.append(("EQOL a=.05", "OFUL", at_most(0.25)))
        if "LinTS scale=R" in untuned:
            wanted.append(("EQOL", "LinTS scale=R", at_most(0.9)))
    wanted += [("EQOL", peer, None) for peer in ("LinUCB alpha=R", CEILING)]
    for ours, peer, threshold in wanted:
        value, interval = ratio_of_means(untuned[ours], untuned[peer])
        yield Claim(
            f"{name}, {config.data_rounds:,} rows: mistakes, {ours} over {peer}",
            value,
            threshold,
            interval,
        )


def _tuned(name, grids):
    best = chosen(grids)
    for peer, allowed in TUNED.items():
        ours, theirs = best["EQOL"], best[peer]
        error = np.std(ours - theirs, ddof=1) / math.sqrt(len(ours))
        ratio, interval = ratio_of_means(ours, theirs)
        yield Claim(
            f"{name}, tuned on other seeds: mistakes, EQOL over {peer} ({ratio:.3f}), "
            "less two standard errors of the paired difference",
            (ours.mean() - 2 * error) / theirs.mean(),
            at_most(allowed),
            interval,
        )
    for method in ("EQOL", "LinUCB", "OFUL", "LinTS"):
        means = grids[method][1].mean(axis=1)
        yield Claim(
            f"{name}: mistakes at the worst point of {method}'s grid over the best",
            means.max() / means.min(),
        )


def _figure(config, data):
    longest = max(len(defaults(config, name)) + 1 for name in data)
    figure, panels = new_figure(
        f"Mistakes on {config.data_rounds:,} rows, untuned: mean and range of "
        f"{config.few_seeds} seeds",
        columns=len(data),
        panel=(2.8, 0.24 * longest + 1.0),
        sharey=True,
    )
    for axes, name in zip(panels[0], config.data_sets, strict=True):
        untuned, _ = split(config, name, data[name])
        heights = np.arange(len(untuned))[::-1]
        for height, (policy, found) in zip(heights, untuned.items(), strict=True):
            colour = PALETTE[1] if policy.startswith("EQOL") else PALETTE[0]
            colour = PALETTE[6] if policy == CEILING else colour
            axes.hlines(height, found.min(), found.max(), color=colour, linewidth=1.5)
            axes.plot(found.mean(), height, "D", color=colour)
        axes.set(yticks=heights, yticklabels=list(untuned), title=name)
        axes.set(xlabel="mistakes")
        log_axes(axes, "x")
    return figure


def _grid_figure(config, data):
    figure, panels = new_figure(
        "Mistakes of every point of the grids, mean over report seeds; "
        "filled: chosen on tuning seeds",
        columns=len(data),
        panel=(2.8, 2.4),
        sharey=True,
    )
    for axes, name in zip(panels[0], config.data_sets, strict=True):
        _, grids = split(config, name, data[name])
        best = chosen(grids)
        heights = np.arange(len(grids))[::-1]
        for height, (method, (_, report)) in zip(heights, grids.items(), strict=True):
            means = report.mean(axis=1)
            colour = PALETTE[1] if method == "EQOL" else PALETTE[0]
            axes.plot(
                means,
                np.full(len(means), height),
                "o",
                linestyle="",
                color=colour,
                fillstyle="none",
            )
            axes.plot(best[method].mean(), height, "D", color=colour)
        axes.set(yticks=heights, yticklabels=list(grids), title=name)
        axes.set(xlabel="mistakes", ylim=(-0.6, len(grids) - 0.4))
        log_axes(axes, "x")
    return figure
