"""Beyond the oracle: a control variate, restarts without an oracle, two points."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.dars_dbco.benchmarks import DELAY, Cell, ratio_to_dars
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
from jaxopt_suite.bandits.bco import dars
from jaxopt_suite.bandits.bco_detect import dars_detect
from jaxopt_suite.bandits.bco_two_point import (
    dars_two_point,
    two_point_env,
    two_point_schedule,
)
from jaxopt_suite.core import interact
from jaxopt_suite.problems.bco import bco_env, offset_losses

OFFSETS = (0.0, 5.0)


@functools.partial(jax.jit, static_argnames=("case", "delay"))
def with_baseline(keys, offsets, *, case: Case, delay: int):
    """Regret of DARS with the mean baseline, (seeds, offsets)."""
    length = case.horizon // len(case.starts)
    policy = dars(jnp.zeros(case.n), case.schedule(delay), baseline="mean")

    def one(key, offset):
        env = bco_env(offset_losses(switching_losses(case.n, False, length), offset))
        return interact(
            policy, env, key, case.horizon, delays=delay, checkpoints=1
        ).record.regret[-1]

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(keys, offsets)


@functools.partial(jax.jit, static_argnames=("cell", "expected"))
def detecting(keys, *, cell: Cell, expected: int):
    """Regret and number of restarts of the detector."""
    policy = dars_detect(jnp.zeros(2), cell.horizon, expected, d_max=DELAY, k_scale=0.2)
    env = bco_env(switching_losses(2, False, cell.length))

    def one(key):
        run = interact(policy, env, key, cell.horizon, delays=DELAY, checkpoints=1)
        return run.record.regret[-1], run.state.blocks.segment

    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnames=("horizon",))
def two_points(keys, *, horizon: int):
    """Regret with two values a round, on one segment."""
    policy = dars_two_point(jnp.zeros(2), two_point_schedule(horizon, 2))
    env = two_point_env(switching_losses(2, False, horizon))

    def one(key):
        return interact(policy, env, key, horizon, checkpoints=1).record.regret[-1]

    return jax.vmap(one)(keys)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret of every variant and of what it is compared with."""
    keys = jax.random.split(key, config.num_seeds)
    cell, horizon = Cell(*config.judged[0]), config.offset_horizon
    calls = []
    for count, delay in config.offset_cells:
        case = Case(horizon, equal_starts(horizon, count))
        plain = functools.partial(play, case, keys, delays=(delay,), offsets=OFFSETS)
        offsets = jnp.asarray(OFFSETS)
        calls += [
            plain,
            functools.partial(with_baseline, keys, offsets, case=case, delay=delay),
        ]
    expected = _expected(config)
    calls += [
        functools.partial(detecting, keys, cell=cell, expected=e) for e in expected
    ]
    restarting = Case(cell.horizon, equal_starts(cell.horizon, cell.count))
    for case, rows in ((restarting, cell.count), (Case(cell.horizon), 1)):
        calls.append(
            functools.partial(
                play,
                case,
                keys,
                delays=(DELAY,),
                lengths=(cell.length,),
                checkpoints=rows,
            )
        )
    calls.append(functools.partial(two_points, keys, horizon=horizon))
    found = together(calls)
    split = 2 * len(config.offset_cells)
    offset, (*detect, ours, dftbl, two) = found[:split], found[split:]
    pairs = zip(offset[::2], offset[1::2], strict=True)
    undelayed = offset[2 * config.offset_cells.index((1, 0))]
    return {
        "offset": np.stack([np.stack([p[:, :, -1].T, b.T]) for p, b in pairs]),
        "detect": np.stack([regret for regret, _ in detect]),
        "restarts": np.stack([restarts for _, restarts in detect]),
        "ours": ours[:, 0, -1],
        "dftbl": dftbl[:, 0, -1],
        "two": np.asarray(two),
        "one": undelayed[:, 0, -1],
    }


def _expected(config: Config) -> list[int]:
    return [round(part * config.judged[0][0]) for part in config.expected]


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, a figure and claims of the three variants."""
    data = {name: np.asarray(x, np.float64) for name, x in data.items()}
    seeds = ("seed", range(config.num_seeds))
    told = ("expected", [f"{part:g} L" for part in config.expected])
    cells = [f"m = {m}, d = {d}" for m, d in config.offset_cells]
    metrics = {
        "control_variate": Metric(
            data["offset"],
            (
                ("cell", cells),
                ("baseline", ("none", "mean")),
                ("offset", OFFSETS),
                seeds,
            ),
        ),
        "detector": Metric(data["detect"], (told, seeds)),
        "detector_restarts": Metric(data["restarts"], (told, seeds)),
        "two_point": Metric(
            np.stack([data["one"], data["two"]]), (("points", (1, 2)), seeds)
        ),
    }
    claims = (
        *_control_variate(config, data, cells),
        *_detector(config, data),
        _two_points(config, data),
    )
    return metrics, {"extras": _figure(config, data, cells)}, claims


def _control_variate(config, data, cells):
    # Stated at T = 2^16; shorter runs are only reported.
    meant = config.offset_horizon >= 2**16
    for name, (plain, mean) in zip(cells, data["offset"], strict=True):
        value, interval = ratio_to_dars(mean[0], plain[0])
        yield Claim(
            f"Control variate, {name}: regret with it over that without it",
            value,
            at_most(1.05) if meant else None,
            interval,
        )
        value, interval = ratio_to_dars(plain[1], mean[1])
        yield Claim(
            "The same with 5 added to all losses: regret without it over that with it",
            value,
            at_least(2.0) if meant else None,
            interval,
        )


def _detector(config, data):
    meant = config.judged[0] == (2**14, 8)
    against_ours = [ratio_to_dars(row, data["ours"]) for row in data["detect"]]
    worst = int(np.argmax([value for value, _ in against_ours]))
    lengths = ", ".join(f"{part:g} L" for part in config.expected)
    yield Claim(
        f"No oracle, told lengths of {lengths}: largest regret over that of DARS",
        against_ours[worst][0],
        at_most(1.6) if meant else None,
        against_ours[worst][1],
    )
    against_dftbl = [ratio_to_dars(row, data["dftbl"]) for row in data["detect"]]
    worst = int(np.argmax([value for value, _ in against_dftbl]))
    yield Claim(
        "The same: largest regret over that of D-FTBL, which does not restart",
        against_dftbl[worst][0],
        at_most(0.5) if meant else None,
        against_dftbl[worst][1],
    )
    yield Claim(
        f"The same: mean number of restarts ({config.judged[0][1] - 1} jumps)",
        float(data["restarts"].mean()),
    )


def _two_points(config, data):
    value, interval = ratio_to_dars(data["one"], data["two"])
    return Claim(
        f"One segment of {config.offset_horizon} rounds: regret with one value a round "
        "over that with two",
        value,
        at_least(5.0) if config.offset_horizon >= 2**16 else None,
        interval,
    )


def _figure(config, data, cells):
    figure, panels = new_figure("Regret beyond the oracle, means", columns=3)
    first, second, third = panels[0]
    width = 0.8 / len(cells) / 2
    for number, name in enumerate(cells):
        for which, label in enumerate(("plain", "mean baseline")):
            means = data["offset"][number, which].mean(axis=-1)
            place = np.arange(len(OFFSETS)) + (2 * number + which) * width
            first.bar(place, means, width, label=f"{label}, {name}")
    first.set_xticks(
        np.arange(len(OFFSETS)) + 0.4 - width / 2, [f"{x:g}" for x in OFFSETS]
    )
    first.set(
        title=f"control variate, T = {config.offset_horizon}",
        xlabel="added to all losses",
        ylabel="regret",
        yscale="log",
    )
    first.legend(fontsize=7)
    second.plot(config.expected, data["detect"].mean(axis=1), label="no oracle")
    for name, label, style in (("ours", "DARS", "--"), ("dftbl", "D-FTBL", ":")):
        second.axhline(
            data[name].mean(), color="black", linestyle=style, label=label, marker=""
        )
    second.set(
        title="restarts it decides on itself",
        xlabel="expected length / L",
        xscale="log",
        ylim=(0, None),
    )
    second.set_xticks(config.expected, [f"{x:g}" for x in config.expected])
    second.xaxis.set_minor_formatter("")
    second.legend()
    third.bar(["one", "two"], [data["one"].mean(), data["two"].mean()])
    third.set(title=f"T = {config.offset_horizon}, no jump", xlabel="values a round")
    return figure
