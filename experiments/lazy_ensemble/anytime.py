"""Without a known horizon: the ensemble grows with the rounds seen."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.eqol.policies import ROWS, row_title
from experiments.eqol.runs import together
from experiments.figures import new_figure, plot_spread
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import anytime, lazy_ensemble, lazy_size
from experiments.lazy_ensemble.runs import play
from experiments.results import Metric

ROW, CHECKPOINTS = "pool20", 60


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of both, (seeds, checkpoints), and the members of the one that grows."""
    keys = jax.random.split(key, config.other_seeds)
    known = lazy_ensemble(lazy_size(ROWS[ROW].d, config.horizon))

    def run(family, look=None):
        return play(
            keys,
            {"growth": jnp.ones(1)},
            family=family,
            world=ROWS[ROW],
            horizon=config.horizon,
            checkpoints=CHECKPOINTS,
            look=look,
        )

    known, unknown = together([lambda: run(known), lambda: run(anytime, _members)])
    active, refreshed = unknown.rows
    return {
        "known": known.regret[0],
        "unknown": unknown.regret[0],
        "active": active[0],
        "refreshed": refreshed[0],
    }


def _members(state):
    return state.active, state.refreshed


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    seeds = ("seed", range(config.other_seeds))
    metrics = {
        f"anytime_regret_{name}": Metric(data[name][:, -1], (seeds,))
        for name in ("known", "unknown")
    }
    metrics["anytime_members"] = Metric(data["active"][:, -1], (seeds,))
    return metrics, {"anytime": _figure(config, data)}, tuple(_claims(config, data))


def _claims(config, data):
    known, unknown = (data[n][:, -1].astype(np.float64) for n in ("known", "unknown"))
    error = np.std(unknown - known, ddof=1) / np.sqrt(len(known))
    allowed = 3 * error + 0.05 * known.mean()
    yield Claim(
        f"{row_title(ROW)}, T={config.horizon:,}, {len(known)} seeds: difference of "
        f"mean regret without ({unknown.mean():.1f}) and with ({known.mean():.1f}) the "
        "horizon known, over 3 standard errors of the difference plus 5%",
        abs(unknown.mean() - known.mean()) / allowed,
        at_most(1.0),
    )
    active = data["active"].astype(int)
    yield Claim(
        "Without a horizon: smallest change of the number of members from round to "
        "round",
        np.diff(active, axis=1).min(),
        at_least(0.0),
    )
    seed, t = np.nonzero(data["refreshed"])
    expected = [lazy_size(ROWS[ROW].d, max(count, 16)) for count in (t + 1).tolist()]
    yield Claim(
        "Without a horizon: the number of members at a refresh, largest difference "
        "from d log d + d log log of the rows so far",
        np.abs(active[seed, t] - np.array(expected)).max(),
        at_most(0.0),
    )


def _figure(config, data):
    figure, panels = new_figure(
        f"Horizon known or not: {row_title(ROW)}, {config.other_seeds} seeds", columns=2
    )
    axes = panels[0, 0]
    rounds = np.arange(1, CHECKPOINTS + 1) * config.horizon / CHECKPOINTS
    for name, label in (("known", "horizon known"), ("unknown", "anytime")):
        plot_spread(axes, rounds, data[name].T, label)
    for line in axes.get_lines():
        line.set_markevery(6)
    axes.set(title="median, 5% to 95% of seeds", xlabel="rounds", ylabel="regret")
    axes.legend()
    axes, every = panels[0, 1], np.arange(config.horizon) + 1
    axes.axhline(
        lazy_size(ROWS[ROW].d, config.horizon),
        linestyle="--",
        color="C0",
        marker="",
        label="horizon known",
    )
    for members in data["active"]:
        axes.step(every, members, color="C1", marker="", linewidth=0.6, label="_")
    axes.plot([], [], color="C1", marker="", label="anytime, every seed")
    axes.set(title="members that may be followed", xlabel="rounds", ylabel="members")
    axes.set_xscale("log")
    axes.legend()
    return figure
