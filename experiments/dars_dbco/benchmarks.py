"""DARS against methods that do not restart, over lengths and numbers of segments."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, Interval, at_least
from experiments.dars_dbco.config import Config
from experiments.dars_dbco.runs import (
    Case,
    equal_starts,
    play,
    switching_losses,
    together,
)
from experiments.figures import new_figure
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from jaxopt_suite.bandits.bco_baselines import bandit_mild_ogd, delayed_bgd
from jaxopt_suite.core import interact
from jaxopt_suite.problems.bco import LossSequence, bco_env

DELAY = 64
GRID_RADII = (0.05, 0.1, 0.2, 0.4)
GRID_STEPS = (0.003, 0.01, 0.03, 0.1)
DFTBL, BGD, BGD_STRONG, BGD_GRID, MILD = METHODS = (
    "D-FTBL, no restart",
    "delayed BGD, convex tuning",
    "delayed BGD, strong tuning",
    "delayed BGD, best of 16 on the instance",
    "bandit Mild-OGD",
)
THRESHOLDS = {"convex": (3.0, 2.2, 1.4), "strong": (7.0, 3.2, 2.3)}
PAPER = {"convex": "up to 9.17x less regret than the strongest", "strong": None}


class Cell(NamedTuple):
    """A cell of the table: rounds of a segment, and how many there are."""

    length: int
    count: int

    @property
    def horizon(self) -> int:
        """All rounds."""
        return self.length * self.count

    def plan(self) -> tuple[int, int]:
        """Horizon and number of segments."""
        return self.horizon, self.count

    def __str__(self) -> str:
        return f"2^{self.length.bit_length() - 1} x {self.count}"


def cells(config: Config) -> list[Cell]:
    """All cells, in the order of the table."""
    pairs = zip(config.lengths, config.counts, strict=True)
    return [Cell(length, count) for length, counts in pairs for count in counts]


def theory_tuning(horizon: int, n: int, delay: int, *, strong: bool = False):
    """Radius, and step size or 0 for the schedule ``1 / (t + 1)``, of delayed BGD."""
    if strong:
        return (n**2 * math.log(horizon) / horizon) ** (1 / 3), 0.0
    delta = math.sqrt(n) * horizon**-0.25
    return delta, 1 / math.sqrt(horizon * ((n / delta) ** 2 + 2 * delay))


def either_losses(strong: jax.Array, length: jax.Array) -> LossSequence:
    """The norm or the strongly convex losses; both arguments may be traced."""
    one, other = (switching_losses(2, kind, length) for kind in (False, True))
    return one._replace(
        value=lambda x, t: jnp.where(strong, other.value(x, t), one.value(x, t))
    )


@functools.partial(jax.jit, static_argnames=("horizon", "rows"))
def _bgd(keys, kinds, lengths, deltas, etas, *, horizon: int, rows: int):
    """Regret of delayed BGD: (seeds, kinds, lengths, tunings, rows)."""

    def one(key, strong, length, delta, eta):
        policy = delayed_bgd(
            jnp.zeros(2),
            delta=delta,
            eta=lambda t: jnp.where(eta > 0, eta, 1 / (t + 1)),
        )
        env = bco_env(either_losses(strong, length))
        return interact(
            policy, env, key, horizon, delays=DELAY, checkpoints=rows
        ).record.regret

    # Keys outside: the lanes of a seed then draw their directions once for all.
    over_tunings = jax.vmap(one, (None, None, None, 0, 0))
    over_lengths = jax.vmap(over_tunings, (None, None, 0, None, None))
    over_kinds = jax.vmap(over_lengths, (None, 0, None, None, None))
    return jax.vmap(lambda key: over_kinds(key, kinds, lengths, deltas, etas))(keys)


@functools.partial(jax.jit, static_argnames=("horizon",))
def _mild(keys, kinds, lengths, *, horizon: int):
    """Regret of bandit Mild-OGD: (seeds, kinds, lengths)."""
    policy = bandit_mild_ogd(jnp.zeros(2), horizon, d_max=DELAY, k_scale=0.2)

    def one(key, strong, length):
        env = bco_env(either_losses(strong, length))
        return interact(
            policy, env, key, horizon, delays=DELAY, checkpoints=1
        ).record.regret[-1]

    over_kinds = jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, None))
    return jax.vmap(lambda key: over_kinds(key, kinds, lengths))(keys)


def _tunings(config: Config) -> list[tuple[float, float]]:
    """All tunings of delayed BGD: the grid, and two of theory for every horizon."""
    grid = [(r, s * r / 2) for r in GRID_RADII for s in GRID_STEPS]
    for horizon in _horizons(config):
        grid.append(theory_tuning(horizon, 2, DELAY))
        grid.append(theory_tuning(horizon, 2, DELAY, strong=True))
    return grid


def _horizons(config: Config) -> list[int]:
    return sorted({cell.horizon for cell in cells(config)})


def _lanes(config: Config) -> tuple[jax.Array, ...]:
    """Kinds of loss, lengths, and the radii and steps of delayed BGD."""
    kinds = jnp.asarray([kind == "strong" for kind in config.kinds])
    deltas, etas = (jnp.asarray(row) for row in zip(*_tunings(config), strict=True))
    return kinds, jnp.asarray(config.lengths), deltas, etas


def shapes(config: Config, keys) -> None:
    """Traces the runs of the longest horizon."""
    lanes, longest = _lanes(config), _horizons(config)[-1]
    traced = jax.eval_shape(
        functools.partial(_bgd, horizon=longest, rows=4), keys, *lanes
    )
    assert traced.shape == (len(keys), *map(len, lanes[:3]), 4)
    jax.eval_shape(functools.partial(_mild, horizon=longest), keys, *lanes[:2])


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret by kind of loss: (methods, cells, seeds), DARS first; and all BGD grids.

    Segments do not know of later ones, nor do methods whose tuning is not told T: one
    long run gives the regret after each number of segments.
    """
    keys = jax.random.split(key, config.num_seeds)
    lanes, longest = _lanes(config), _horizons(config)[-1]
    rows = longest // config.lengths[0]
    calls = [functools.partial(_bgd, keys, *lanes, horizon=longest, rows=rows)]
    by_horizon = {
        t: [cell.length for cell in cells(config) if cell.horizon == t]
        for t in _horizons(config)
    }
    calls += [
        functools.partial(_mild, keys, lanes[0], jnp.asarray(lengths), horizon=t)
        for t, lengths in by_horizon.items()
    ]
    for kind in config.kinds:
        calls += _blocked_calls(config, keys, kind == "strong", by_horizon)
    bgd, *others = (np.asarray(result) for result in together(calls))
    milds = dict(zip(by_horizon, others, strict=False))
    blocked = iter(others[len(by_horizon) :])
    found = {}
    for number, kind in enumerate(config.kinds):
        ours = {length: next(blocked)[:, 0] for length in config.lengths}
        dftbl = {t: next(blocked)[..., -1] for t in by_horizon}
        table, grids = [], []
        for cell in cells(config):
            t, lane = cell.horizon, by_horizon[cell.horizon].index(cell.length)
            row = t // config.lengths[0] - 1
            tuned = bgd[:, number, config.lengths.index(cell.length), :, row].T
            size = len(GRID_RADII) * len(GRID_STEPS)
            theory = tuned[size + 2 * _horizons(config).index(t) :][:2]
            grids.append(tuned[:size])
            table.append(
                [
                    ours[cell.length][:, cell.count - 1],
                    dftbl[t][:, lane],
                    *theory,
                    min(grids[-1], key=np.mean),
                    milds[t][:, number, lane],
                ]
            )
        regret = np.asarray(table, np.float64).swapaxes(0, 1)
        found |= {kind: regret, f"{kind}_grid": np.asarray(grids)}
    return found


def _blocked_calls(config, keys, strong, by_horizon):
    """DARS for every length, then D-FTBL for every horizon."""
    for length, counts in zip(config.lengths, config.counts, strict=True):
        most = Cell(length, max(counts))
        case = Case(most.horizon, equal_starts(*most.plan()), strong=strong)
        yield functools.partial(
            play, case, keys, delays=(DELAY,), checkpoints=most.count
        )
    for t, lengths in by_horizon.items():
        yield functools.partial(
            play,
            Case(t, strong=strong),
            keys,
            delays=(DELAY,),
            lengths=tuple(lengths),
        )


def ratio_to_dars(regret: np.ndarray, ours: np.ndarray) -> tuple[float, Interval]:
    """Mean regret over that of DARS on the same seeds."""

    def ratio(above, below, axis=-1):
        return np.mean(above, axis=axis) / np.mean(below, axis=axis)

    return float(ratio(regret, ours)), bootstrap_interval(
        [regret, ours], ratio, strata="method", paired=True
    )


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, a table as a figure, and claims of both benchmarks."""
    labels = ("cell", [str(cell) for cell in cells(config)])
    seeds = ("seed", range(config.num_seeds))
    metrics, claims = {}, []
    for kind in config.kinds:
        metrics[f"benchmark_{kind}"] = Metric(
            data[kind], (("method", ("DARS", *METHODS)), labels, seeds)
        )
        tunings = [f"{r:g} {s:g}" for r in GRID_RADII for s in GRID_STEPS]
        metrics[f"benchmark_{kind}_grid"] = Metric(
            data[f"{kind}_grid"], (labels, ("tuning", tunings), seeds)
        )
    for kind, judged in zip(config.kinds, config.judged, strict=False):
        cell = Cell(*judged)
        regret = data[kind][:, cells(config).index(cell)]
        claims += _judged_claims(kind, cell, regret)
        claims += _maxima(config, kind, data[kind].mean(axis=-1))
    return metrics, {"benchmarks": _figure(config, data)}, tuple(claims)


def shown_methods(kind: str) -> tuple[str, ...]:
    """The methods of a benchmark; the strong tuning is for strong losses."""
    return tuple(m for m in METHODS if kind == "strong" or m != BGD_STRONG)


def _judged_claims(kind, cell, regret):
    by_name: dict[str, np.ndarray] = dict(zip(METHODS, regret[1:], strict=True))
    ratios = {m: ratio_to_dars(by_name[m], regret[0]) for m in shown_methods(kind)}
    theory = min(
        (m for m in (BGD, BGD_STRONG) if m in ratios), key=lambda m: ratios[m][0]
    )
    # The thresholds are for the sizes of these cells.
    meant = cell == {"convex": Cell(2**14, 8), "strong": Cell(2**16, 8)}[kind]
    limits = dict(zip((DFTBL, theory, MILD), THRESHOLDS[kind], strict=True))
    for method, (value, interval) in ratios.items():
        limit = limits.get(method) if meant else None
        yield Claim(
            f"{_title(kind)}, {cell.count} segments of {cell.length} rounds: regret of "
            f"{method} over that of DARS",
            value,
            None if limit is None else at_least(limit),
            interval,
        )


def _maxima(config, kind, means):
    names = shown_methods(kind)
    rows = [1 + METHODS.index(m) for m in names]
    ratios = means[rows] / means[0]
    for which, worst in (
        ("the strongest of all methods that do not restart", ratios.min(axis=0)),
        (
            "the strongest with its theory tuning",
            ratios[[m != BGD_GRID for m in names]].min(axis=0),
        ),
        ("any of them", ratios.max(axis=0)),
    ):
        cell = cells(config)[int(np.argmax(worst))]
        yield Claim(
            f"{_title(kind)}, the largest of all cells ({cell}): regret of {which} "
            "over that of DARS",
            float(worst.max()),
            paper=PAPER[kind] if "strongest of all" in which else None,
        )


def _title(kind: str) -> str:
    return "Benchmark 1, convex" if kind == "convex" else "Benchmark 2, strongly convex"


def _figure(config, data):
    count = len(cells(config))
    figure, panels = new_figure(
        f"Regret over that of DARS, delay {DELAY}, {config.num_seeds} seeds; "
        "boxed: the strongest in its column",
        rows=len(config.kinds),
        panel=(max(7.0, 3.4 + 0.75 * count), 2.6),
    )
    for axes, kind in zip(panels[:, 0], config.kinds, strict=True):
        means = data[kind].mean(axis=-1)
        names = shown_methods(kind)
        ratios = means[[1 + METHODS.index(m) for m in names]] / means[0]
        axes.imshow(
            np.log(ratios), cmap="Blues", vmin=0, vmax=np.log(16), aspect="auto"
        )
        for (row, column), value in np.ndenumerate(ratios):
            best = row == np.argmin(ratios[:, column])
            box = {"facecolor": "none", "edgecolor": "black", "pad": 2}
            axes.text(
                column,
                row,
                f"{value:.2f}",
                ha="center",
                va="center",
                color="white" if value > 6 else "black",
                bbox=box if best else None,
            )
        axes.set_xticks(
            range(count),
            [
                f"$2^{{{c.length.bit_length() - 1}}}$ x {c.count}\n({x:,.0f})"
                for c, x in zip(cells(config), means[0], strict=True)
            ],
        )
        axes.set_yticks(range(len(names)), names)
        axes.grid(visible=False)
        axes.set(
            title=_title(kind),
            xlabel="rounds of a segment x segments (regret of DARS)",
        )
    return figure
