"""Regret against the size of the ensemble, and beside all other policies."""

import functools

import jax
import numpy as np

from experiments.claims import Claim, at_most
from experiments.eqol.policies import ROWS, Named, row_title, thompson
from experiments.eqol.runs import ratio_of_means, together
from experiments.figures import GREY, PALETTE, log_axes, new_figure
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import (
    baselines,
    lazy_ensembles,
    lazy_size,
    standard_ensembles,
    standard_size,
    thompson_point,
    variants,
)
from experiments.lazy_ensemble.runs import race
from experiments.results import Metric
from experiments.statistics import bootstrap_interval

FIRST = "fixed10"
# A standard ensemble has a heavy tail over seeds: a ratio of means needs this many.
ENOUGH_SEEDS = 48


def counts(config: Config, row: str) -> tuple[int, ...]:
    """The sizes of the ensembles on a problem, in order."""
    d, horizon = ROWS[row].d, config.horizon
    others = (d // 2, d, 2 * d) if config.everything else (d // 2,)
    sizes = (lazy_size(d, horizon), standard_size(d, horizon))
    return tuple(sorted({*config.member_counts, *others, *sizes}))


def policies(config: Config, row: str) -> list[Named]:
    """Everything that runs on a problem; variants on the first one alone."""
    world = ROWS[row]
    sizes = counts(config, row)
    named = [*standard_ensembles(sizes), *lazy_ensembles(sizes)]
    if not config.everything:
        return [*named, Named("LinTS v=R", thompson, thompson_point(world.noise))]
    named += baselines(world, config.horizon)
    return named + variants(world, config.horizon) if row == FIRST else named


def num_seeds(config: Config, row: str) -> int:
    """The first problem has more seeds than the others."""
    return config.num_seeds if row == FIRST else config.other_seeds


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of every problem, of shape (policies, seeds)."""

    def call(number, row):
        keys = jax.random.split(jax.random.fold_in(key, number), num_seeds(config, row))
        return race(policies(config, row), ROWS[row], keys, config.horizon).regret

    calls = [functools.partial(call, *item) for item in enumerate(config.rows)]
    found = together(calls)
    return {row: x[..., -1] for row, x in zip(config.rows, found, strict=True)}


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    metrics, finals = {}, {}
    for row in config.rows:
        regret = data[row]
        names = [policy.name for policy in policies(config, row)]
        finals[row] = dict(zip(names, regret.astype(np.float64), strict=True))
        axes = (("policy", names), ("seed", range(num_seeds(config, row))))
        metrics[f"regret_{row}"] = Metric(regret, axes)
        metrics[f"mean_regret_{row}"] = Metric(regret.mean(axis=-1), axes[:1])
        metrics[f"median_regret_{row}"] = Metric(np.median(regret, axis=-1), axes[:1])
        metrics[f"worst_regret_{row}"] = Metric(regret.max(axis=-1), axes[:1])
    figures = {"sizes": _sizes_figure(config, finals)}
    if config.everything:
        figures["policies"] = policies_figure(
            f"Regret after {config.horizon:,} rounds: every seed, and the mean",
            {row_title(row): found for row, found in finals.items()},
        )
    claims = []
    if FIRST in finals:
        claims += _small_claims(config, finals[FIRST])
    for row, found in finals.items():
        claims += _recommended_claims(config, row, found)
    claims.append(_size_claim(config))
    return metrics, figures, tuple(claims)


def _small_claims(config, finals):
    small = ROWS[FIRST].d // 2
    lazy, standard = finals[f"lazy m={small}"], finals[f"ES m={small}"]
    where = f"{row_title(FIRST)}, m = d/2 = {small}"
    enough = len(lazy) >= ENOUGH_SEEDS
    value, interval = ratio_of_means(lazy, standard)
    yield Claim(
        f"{where}: mean regret, lazy over standard ensemble sampling",
        value,
        at_most(0.7) if enough else None,
        interval,
    )
    value, interval = ratio_of_means(lazy, finals["LinTS v=R"])
    yield Claim(
        f"{where}: mean regret, lazy ensemble over LinTS with v = R",
        value,
        at_most(1.3) if enough else None,
        interval,
    )
    yield Claim(
        f"{where}: regret of the worst of {len(lazy)} seeds, lazy over standard",
        lazy.max() / standard.max(),
        at_most(0.6) if enough else None,
    )
    for name, regret in (("lazy", lazy), ("standard", standard)):
        yield Claim(
            f"{where}: median regret of the {name} ensemble (mean {regret.mean():.0f}, "
            f"worst {regret.max():.0f})",
            np.median(regret),
            None,
            bootstrap_interval(regret, np.median, method="percentile"),
        )


def _recommended_claims(config, row, finals):
    d, horizon = ROWS[row].d, config.horizon
    size, large = lazy_size(d, horizon), standard_size(d, horizon)
    lazy, standard = finals[f"lazy m={size}"], finals[f"ES m={large}"]
    where = f"{row_title(row)}: mean regret, lazy m={size} over"
    value, interval = ratio_of_means(lazy, finals["LinTS v=R"])
    yield Claim(f"{where} LinTS with v = R", value, at_most(1.25), interval)
    error = np.std(lazy - standard, ddof=1) / np.sqrt(len(lazy))
    allowed = 1.25 * standard + 2 * error
    value, interval = ratio_of_means(lazy, allowed)
    plain = lazy.mean() / standard.mean()
    yield Claim(
        f"{where} 1.25 times that of ES m={large} plus 2 standard errors of the "
        f"difference (over ES alone: {plain:.2f})",
        value,
        at_most(1.0),
        interval,
    )


def _size_claim(config):
    dimensions = sorted({ROWS[row].d for row in config.rows})
    return Claim(
        f"Members over d log T, largest of d in {dimensions}, T={config.horizon:,}",
        max(
            lazy_size(d, config.horizon) / (d * np.log(config.horizon))
            for d in dimensions
        ),
        at_most(0.65),
    )


def _sizes_figure(config, finals):
    figure, panels = new_figure(
        f"Regret after {config.horizon:,} rounds: mean, 5% to 95%",
        columns=len(finals),
        panel=(4.2, 3.4),
    )
    for axes, (row, found) in zip(panels[0], finals.items(), strict=True):
        sizes = counts(config, row)
        for name, label in (("ES", "standard"), ("lazy", "lazy")):
            runs = np.stack([found[f"{name} m={m}"] for m in sizes])
            (line,) = axes.plot(sizes, runs.mean(axis=-1), label=label)
            low, high = np.quantile(runs, (0.05, 0.95), axis=-1)
            axes.fill_between(
                sizes, low, high, color=line.get_color(), alpha=0.15, linewidth=0
            )
        for name, style in (("LinTS v=R", "--"), ("OFUL", ":")):
            if name in found:
                axes.axhline(
                    found[name].mean(),
                    color=GREY,
                    linestyle=style,
                    linewidth=1,
                    marker="",
                    label=name,
                )
        d = ROWS[row].d
        axes.axvline(lazy_size(d, config.horizon), color=GREY, linewidth=0.6, marker="")
        axes.set(title=row_title(row), xlabel="members (line: d log d + d log log T)")
        log_axes(axes, "xy", ticks=sizes)
        axes.tick_params(axis="x", labelrotation=45)
    panels[0, 0].set_ylabel("regret")
    panels[0, 0].legend()
    return figure


def policies_figure(
    title: str, finals: dict[str, dict[str, np.ndarray]], counted: str = "regret"
):
    """One panel a problem, one line a policy: a dot per seed, a diamond for the mean.

    Args:
        title: over all panels.
        finals: title of a problem -> name of a policy -> figure of every seed.
        counted: what the figures are.
    """
    longest = max(map(len, finals.values()))
    figure, panels = new_figure(
        title, columns=len(finals), panel=(4.0, 0.22 * longest + 1.1)
    )
    for axes, (name, found) in zip(panels[0], finals.items(), strict=True):
        heights = np.arange(len(found))[::-1]
        for height, (policy, regret) in zip(heights, found.items(), strict=True):
            colour = PALETTE[1] if policy.startswith("lazy") else PALETTE[0]
            axes.plot(
                regret,
                np.full(len(regret), height),
                ".",
                linestyle="",
                color=colour,
                alpha=0.35,
                markeredgewidth=0,
            )
            axes.plot(regret.mean(), height, "D", color=colour)
        axes.set(yticks=heights, xlabel=counted, ylim=(-0.6, len(found) - 0.4))
        axes.set_yticklabels(list(found))
        axes.set_title(name)
        log_axes(axes, "x")
    return figure
