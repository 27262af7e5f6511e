"""Runs of all methods against losses that jump, many at once and in one compile."""

import concurrent.futures
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxopt_suite.bandits.bco_blocked import dars_rollout_blocked
from jaxopt_suite.bandits.bco_schedule import BCOSchedule, dars_schedule
from jaxopt_suite.core.delays import DelayModel
from jaxopt_suite.problems.bco import LossSequence, offset_losses
from jaxopt_suite.problems.bco_losses import norm_segments, strong_segments

FLAT = (0,)


class Case(NamedTuple):
    """What fixes the shapes of a run of DARS in blocks.

    Attributes:
        horizon: T.
        starts: where it restarts.
        n: dimension.
        strong: strongly convex losses, and the schedule for them.
        k_scale: of the schedule.
        true_constants: whether the schedule is told the true bound and Lipschitz
            constant; otherwise both are 1.
    """

    horizon: int
    starts: tuple[int, ...] = FLAT
    n: int = 2
    strong: bool = False
    k_scale: float = 0.2
    true_constants: bool = False

    def schedule(self, d_max: int) -> BCOSchedule:
        """The schedule for delays up to ``d_max``."""
        known = switching_losses(self.n, self.strong, 1)
        return dars_schedule(
            self.horizon,
            self.n,
            segment_starts=self.starts,
            d_max=d_max,
            bound=float(known.bound) if self.true_constants else 1.0,
            lipschitz=float(known.lipschitz) if self.true_constants else 1.0,
            strong_convexity=1.0 if self.strong else 0.0,
            k_scale=self.k_scale,
        )


def equal_starts(horizon: int, num_segments: int) -> tuple[int, ...]:
    """First rounds of equal segments."""
    return tuple(range(0, horizon, horizon // num_segments))


def switching_losses(n: int, strong: bool, length: Any) -> LossSequence:
    """The norm or strongly convex losses with segments of ``length`` rounds.

    ``length`` may be traced, so that runs of different segments share a compile.
    """
    make = strong_segments if strong else norm_segments
    pair = make(2, n, 2)

    def side(t):
        return t // length % 2

    return pair._replace(
        value=lambda x, t: pair.value(x, side(t)),
        minimizer=lambda t: pair.minimizer(side(t)),
        min_value=lambda t: pair.min_value(side(t)),
    )


def play(
    case: Case,
    keys: jax.Array,
    *,
    delays: tuple[int, ...] = (0,),
    lengths: tuple[int, ...] | None = None,
    offsets: tuple[float, ...] = (0.0,),
    checkpoints: int = 1,
) -> np.ndarray:
    """Regret of DARS at evenly spaced rounds, of shape (seeds, lanes, checkpoints).

    A lane has a constant delay that the schedule knows, a length of the losses'
    segments (None: the schedule's) and a constant that is added to all losses; tuples
    of one entry hold for all lanes. The lanes of a seed share their random numbers.
    """
    if lengths is None:
        lengths = (int(case.schedule(0).lengths[0]),)
    lanes = max(map(len, (delays, lengths, offsets)))
    delays, lengths = (row * (lanes // len(row)) for row in (delays, lengths))
    etas = [case.schedule(d).eta for d in delays]
    return np.asarray(
        _play(
            keys,
            jnp.asarray(delays, jnp.int32),
            jnp.asarray(np.stack(etas), jnp.float32),
            jnp.asarray(lengths, jnp.int32),
            jnp.asarray(offsets * (lanes // len(offsets)), jnp.float32),
            case=case,
            d_max=max(delays),
            checkpoints=checkpoints,
        )
    )


@functools.partial(jax.jit, static_argnames=("case", "d_max", "checkpoints"))
def _play(keys, delays, etas, lengths, offsets, *, case, d_max, checkpoints):
    schedule = case.schedule(d_max)

    def lane(key, delay, eta, length, offset):
        late = DelayModel(
            lambda key, horizon: jnp.full(horizon, delay, jnp.int32), d_max, 1
        )
        losses = switching_losses(case.n, case.strong, length)
        return dars_rollout_blocked(
            schedule._replace(eta=eta),
            offset_losses(losses, offset),
            late,
            key,
            strong_convexity=1.0 if case.strong else 0.0,
            trace="summary",
            checkpoints=checkpoints,
        ).regret

    # Keys outside: the lanes of a seed then draw their directions once for all.
    lanes = jax.vmap(lane, (None, 0, 0, 0, 0))
    return jax.vmap(lambda key: lanes(key, delays, etas, lengths, offsets))(keys)


def shapes_of(case: Case, num_seeds: int, lanes: int, d_max: int) -> Any:
    """The shapes of :func:`play`, by tracing alone."""
    keys = jax.random.split(jax.random.key(0), num_seeds)
    integers, numbers = jnp.zeros(lanes, jnp.int32), jnp.zeros(lanes)
    return jax.eval_shape(
        functools.partial(_play, case=case, d_max=d_max, checkpoints=1),
        keys,
        integers,
        jnp.ones((lanes, len(case.starts))),
        integers + 1,
        numbers,
    )


def together(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Results of all calls, two at a time: each runs and compiles on one core."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [task.result() for task in [pool.submit(call) for call in calls]]
