"""Speed of the bandits: rounds per second of CPU time, against peers and variants.

Times are CPU time of all threads, kept on one core, for a thousand rounds. Compiling is
left out. Rates are for the whole loop: context, choice, reward, update, running sums.
"""

import contextlib
import functools
import importlib.util
import math
import statistics
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.speed import bandit_peers
from experiments.speed.bandit_peers import ALPHA, SCALE, Peer, Table
from experiments.speed.timing import Ratio, Run, cpu_times, one_core, ratio_of
from jaxopt_suite import bandits, problems
from jaxopt_suite.core import Environment, Policy, interact, sweep
from jaxopt_suite.problems import BanditFeedback, LinearContext

Times = dict[str, list[float]]
Found = tuple[list[Ratio], list[tuple[str, float]]]
# Times are per so many rounds.
UNIT = 1000
NUM_ARMS = 10
PEER_SECONDS = 0.3


def table_env(world: Table) -> Environment:
    """The table that the peers play, as an environment of the disjoint layout."""
    contexts, rewards = jnp.asarray(world.contexts), jnp.asarray(world.rewards)

    def show(t):
        return LinearContext(contexts[t % len(contexts)])

    def step(t, decision, key):
        del key
        reward = rewards[t, decision.arm]
        feedback = BanditFeedback(decision, reward, jnp.array(True), jnp.zeros(()))
        return t + 1, show(t + 1), feedback

    return Environment(lambda key: (jnp.zeros((), jnp.int32), show(0)), step)


def on_table(policy: Policy, world: Table) -> Run:
    """A policy on the whole table."""
    rounds = len(world.contexts)

    @jax.jit
    def play(world, key):
        return interact(policy, table_env(world), key, rounds).record

    world, key = jax.device_put(world), jax.random.key(0)
    return Run(lambda: lambda: play(world, key), rounds / UNIT)


def on_env(policy: Policy, env: Environment, rounds: int) -> Run:
    """A policy on an environment, one seed."""
    play = jax.jit(lambda key: interact(policy, env, key, rounds).record)
    return Run(lambda: functools.partial(play, jax.random.key(0)), rounds / UNIT)


def over_seeds(policy: Policy, env: Environment, rounds: int, seeds: int) -> Run:
    """A policy on an environment, seeds in one batch."""

    def play(key):
        return interact(policy, env, key, rounds).record

    keys = jax.random.split(jax.random.key(0), seeds)
    return Run(lambda: lambda: sweep(play, keys, {}), rounds * seeds / UNIT)


def rates(times: Mapping[str, list[float]], what: str) -> list[tuple[str, float]]:
    """Rounds per second of CPU time, as figures."""
    return [
        (f"{name}: {what} per CPU-second", UNIT / statistics.median(used))
        for name, used in times.items()
    ]


def disjoint(
    sizes: tuple[int, ...] = (20, 64, 100),
    rounds: int = 50_000,
    lazy_rounds: int = 20_000,
    turns: int = 3,
) -> Found:
    """EQOL, Thompson sampling and lazy ensembles, a model for each arm, and peers."""
    peers, missing = bandit_peers.installed()
    ratios, figures = [], []
    if missing:
        said = (
            f"SKIPPED, not installed: {', '.join(missing)}; ratios to the fastest peer "
            "are to the fastest of the others (pip install 'jaxopt-suite[bench]')"
        )
        print(said, flush=True)
        figures.append((said, float(len(missing))))
    for p in sizes:
        shape = {"layout": "disjoint", "num_arms": NUM_ARMS}
        policies = {
            "EQOL": bandits.eqol(p, noise=SCALE, **shape),
            "LinUCB": bandits.linucb(p, alpha=ALPHA, **shape),
            "LinTS": bandits.lin_ts(p, scale=SCALE, **shape),
        }
        world = bandit_peers.table(p, NUM_ARMS, rounds)
        runs = {name: on_table(policy, world) for name, policy in policies.items()}
        if p == sizes[0]:
            few = Table(world.contexts[:lazy_rounds], world.rewards[:lazy_rounds])
            lazy = bandits.lazy_ensemble_sampling(
                p, horizon=lazy_rounds, scale=SCALE, members="implicit", **shape
            )
            runs["lazy ensemble, implicit"] = on_table(lazy, few)
        # The demands are for the first and the last size.
        met = [peer for peer in peers if p in (sizes[0], sizes[-1])]
        with _one_thread():
            for peer in met:
                count = bandit_peers.rounds_in(peer, world, PEER_SECONDS)
                start = functools.partial(bandit_peers.play, peer, world, count)
                runs[peer.name] = Run(start, count / UNIT)
            times = cpu_times(runs, turns)
        what = f"disjoint, p = {p}, {NUM_ARMS} arms"
        ratios += _against_peers(times, met, what, p == sizes[0])
        figures += rates(times, f"rounds, {what},")
        figures += _agreement(met, world, policies["LinUCB"], what)
    return ratios, figures


def _against_peers(
    times: Times, peers: list[Peer], what: str, is_first: bool
) -> list[Ratio]:
    """Ours against the fastest of each kind, with what is demanded of it."""

    def against(ours, kinds, at_least):
        names = [peer.name for peer in peers if peer.kind in kinds and not peer.ready]
        if not names or ours not in times:
            return []
        fastest = min(names, key=lambda name: statistics.median(times[name]))
        of = f"{ours}, {what}, against {fastest}"
        if len(names) > 1:
            of += ", the fastest peer of this kind"
        return [ratio_of(of, times[ours], times[fastest], at_least=at_least)]

    thompson, ready = (bandit_peers.THOMPSON,), [p.name for p in peers if p.ready]
    return [
        *against("EQOL", (bandit_peers.UCB, *thompson), 100.0 if is_first else 25.0),
        *against("EQOL", (bandit_peers.FIRST_ORDER,), 10.0 if is_first else 4.0),
        *(
            ratio_of(f"EQOL, {what}, against {name}", times["EQOL"], times[name])
            for name in ready
        ),
        *against("LinTS", thompson, 50.0 if is_first else None),
        *against("lazy ensemble, implicit", thompson, 10.0),
    ]


def _agreement(
    peers: list[Peer], world: Table, policy: Policy, what: str
) -> list[tuple[str, float]]:
    """In which share of rounds a peer's LinUCB chooses as ours does.

    Of the peers that give ties to the lowest arm, as ours does.
    """
    rounds = min(100, len(world.contexts))
    few = Table(world.contexts[:rounds], world.rewards[:rounds])
    played = interact(policy, table_env(few), jax.random.key(0), rounds, record="full")
    arms = jax.device_get(played.record.decision.arm)
    return [
        (
            f"{peer.name}, {what}: share of the first {rounds} choices that ours makes",
            float((bandit_peers.play(peer, few, rounds)() == arms).mean()),
        )
        for peer in peers
        if peer.kind == bandit_peers.UCB and peer.package != "coba"
    ]


def shared(
    sizes: tuple[int, ...] = (50, 100, 200, 400), rounds: int = 4000, turns: int = 3
) -> Found:
    """EQOL with one model for all arms: a round's time by the width, and seeds."""

    def run(d):
        env = problems.linear_env(d, 20, noise=0.3, arms="pool", pool=16)
        return on_env(bandits.eqol(d, noise=0.3), env, rounds)

    names = {d: f"EQOL, shared, d = {d}, 20 arms" for d in sizes}
    times = cpu_times({names[d]: run(d) for d in sizes}, turns)
    # Widths double, so that the slope fitted to the last three is that of their ends.
    small, large = sizes[-3], sizes[-1]
    longer = ratio_of(
        f"{names[large]}, against d = {small} (slope in log d at most 2.4)",
        times[names[small]],
        times[names[large]],
        at_most=(large / small) ** 2.4,
    )
    slope = math.log(longer.ratio) / math.log(large / small)
    env = problems.linear_env(10, 50, noise=0.5, arms="fixed")
    many = {
        f"EQOL, shared, d = 10, 50 arms, {seeds} seeds": over_seeds(
            bandits.eqol(10, noise=0.5), env, rounds, seeds
        )
        for seeds in (8, 32)
    }
    return [longer], [
        *rates(times, "rounds"),
        *rates(cpu_times(many, turns), "seed-rounds"),
        (f"EQOL, shared, d = {small} to {large}: slope of time in log d", slope),
    ]


def ensembles(
    sizes: tuple[tuple[int, int], ...] = ((50, 20_000), (100, 6000)), turns: int = 3
) -> Found:
    """Lazy ensembles against standard ones that are as large as they have to be."""
    ratios, figures = [], []
    for (d, rounds), demands in zip(sizes, ((1.5, 2.0), (None, 1.4)), strict=True):
        num_standard = math.ceil(d * math.log(rounds))
        size = bandits.ensemble_size(d, rounds)
        env = problems.linear_env(d, 20, noise=0.3, arms="pool", pool=16)

        def lazy(members, m, d=d):
            return bandits.lazy_ensemble_sampling(d, m, scale=0.3, members=members)

        standard = f"standard ensemble of {num_standard}"
        explicit = f"lazy ensemble of {size}, explicit"
        implicit = f"lazy ensemble of {size}, implicit"
        small = "lazy ensemble of 10, implicit"
        policies = {
            standard: bandits.ensemble_sampling(d, num_standard, scale=0.3),
            explicit: lazy("explicit", size),
            implicit: lazy("implicit", size),
            small: lazy("implicit", 10),
            "LinTS": bandits.lin_ts(d, scale=0.3),
        }
        runs = {name: on_env(x, env, rounds) for name, x in policies.items()}
        times, what = cpu_times(runs, turns), f"d = {d}, 20 arms, {rounds} rounds"
        for name, at_least in zip((explicit, implicit), demands, strict=True):
            of = f"{name}, {what}, against a {standard}"
            ratios.append(ratio_of(of, times[name], times[standard], at_least=at_least))
        # What a round costs must not depend on how many members there are.
        within = (
            {"at_least": 1 / 1.2, "at_most": 1.2} if (d, rounds) == sizes[1] else {}
        )
        of = f"{implicit}, {what}, against {small}"
        ratios.append(ratio_of(of, times[implicit], times[small], **within))
        figures += rates(times, f"rounds, {what},")
    return ratios, figures


def gating(rounds: int = 3000, seeds: int = 12, turns: int = 3) -> Found:
    """Refreshes that stay rare in a batch of seeds, against those that do not."""
    env = problems.linear_env(10, 50, noise=0.5, arms="fixed")

    def run(members, gate_axis):
        policy = bandits.lazy_ensemble_sampling(
            10, 44, scale=0.5, members=members, gate_axis=gate_axis
        )
        return over_seeds(policy, env, rounds, seeds)

    what = f"lazy ensemble of 44, d = 10, 50 arms, {seeds} seeds"
    gated, free = f"{what}, explicit, gated", f"{what}, explicit, not gated"
    runs = {
        gated: run("explicit", "lanes"),
        free: run("explicit", None),
        f"{what}, implicit, gated": run("implicit", "lanes"),
    }
    times = cpu_times(runs, turns)
    ratio = ratio_of(
        f"{gated}, against not gated", times[gated], times[free], at_least=3.0
    )
    return [ratio], rates(times, "seed-rounds")


def blocks(rounds: int = 2**19, turns: int = 5) -> Found:
    """Delayed bandit convex optimization: a scan over blocks against the driver's."""
    n, length, delay = 2, 512, 1024
    losses = problems.norm_segments(rounds, n)
    schedule = bandits.dars_schedule(rounds, n, d_max=delay)
    schedule = schedule._replace(
        K=0 * schedule.K + length,
        delta=0 * schedule.delta + bandits.smoothing_radius(length, n, 1.0, 1.0, 1.0),
    )
    policy = bandits.dars(jnp.zeros(n), schedule)
    env = problems.bco_env(losses)

    @jax.jit
    def blocked(key):
        return bandits.dars_rollout_blocked(
            schedule, losses, delay, key, trace="summary"
        )

    @jax.jit
    def generic(key):
        return interact(policy, env, key, rounds, delays=delay).record

    runs = {"blocked": blocked, "generic driver": generic}
    key = jax.random.key(0)
    times = cpu_times(
        {
            name: Run(lambda run=run: functools.partial(run, key), rounds / UNIT)
            for name, run in runs.items()
        },
        turns,
    )
    what = f"DARS, n = {n}, blocks of {length}, delay {delay}"
    ours, peer = times.values()
    ratios = [
        ratio_of(f"{what}, blocked against the generic driver", ours, peer, at_least=6)
    ]
    return ratios, rates({f"{what}, {k}": v for k, v in times.items()}, "rounds")


def _one_thread() -> contextlib.AbstractContextManager[Any]:
    """Spares the peers the threads of BLAS, which only wait for each other here."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return contextlib.nullcontext()
    import threadpoolctl

    return threadpoolctl.threadpool_limits(1)


def run() -> Found:
    """All ratios, with what is demanded of them, and all rates."""
    ratios, figures = [], []
    with one_core():
        for part in (disjoint, shared, ensembles, gating, blocks):
            more = part()
            ratios += more[0]
            figures += more[1]
    return ratios, figures
