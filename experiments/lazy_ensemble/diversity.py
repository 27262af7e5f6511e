"""How well the members spread: the best member in the worst direction."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.eqol.policies import ROWS, World, row_title
from experiments.eqol.runs import compiled, together
from experiments.figures import GREY, new_figure, threshold_line
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import (
    lazy_ensemble,
    lazy_size,
    standard,
    standard_size,
)
from experiments.results import Metric
from experiments.statistics import proportion_interval
from jaxopt_suite.core import interaction_loop
from jaxopt_suite.problems.linear_bandit import draw_features

CLAIMED = 10
DIRECTIONS = 500
LABELS = ("d/2", "d", "size", "d log T")
KINDS = ("lazy", "standard")


def world(d: int) -> World:
    """The first problem of the comparison, or larger ones like its third."""
    return ROWS["fixed10"] if d == CLAIMED else World(d, 100, 0.3, "pool", 5)


def sizes(config: Config, d: int) -> tuple[int, ...]:
    """The sizes of the ensembles."""
    horizon = config.horizon
    return (d // 2, d, lazy_size(d, horizon), standard_size(d, horizon))


def most_refreshes(config: Config, d: int) -> int:
    """The bound on the number of refreshes."""
    return int(d * np.log2(1 + config.horizon / d))


def num_seeds(config: Config) -> int:
    """A few: there are many refreshes in each."""
    return max(2, config.few_seeds // 2)


def worst_gain(V_inv, offsets, members, directions):
    """``min_u max_j <u, V^(1/2) D^j>`` over the first members.

    Args:
        V_inv: inverse Gram matrix.
        offsets: the members at unit scale.
        members: how many of them count; may be traced.
        directions: unit vectors, one a row.
    """
    values, vectors = jnp.linalg.eigh(V_inv)
    root = (vectors / jnp.sqrt(values)) @ vectors.T
    gains = directions @ root @ offsets.T
    counted = jnp.arange(len(offsets)) < members
    return jnp.min(jnp.max(jnp.where(counted, gains, -jnp.inf), axis=1))


def kept_rounds(family, config: Config, d: int, key, members, wanted=None):
    """One run, and the statistics and members of the rounds that are kept.

    Args:
        family: of ensembles.
        config: sizes.
        d: dimension.
        key: of the run.
        members: how many are followed.
        wanted: which rounds to keep; None: those that refresh.

    Returns:
        Which rounds were kept, and the worst gain in each of them, in order; NaN after
        the last.
    """
    problem, room = world(d), most_refreshes(config, d)
    policy = family(problem, {"members": members})
    loop = interaction_loop(policy, problem.environment({}), config.horizon)
    directions = draw_features(jax.random.key(0), (DIRECTIONS, d))

    def step(carry, want):
        state, number, kept = carry
        _, state = loop.update(None, state)
        keep = state.policy.refreshed if want is None else want
        # Lazy offsets are at their scale, standard ones at unit scale.
        unit = state.policy.scale if want is None else 1.0
        new = (state.policy.ridge.V_inv, state.policy.offsets / unit)
        # What need not be kept is written over by the next round.
        kept = jax.tree.map(lambda a, b: a.at[number].set(b), kept, new)
        return (state, number + keep, kept), keep

    start = loop.init(key)
    shapes = (start.policy.ridge.V_inv.shape, start.policy.offsets.shape)
    blank = tuple(jnp.zeros((room + 1, *shape)) for shape in shapes)
    (_, number, kept), rounds = jax.lax.scan(
        step, (start, jnp.zeros((), jnp.int32), blank), wanted, length=config.horizon
    )
    gains = jax.lax.map(
        lambda row: worst_gain(row[0], row[1], members, directions),
        jax.tree.map(lambda x: x[:room], kept),
    )
    return rounds, jnp.where(jnp.arange(room) < number, gains, jnp.nan)


def at_dimension(config: Config, d: int, key) -> tuple[np.ndarray, np.ndarray]:
    """Rounds of the refreshes, and the worst gains in them of lazy and standard.

    Returns:
        Shapes (sizes, seeds, horizon) and (kinds, sizes, seeds, refreshes).
    """
    seeds, most = jax.random.split(key, num_seeds(config)), sizes(config, d)[-1]
    lazy = lazy_ensemble(most, members="explicit")

    def both(seed, members):
        rounds, gains = kept_rounds(lazy, config, d, seed, members)
        _, beside = kept_rounds(standard(most), config, d, seed, members, rounds)
        return rounds, jnp.stack([gains, beside])

    @compiled
    def run(seeds, members):
        return jax.lax.map(
            lambda m: jax.lax.map(lambda seed: both(seed, m), seeds), members
        )

    rounds, gains = run(seeds, jnp.array(sizes(config, d)))
    return np.asarray(rounds), np.moveaxis(np.asarray(gains), 2, 0)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Rounds and gains of every d."""
    calls = [
        functools.partial(at_dimension, config, d, jax.random.fold_in(key, d))
        for d in config.diversity_dimensions
    ]
    data = {}
    for d, (rounds, gains) in zip(
        config.diversity_dimensions, together(calls), strict=True
    ):
        data |= {f"rounds{d}": rounds, f"gains{d}": gains}
    return data


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    metrics = {
        f"diversity_d{d}": Metric(
            np.nanmean(data[f"gains{d}"], axis=-1),
            (("kind", KINDS), ("members", LABELS), ("seed", range(num_seeds(config)))),
        )
        for d in config.diversity_dimensions
    }
    return metrics, {"diversity": _figure(config, data)}, tuple(_claims(config, data))


def _claims(config, data):
    for d in config.diversity_dimensions:
        lazy, beside = data[f"gains{d}"]
        for label, members, gains, others in zip(
            LABELS, sizes(config, d), lazy, beside, strict=True
        ):
            yield Claim(
                f"d={d}, m={members} ({label}): gain of the best member in the worst "
                "direction, mean over refreshes of the lazy ensemble (standard at the "
                f"same rounds: {np.nanmean(others):.2f})",
                np.nanmean(gains),
            )
    if CLAIMED not in config.diversity_dimensions:
        return
    small, _, size, _ = sizes(config, CLAIMED)
    gains = data[f"gains{CLAIMED}"][0]
    yield Claim(
        f"{row_title('fixed10')}, m={size}: gain of the best member in the worst "
        f"direction, least of all refreshes of {num_seeds(config)} seeds",
        np.nanmin(gains[LABELS.index("size")]),
        at_least(0.4),
    )
    found = gains[LABELS.index("d/2")]
    found = found[np.isfinite(found)]
    yield Claim(
        f"{row_title('fixed10')}, m={small}: share of refreshes at which it is not "
        "negative",
        np.mean(found >= 0),
        at_most(0.1),
        proportion_interval(int(np.sum(found >= 0)), len(found)),
    )


def _figure(config, data):
    figure, panels = new_figure(
        "Best member's gain in the worst direction",
        columns=len(config.diversity_dimensions),
        panel=(4.2, 3.4),
        sharey=True,
    )
    for axes, d in zip(panels[0], config.diversity_dimensions, strict=True):
        for number, (label, members) in enumerate(
            zip(LABELS, sizes(config, d), strict=True)
        ):
            at = np.flatnonzero(data[f"rounds{d}"][number, 0]) + 1
            lazy, beside = data[f"gains{d}"][:, number, 0, : len(at)]
            name, colour = f"m={members} ({label})", f"C{number}"
            axes.plot(at, lazy, "-", color=colour, markersize=2, label=name)
            axes.plot(at, beside, ":", color=colour, marker="", label="_")
        axes.axhline(0.0, color=GREY, linewidth=1, marker="")
        if d == CLAIMED:
            threshold_line(axes, at_least(0.4))
        axes.set_title(f"d={d}; dotted: standard")
        axes.set_xlabel("rounds, at the refreshes of one run")
        axes.set_xscale("log")
        axes.legend(loc="lower center", ncols=2)
    panels[0, 0].set_ylabel("gain in units of v")
    # Shared by all panels, and low enough for the legends.
    panels[0, 0].set_ylim(bottom=-2.1)
    return figure
