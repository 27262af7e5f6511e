"""Many runs of a family of policies in one compile, and ratios of what they cost."""

import concurrent.futures
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Interval
from experiments.eqol.policies import Family, Named, Point, World
from experiments.statistics import bootstrap_interval
from jaxopt_suite.bandits.linear import ridge_of
from jaxopt_suite.core import interact

# Threefry unrolled over seeds takes the optimizer of machine code seconds, which these
# short runs never earn back; they are as fast at level 1.
compiled = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 1}
)


@functools.partial(
    compiled,
    static_argnames=(
        "family",
        "world",
        "horizon",
        "checkpoints",
        "delay",
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
    delay: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Runs all points of a family on all seeds; the points of a seed share their draws.

    Args:
        keys: one per seed.
        points: name -> values, one per point.
        family: makes the policies.
        world: the problem.
        horizon: number of rounds.
        checkpoints: rows of the regret, evenly spaced.
        delay: of all feedback.

    Returns:
        Regret of shape (points, seeds, checkpoints), the last log-determinants, and the
        largest gaps of the problem (0 with data), both of shape (points, seeds).
    """

    def run(key, point):
        result = interact(
            family(world, point),
            world.environment(point),
            key,
            horizon,
            delays=delay or None,
            checkpoints=checkpoints,
        )
        gap = jnp.zeros(())
        if world.arms not in ("rows", "shop"):
            means = result.environment.sets @ result.environment.theta
            gap = jnp.max(jnp.ptp(means, axis=-1))
        return result.record.regret, ridge_of(result.state).logdet, gap

    seeds_last = jax.vmap(jax.vmap(run, (None, 0)), (0, None), out_axes=1)
    return seeds_last(keys, points)


class Race(NamedTuple):
    """What :func:`race` returns, in the order of the policies.

    Attributes:
        regret: (policies, seeds, checkpoints).
        logdet: (policies, seeds).
        gap: largest difference of two arms' means in one set, (policies, seeds).
    """

    regret: np.ndarray
    logdet: np.ndarray
    gap: np.ndarray


def race(policies: list[Named], world: World, keys, horizon: int, **options) -> Race:
    """Runs policies on the same seeds, with one compile for each family.

    A policy that is there under two names runs once.
    """
    runs = [(p.family, tuple(p.point.items())) for p in policies]
    found = {}
    for family in dict.fromkeys(policy.family for policy in policies):
        points = [items for f, items in dict.fromkeys(runs) if f is family]
        results = play(
            keys,
            stack_points([dict(items) for items in points]),
            family=family,
            world=world,
            horizon=horizon,
            **options,
        )
        for items, *result in zip(points, *map(np.asarray, results), strict=True):
            found[family, items] = result
    columns = zip(*(found[run] for run in runs), strict=True)
    return Race(*(np.stack(column) for column in columns))


def stack_points(points: Sequence[Point]) -> dict[str, jax.Array]:
    """Name -> values from one dict a point."""
    return {n: jnp.asarray([point[n] for point in points]) for n in points[0]}


def together(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Results of all calls, two at a time: each runs and compiles on one core."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [task.result() for task in [pool.submit(call) for call in calls]]


def ratio_of_means(above, below) -> tuple[float, Interval]:
    """The ratio of two means over the same seeds, and its interval."""

    def ratio(x, y, axis: Any = -1):
        return np.mean(x, axis) / np.mean(y, axis)

    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    # Proportional samples have no spread that the bias correction could use.
    method = (
        "BCa" if np.ptp(above * below.sum() - below * above.sum()) else "percentile"
    )
    interval = bootstrap_interval([above, below], ratio, paired=True, method=method)
    return float(ratio(above, below)), interval


def slope(x, samples) -> tuple[float, Interval]:
    """The slope of log mean over log x, for samples of shape (points, seeds)."""
    position = np.log(np.asarray(x, np.float64))
    position = position - position.mean()

    def fit(*rows, axis: Any = -1):
        logs = np.stack([np.log(np.mean(row, axis)) for row in rows])
        return np.tensordot(position, logs, 1) / np.sum(position**2)

    samples = np.asarray(samples, np.float64)
    return float(fit(*samples)), bootstrap_interval(
        list(samples), fit, strata="point", method="percentile"
    )
