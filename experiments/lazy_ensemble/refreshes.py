"""How often the ensemble is refreshed, and what that is worth."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.eqol.policies import ROWS, World, row_title
from experiments.eqol.runs import together
from experiments.figures import log_axes, new_figure
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import lazy_ensemble, lazy_size
from experiments.lazy_ensemble.runs import play
from experiments.results import Metric
from jaxopt_suite import bandits
from jaxopt_suite.problems.linear_bandit import draw_features

FIRST_ROUND = 2**5
ROW = "fixed10"
TRIGGERS = ("logdet", "trace", "spectral")
# Timed calls of one program, of which the fastest counts.
REPEATS = 2
DATA_SETS = 3


def world(d: int) -> World:
    """The problem on which refreshes are counted."""
    return World(d, 50, 0.5)


def rounds(config: Config) -> np.ndarray:
    """Powers of two up to the horizon."""
    return 2 ** np.arange(
        int(np.log2(FIRST_ROUND)), int(np.log2(config.refresh_horizon)) + 1
    )


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Counts over rounds and d; regret and time over growth; counts by trigger."""
    count_key, growth_key, trigger_key = jax.random.split(key, 3)

    def at_dimension(d):
        keys = jax.random.split(jax.random.fold_in(count_key, d), config.few_seeds)
        size = lazy_size(d, config.refresh_horizon)
        runs = play(
            keys,
            {"growth": jnp.ones(1)},
            family=lazy_ensemble(size),
            world=world(d),
            horizon=config.refresh_horizon,
            look=_counts,
        )
        return [rows[0][:, rounds(config) - 1] for rows in runs.rows]

    calls = [functools.partial(at_dimension, d) for d in config.refresh_dimensions]
    found, data = together(calls), {}
    if config.trigger_rounds:
        data["by_trigger"] = _by_trigger(config, trigger_key)
    data["count"] = np.stack([count for count, _ in found])
    data["logdet"] = np.stack([logdet for _, logdet in found])
    # Alone on the machine's cores, as it is timed.
    return data | (_over_growth(config, growth_key) if len(config.growths) > 1 else {})


def _counts(state):
    return state.epoch, state.ridge.logdet


def _over_growth(config, key):
    """One program for all growths, which a traced number of rows would not time."""
    keys = jax.random.split(key, config.other_seeds)
    size = lazy_size(ROWS[ROW].d, config.horizon)
    run = functools.partial(
        play,
        keys,
        family=lazy_ensemble(size, members="explicit"),
        world=ROWS[ROW],
        horizon=config.horizon,
    )
    runs = jax.block_until_ready(run({"growth": jnp.ones(1)}))
    found = {"regret": [], "growth_count": [], "growth_logdet": [], "seconds": []}
    for growth in config.growths:
        seconds = []
        for _ in range(REPEATS):
            start = time.process_time()
            runs = jax.block_until_ready(run({"growth": jnp.full(1, growth)}))
            seconds.append(time.process_time() - start)
        found["regret"].append(runs.regret[0, :, -1])
        found["growth_count"].append(runs.epoch[0])
        found["growth_logdet"].append(runs.logdet[0])
        found["seconds"].append(min(seconds))
    return {name: np.array(values) for name, values in found.items()}


def _by_trigger(config, key):
    """Refreshes of each trigger on the same rows, of shape (triggers, data sets)."""
    rows = draw_features(key, (DATA_SETS, config.trigger_rounds, ROWS[ROW].d))

    def count(trigger, x):
        policy = bandits.lazy_ensemble_sampling(
            x.shape[-1], 2, scale=1.0, trigger=trigger, members="implicit"
        )

        def step(state, row):
            decision = bandits.LinearDecision(jnp.zeros((), jnp.int32), row)
            feedback = bandits.BanditFeedback(decision, jnp.zeros(()))
            return policy.update(feedback, state), None

        return jax.lax.scan(step, policy.init(key), x)[0].epoch

    return jnp.stack(
        [jax.jit(jax.vmap(functools.partial(count, name)))(rows) for name in TRIGGERS]
    )


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    seeds = ("seed", range(config.few_seeds))
    axes = (("d", config.refresh_dimensions), seeds, ("rounds", rounds(config)))
    metrics = {
        "refreshes": Metric(data["count"], axes),
        "refresh_logdet": Metric(data["logdet"], axes),
    }
    if "regret" in data:
        axes = (("growth", config.growths), ("seed", range(config.other_seeds)))
        metrics["growth_regret"] = Metric(data["regret"], axes)
        metrics["growth_refreshes"] = Metric(data["growth_count"], axes)
        metrics["growth_cpu_seconds"] = Metric(data["seconds"], axes[:1])
    if "by_trigger" in data:
        metrics["refreshes_by_trigger"] = Metric(
            data["by_trigger"], (("trigger", TRIGGERS), ("data", range(DATA_SETS)))
        )
    return metrics, {"refreshes": _figure(config, data)}, tuple(_claims(config, data))


def proven_count(d, horizon, growth=1.0):
    """``d log(1 + T / d) / log(1 + growth)``: features of norm 1, lam 1."""
    return d * np.log1p(np.asarray(horizon) / d) / np.log1p(growth)


def _claims(config, data):
    d = np.array(config.refresh_dimensions)[:, None, None]
    share = data["count"] / (data["logdet"].astype(np.float64) / np.log(2))
    where = f"d in {config.refresh_dimensions}, T up to {config.refresh_horizon:,}"
    yield Claim(
        f"{where}: refreshes over logdet / log 2, largest of all seeds and rounds",
        share.max(),
        at_most(1.0),
    )
    share = data["count"] / proven_count(d, rounds(config))
    yield Claim(
        f"{where}: refreshes over d log(1 + T/d) / log 2, largest of all",
        share.max(),
        at_most(1.0),
    )
    if "regret" in data:
        growths = np.log1p(np.array(config.growths))[:, None]
        share = data["growth_count"] * growths / data["growth_logdet"]
        yield Claim(
            f"Growth in {config.growths}: refreshes over logdet / log(1 + growth), "
            "largest of all",
            share.max(),
            at_most(1.0),
        )
        mean = data["regret"].mean(axis=1)
        yield Claim(
            f"{row_title(ROW)}: largest over smallest mean regret for these growths",
            mean.max() / mean.min(),
        )
    if "by_trigger" in data:
        steps = -np.diff(data["by_trigger"].astype(int), axis=0)
        yield Claim(
            f"Refreshes on the same {config.trigger_rounds:,} rows, logdet >= trace >= "
            f"spectral: least difference of neighbours in {DATA_SETS} data sets",
            steps.min(),
            at_least(0.0),
        )


def _figure(config, data):
    timed = "regret" in data
    figure, panels = new_figure(
        "Refreshes of the lazy ensemble", columns=3 if timed else 1, panel=(4.2, 3.4)
    )
    axes, at = panels[0, 0], rounds(config)
    for number, d in enumerate(config.refresh_dimensions):
        (line,) = axes.plot(at, data["count"][number].mean(axis=0), label=f"d={d}")
        axes.plot(
            at, proven_count(d, at), "--", color=line.get_color(), marker="", label="_"
        )
    axes.set(
        title="mean over seeds; dashed: bound", xlabel="rounds", ylabel="refreshes"
    )
    axes.set_xscale("log", base=2)
    axes.legend()
    if timed:
        axes = panels[0, 1]
        regret = data["regret"]
        axes.errorbar(
            config.growths,
            regret.mean(axis=1),
            2 * regret.std(axis=1, ddof=1) / np.sqrt(regret.shape[1]),
            capsize=3,
            label="regret, 2 standard errors",
        )
        axes.plot(config.growths, data["growth_count"].mean(axis=1), label="refreshes")
        axes.set(title=row_title(ROW), xlabel="growth", ylabel="regret, refreshes")
        log_axes(axes, "xy", ticks=config.growths)
        axes.legend()
        axes = panels[0, 2]
        per_round = data["seconds"] / (config.other_seeds * config.horizon)
        axes.plot(config.growths, 1e6 * per_round)
        axes.set(
            title="time, explicit members, all seeds at once",
            xlabel="growth",
            ylabel="CPU microseconds per round and seed",
            ylim=(0, None),
        )
        log_axes(axes, "x", ticks=config.growths)
    return figure
