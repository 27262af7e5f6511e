"""Many runs of a family of policies in one compile."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Interval
from experiments.eqol.policies import Family, Named, World
from experiments.eqol.runs import compiled, stack_points, together
from experiments.statistics import bootstrap_interval
from jaxopt_suite.bandits.linear import ridge_of
from jaxopt_suite.core import interaction_loop, sweep


class Runs(NamedTuple):
    """What :func:`play` and :func:`race` return; the leading axes are (points, seeds).

    Attributes:
        regret: cumulative, (points, seeds, checkpoints).
        logdet: of the statistics, at the end.
        epoch: refreshes by the end; -1 where a policy has none.
        rows: what was looked at after each round, (points, seeds, horizon, ...).
    """

    regret: Any
    logdet: Any
    epoch: Any
    rows: Any = ()


def watched(policy, environment, key, horizon: int, look, checkpoints: int = 1):
    """One run, with ``look(policy_state)`` after each round.

    Returns:
        The last state of the loop, and the rows of ``look``.
    """
    loop = interaction_loop(policy, environment, horizon, checkpoints=checkpoints)

    def step(state, _):
        _, state = loop.update(None, state)
        return state, look(state.policy)

    return jax.lax.scan(step, loop.init(key), length=horizon)


@functools.partial(
    compiled,
    static_argnames=(
        "family",
        "world",
        "horizon",
        "checkpoints",
        "look",
        "one_by_one",
    ),
)
def play(
    keys,
    points,
    *,
    family: Family,
    world: World,
    horizon: int,
    checkpoints: int = 1,
    look: Callable[[Any], Any] | None = None,
    one_by_one: bool = False,
) -> Runs:
    """Runs all points of a family on all seeds; the points of a seed share their draws.

    Args:
        keys: one per seed.
        points: name -> values, one per point.
        family: makes the policies.
        world: the problem.
        horizon: number of rounds.
        checkpoints: rows of the regret, evenly spaced.
        look: of the policy's state, after each round.
        one_by_one: whether runs follow each other, which is faster where the
            statistics of all of them do not fit in the cache.
    """

    def run(key, number):
        point = jax.tree.map(lambda values: values[number], points)
        state, rows = watched(
            family(world, point),
            world.environment(point),
            key,
            horizon,
            look or (lambda state: ()),
            checkpoints,
        )
        epoch = getattr(state.policy, "epoch", jnp.full((), -1, jnp.int32))
        return Runs(state.summary.regret, ridge_of(state.policy).logdet, epoch, rows)

    numbers = jnp.arange(len(next(iter(points.values()))))
    if not one_by_one:
        return sweep(lambda key, number: run(key, number), keys, {"number": numbers})
    return jax.lax.map(
        lambda number: jax.lax.map(lambda key: run(key, number), keys), numbers
    )


def race(policies: list[Named], world: World, keys, horizon: int, **options) -> Runs:
    """Runs policies on the same seeds, with one compile for each family."""
    found: list[Any] = [None] * len(policies)

    def run(family):
        places = [i for i, p in enumerate(policies) if p.family is family]
        points = stack_points([policies[i].point for i in places])
        runs = play(
            keys, points, family=family, world=world, horizon=horizon, **options
        )
        columns = map(np.asarray, (runs.regret, runs.logdet, runs.epoch))
        for place, *result in zip(places, *columns, strict=True):
            found[place] = result

    families = dict.fromkeys(policy.family for policy in policies)
    together(functools.partial(run, family) for family in families)
    return Runs(*(np.stack(column) for column in zip(*found, strict=True)))


def slope(x, samples, *, paired: bool = False) -> tuple[float, Interval]:
    """The slope of log mean over log x, and its interval.

    Args:
        x: positions.
        samples: of shape (positions, seeds).
        paired: whether all positions are of the same runs.
    """
    position = np.log(np.asarray(x, np.float64))
    position = position - position.mean()

    def fit(*rows, axis: Any = -1):
        logs = np.stack([np.log(np.mean(row, axis)) for row in rows])
        return np.tensordot(position, logs, 1) / np.sum(position**2)

    samples = list(np.asarray(samples, np.float64))
    interval = bootstrap_interval(
        samples, fit, strata="point", paired=paired, method="percentile"
    )
    return float(fit(*samples)), interval
