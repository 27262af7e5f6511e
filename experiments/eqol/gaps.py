"""A best arm that leads by a gap: regret against rounds, gap and dimension."""

import functools

import jax
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.eqol.bounds import gap_bound
from experiments.eqol.config import Config
from experiments.eqol.policies import Named, World, index_policies
from experiments.eqol.runs import race, ratio_of_means, slope, together
from experiments.figures import log_axes, new_figure
from experiments.results import Metric
from experiments.statistics import bootstrap_interval

ROWS = 64
WORLD = World(5, 20, 0.3, "gap")
# What EQOL's mean regret may be of OFUL's, by gap.
FRACTIONS = {0.4: 1.1, 0.2: 0.75, 0.1: 0.5}
DIMENSION_GAP, DIMENSION_HORIZON = 0.3, 4000


def policies(gap: float) -> list[Named]:
    """What is compared, at a gap."""
    return [
        policy._replace(point={**policy.point, "gap": gap})
        for policy in index_policies(WORLD.noise)
        if policy.name != "EQOL a=.05"
    ]


NAMES = [policy.name for policy in policies(1.0)]


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of shape (gaps, policies, seeds, rows), and in d."""
    gap_key, *keys = jax.random.split(key, 1 + len(config.gap_dimensions))
    named = [policy for gap in config.gaps for policy in policies(gap)]

    def over_gaps():
        seeds = jax.random.split(gap_key, config.study_seeds)
        return race(named, WORLD, seeds, config.gap_horizon, checkpoints=ROWS)

    def at_dimension(d, key):
        seeds = jax.random.split(key, config.study_seeds)
        return race(
            policies(DIMENSION_GAP),
            WORLD._replace(d=d),
            seeds,
            DIMENSION_HORIZON,
            checkpoints=2,
        )

    calls = [
        functools.partial(at_dimension, d, k)
        for d, k in zip(config.gap_dimensions, keys, strict=True)
    ]
    gaps, *dimensions = together([over_gaps, *calls])
    shape = (len(config.gaps), len(NAMES), config.study_seeds)
    data = {
        "regret": gaps.regret.reshape(*shape, ROWS),
        "logdet": gaps.logdet.reshape(shape),
    }
    if dimensions:
        data["d_regret"] = np.stack([race.regret for race in dimensions])
        data["d_logdet"] = np.stack([race.logdet for race in dimensions])
    return data


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims of both studies."""
    seeds = range(config.study_seeds)
    axes = (("policy", NAMES), ("seed", seeds))
    metrics = {
        "gap_regret": Metric(data["regret"][..., -1], (("gap", config.gaps), *axes))
    }
    if config.gap_dimensions:
        metrics["gap_dimension_regret"] = Metric(
            data["d_regret"][..., -1], (("d", config.gap_dimensions), *axes)
        )
    claims = (*_gap_claims(config, data), *_dimension_claims(config, data))
    return metrics, {"gaps": _figure(config, data)}, claims


def _gap_claims(config, data):
    horizon = config.gap_horizon
    of = NAMES.index
    for number, gap in enumerate(config.gaps):
        runs = data["regret"][number].astype(np.float64)
        final = runs[..., -1]
        value, interval = ratio_of_means(final[of("EQOL")], final[of("OFUL")])
        yield Claim(
            f"Gap {gap:g}, T={horizon:,}: mean regret, EQOL over OFUL",
            value,
            at_most(FRACTIONS[gap]),
            interval,
        )
        yield Claim(
            f"Gap {gap:g}: the gap times EQOL's mean regret",
            gap * final[of("EQOL")].mean(),
            at_most(40.0),
            bootstrap_interval(gap * final[of("EQOL")]),
        )
        middle = runs[of("EQOL"), :, ROWS // 2 - 1]
        value, interval = ratio_of_means(final[of("EQOL")] - middle, final[of("EQOL")])
        yield Claim(
            f"Gap {gap:g}: share of EQOL's regret in the last half of the rounds",
            value,
            at_most(0.4),
            interval,
        )
        yield Claim(
            f"Gap {gap:g}: greedy's worst regret over the gap times T (it can lock in)",
            final[of("greedy")].max() / (gap * horizon),
            at_least(0.1),
        )
    bound = np.stack(
        [
            gap_bound(logdet[of("EQOL")], horizon, WORLD, gap)
            for gap, logdet in zip(config.gaps, data["logdet"], strict=True)
        ]
    )
    regret = data["regret"][:, of("EQOL"), :, -1]
    yield Claim(
        "Gap study: EQOL's regret over the gap-dependent bound, worst seed and gap",
        np.max(regret / bound),
        at_most(1.0),
    )


def _dimension_claims(config, data):
    if not config.gap_dimensions:
        return
    regret = data["d_regret"][:, NAMES.index("EQOL")].astype(np.float64)
    value, interval = slope(config.gap_dimensions, regret[..., -1])
    where = f"Gap {DIMENSION_GAP:g}, d in {config.gap_dimensions}"
    yield Claim(
        f"{where}: slope of log regret in log d for EQOL (2 in the bound)",
        value,
        at_most(2.0),
        interval,
    )
    share = 1 - regret[..., 0].mean(axis=1) / regret[..., 1].mean(axis=1)
    yield Claim(
        f"{where}: largest share of EQOL's regret in the second half of the rounds",
        share.max(),
    )
    logdet = data["d_logdet"][:, NAMES.index("EQOL")]
    bound = np.stack(
        [
            gap_bound(row, DIMENSION_HORIZON, WORLD._replace(d=d), DIMENSION_GAP)
            for d, row in zip(config.gap_dimensions, logdet, strict=True)
        ]
    )
    yield Claim(
        f"{where}: EQOL's regret over the gap-dependent bound, worst seed and d",
        np.max(regret[..., -1] / bound),
        at_most(1.0),
    )


def _figure(config, data):
    figure, panels = new_figure(
        f"Regret where one arm leads (d={WORLD.d}, K={WORLD.K}, R={WORLD.noise:g}): "
        f"mean of {config.study_seeds} seeds; bands: all seeds of EQOL and OFUL",
        columns=len(config.gaps),
        sharey=True,
    )
    rounds = np.arange(1, ROWS + 1) * config.gap_horizon / ROWS
    for axes, gap, runs in zip(panels[0], config.gaps, data["regret"], strict=True):
        for name, regret in zip(NAMES, runs, strict=True):
            (line,) = axes.plot(rounds, regret.mean(axis=0), label=name, marker="")
            if name in ("EQOL", "OFUL"):
                low, high = regret.min(axis=0), regret.max(axis=0)
                colour = line.get_color()
                axes.fill_between(
                    rounds, low, high, color=colour, alpha=0.15, linewidth=0
                )
        axes.set(title=f"gap {gap:g}", xlabel="rounds")
        log_axes(axes, "xy")
    panels[0, 0].set_ylabel("regret")
    panels[0, 0].legend()
    return figure
