"""Oracle-DARS-DBCO one block at a time: the run of the generic driver, much faster.

Within a block the centre stands still. So its directions, points and losses can be had
all at once, and later blocks need no more of it than one sum of gradient terms for each
block in which values arrive: a ring of such sums replaces the late values.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.bandits.bco_leader import UNIT_BALL, follow_the_leader
from jaxopt_suite.bandits.bco_primitives import (
    num_coordinates,
    one_point_gradient,
    scalar_dtype,
    sphere_sample,
)
from jaxopt_suite.bandits.bco_schedule import BCOSchedule
from jaxopt_suite.bandits.convex_sets import ConvexSet
from jaxopt_suite.core import checks
from jaxopt_suite.core.delays import DelayModel
from jaxopt_suite.core.interaction import (
    Delays,
    InteractionSummary,
    interaction_keys,
)
from jaxopt_suite.core.late import draw_delays, plan_delays
from jaxopt_suite.core.sums import RunningSum, add, zero_sum
from jaxopt_suite.problems.bco import LossSequence, RandomLosses, as_random


class Trace(NamedTuple):
    """One row per round.

    Attributes:
        x: the point played.
        value: its loss.
        arrival: the round whose end brings that value; the horizon: never.
        segment: the segment of the schedule.
        regret: the regret of this and all earlier rounds.
    """

    x: PyTree[Float[Array, "horizon ..."]]
    value: Float[Array, " horizon"]
    arrival: Int[Array, " horizon"]
    segment: Int[Array, " horizon"]
    regret: Float[Array, " horizon"]


class _Block(NamedTuple):
    """What is known of the blocks before the run, in the order of time."""

    number: Int[np.ndarray, " blocks"]
    start: Int[np.ndarray, " blocks"]
    length: Int[np.ndarray, " blocks"]
    segment: Int[np.ndarray, " blocks"]
    index: Int[np.ndarray, " blocks"]  # within its segment, from 0
    left: Int[np.ndarray, " blocks"]  # blocks of its segment from this one on
    row: Int[np.ndarray, " blocks"]  # summary rows that end at its start or before


class _Carry(NamedTuple):
    y: PyTree[Array]
    g: PyTree[Array]
    y_sum: PyTree[Array]
    ring: PyTree[Array]  # slot b mod slots: the sum of the terms that block b brings
    sums: dict[str, RunningSum]  # over all earlier blocks
    rows: dict[str, Float[Array, " checkpoints"]]


def dars_rollout_blocked(
    schedule: BCOSchedule,
    losses: LossSequence | RandomLosses,
    delays: Delays,
    key: PRNGKeyArray,
    *,
    domain: ConvexSet = UNIT_BALL,
    strong_convexity: float | Float[Array, ""] = 0.0,
    y0: PyTree[Array] | None = None,
    trace: str = "full",
    checkpoints: int = 64,
) -> Trace | InteractionSummary:
    r"""Runs :func:`~jaxopt_suite.bandits.dars` in one ``lax.scan`` over blocks.

    To rounding, the decisions, losses and arrivals are those of ``interact(dars(...),
    bco_env(losses), key, horizon, delays=delays)``: it starts from the same
    :func:`~jaxopt_suite.core.interaction_keys`, and the direction of round t is drawn
    with ``fold_in(select, t)``. The value of round t in segment j counts in block

    .. math:: \lfloor (t - s_j + d_t) / K_j \rfloor

    of its segment, and not at all if the segment has no such block. A pure function:
    jit it, vmap it over keys and over ``schedule._replace(delta=..., eta=...)``, or
    hand it to :func:`~jaxopt_suite.core.sweep`. Blocks are padded to the longest one of
    all segments.

    Args:
        schedule: as for ``dars``; its last segment ends the run. ``delta`` and ``eta``
            may be traced.
        losses: a sequence of losses, or a law of such.
        delays: as for ``interact``. One integer takes no memory, other delays take one
            integer per round.
        key: a typed key.
        domain: as for ``dars``.
        strong_convexity: as for ``dars``.
        y0: as for ``dars``.
        trace: ``"full"`` for every round; ``"summary"`` for sums of regret and value at
            checkpoints, in memory that the horizon does not change.
        checkpoints: rows of the summary, evenly spaced; ``horizon`` rows at most.

    Returns:
        A :class:`Trace`, or the summary that ``interact`` gives.

    Raises:
        ValueError: ``trace`` is unknown or ``checkpoints`` below 1; as ``dars`` and
            ``interact``.

    Example:
        >>> from jaxopt_suite.bandits.bco_schedule import dars_schedule
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> schedule = dars_schedule(4096, 2, d_max=64, k_scale=0.2)
        >>> losses, key = norm_segments(4096, 2), jax.random.key(0)
        >>> run = dars_rollout_blocked(schedule, losses, 64, key, trace="summary")
        >>> bool(run.regret[-1] < 0.5 * 4096)  # what the centre would have paid
        True
    """
    checks.check_choice("trace", trace, ("full", "summary"))
    checks.check_integer("checkpoints", checkpoints)
    horizon = int(np.sum(schedule.lengths))
    keys = interaction_keys(key)
    law = as_random(losses)
    played = law.losses(law.draw(keys.environment))
    example = played.minimizer(0)
    n = num_coordinates(example)
    leader = follow_the_leader(
        example, schedule, domain=domain, strong_convexity=strong_convexity, y0=y0
    )
    parts = np.arange(1, min(checkpoints, horizon) + 1)
    rounds = -(-parts * horizon // len(parts))
    blocks = _plan(schedule, rounds)
    width = int(blocks.length.max())
    late_by, d_max = _lateness(delays, keys.delay, horizon, width)
    sizes = jnp.asarray(schedule.K, jnp.int32)
    slots = min(d_max // int(np.min(schedule.K)) + 2, int(blocks.left.max()) + 1)

    def step(carry, block):
        """Plays a block of segment j, then moves the centre by what has come in it."""
        j = block.segment
        y, g, y_sum = _at_segment_start(block.index == 0, leader.start(j), carry)
        position = jnp.arange(width, dtype=jnp.int32)
        t = block.start + position
        round_keys = jax.vmap(jax.random.fold_in, (None, 0))(keys.select, t)
        u = jax.vmap(sphere_sample, (0, None))(round_keys, example)
        delta = leader.delta(j)
        x = jax.tree.map(lambda a, b: a + delta * b, y, u)
        value = jax.vmap(played.value)(x, t)
        regret = value - jax.vmap(played.min_value)(t)
        terms = jax.vmap(one_point_gradient, (0, 0, None, None))(value, u, delta, n)
        ahead = (position + late_by(block.start, width)) // sizes[j]
        ring, arrived = _exchange(carry.ring, terms, ahead, block)
        g = jax.tree.map(jnp.add, g, arrived)
        y_sum = jax.tree.map(jnp.add, y_sum, y)
        y = leader.follow(g, y_sum, block.index + 1, j)
        carry = carry._replace(y=y, g=g, y_sum=y_sum, ring=ring)
        if trace == "full":
            return carry, (x, value, regret)
        return _record(carry, {"regret": regret, "value": value}, block, rounds), None

    last, rows = jax.lax.scan(step, _start(leader.start(0), slots, len(rounds)), blocks)
    if trace == "summary":
        return InteractionSummary(jnp.asarray(rounds, jnp.int32), **last.rows)
    # The rows of a block come padded; these are the places of all rounds.
    places = np.flatnonzero(np.arange(width) < blocks.length[:, None])
    x, value, regret = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[places], rows)
    every = jnp.arange(horizon, dtype=jnp.int32)
    arrival = every + jnp.minimum(late_by(0, horizon), horizon - every)
    segment = jnp.asarray(np.repeat(blocks.segment, blocks.length))
    return Trace(x, value, arrival, segment, jnp.cumsum(regret))


def _plan(schedule: BCOSchedule, rounds: np.ndarray) -> _Block:
    starts, lengths, sizes = (np.asarray(row) for row in schedule[:3])
    counts = -(-lengths // sizes)
    segment = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(segment))
    index = number - np.repeat(np.cumsum(counts) - counts, counts)
    start = starts[segment] + index * sizes[segment]
    length = np.minimum(sizes[segment], (starts + lengths)[segment] - start)
    row = np.searchsorted(rounds, start, side="right")
    plan = _Block(number, start, length, segment, index, counts[segment] - index, row)
    return jax.tree.map(lambda x: x.astype(np.int32), plan)


def _lateness(
    delays: Delays, key: PRNGKeyArray, horizon: int, width: int
) -> tuple[Callable[[Array | int, int], Array], int]:
    """``late_by(start, count)``, the delays of so many rounds, and the largest of all.

    The rounds may end ``width`` rounds after the horizon.
    """
    if isinstance(delays, DelayModel):
        delays = draw_delays(delays, key, horizon)
    plan = plan_delays(delays, horizon)
    if plan.model is not None:
        every = plan.model(key, horizon)
    else:
        every = np.asarray(plan.delays)
        if np.all(every == every[0]):
            return lambda start, count: jnp.asarray(every[0]), plan.slots - 1
    # Some more, or the slice of the last block would be moved to where it fits.
    every = jnp.concatenate([jnp.asarray(every), jnp.zeros(width, jnp.int32)])

    def late_by(start, count):
        return jax.lax.dynamic_slice(every, (start,), (count,))

    return late_by, plan.slots - 1


def _start(y: PyTree[Array], slots: int, num_rows: int) -> _Carry:
    zeros = jax.tree.map(jnp.zeros_like, y)
    ring = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), zeros)
    scalar = jnp.zeros((), scalar_dtype(y))
    names = ("regret", "value")
    return _Carry(
        y,
        zeros,
        zeros,
        ring,
        {name: zero_sum(scalar) for name in names},
        {name: jnp.zeros(num_rows, scalar.dtype) for name in names},
    )


def _at_segment_start(
    is_first: Array, y: PyTree[Array], carry: _Carry
) -> tuple[PyTree[Array], PyTree[Array], PyTree[Array]]:
    """Centre, gradient sum and sum of centres; forgotten where a segment begins.

    The ring needs no such reset: it holds nothing for a later segment.
    """
    zeros = jax.tree.map(jnp.zeros_like, y)
    return jax.tree.map(
        lambda fresh, old: jnp.where(is_first, fresh, old),
        (y, zeros, zeros),
        (carry.y, carry.g, carry.y_sum),
    )


def _exchange(
    ring: PyTree[Array], terms: PyTree[Array], ahead: Array, block: _Block
) -> tuple[PyTree[Array], PyTree[Array]]:
    """Puts in a block's terms, ``ahead`` blocks later; takes out what comes in it."""
    slots = len(jax.tree.leaves(ring)[0])
    comes = (jnp.arange(len(ahead)) < block.length) & (ahead < block.left)
    slot = jnp.where(comes, (block.number + ahead) % slots, slots)
    here = block.number % slots
    ring = jax.tree.map(lambda r, c: r.at[slot].add(c, mode="drop"), ring, terms)
    arrived = jax.tree.map(lambda r: r[here], ring)
    return jax.tree.map(lambda r: r.at[here].set(0), ring), arrived


def _record(
    carry: _Carry, values: dict[str, Array], block: _Block, rounds: np.ndarray
) -> _Carry:
    """Adds a block's values to the sums, and fills the rows that end within it."""
    width = len(values["regret"])
    position = jnp.arange(width)
    # The most rows that can end in so many rounds, as they are evenly spaced.
    row = block.row + jnp.arange(
        min(len(rounds), width * len(rounds) // rounds[-1] + 2)
    )
    end = jnp.asarray(rounds, jnp.int32).at[row].get(mode="fill", fill_value=0)
    end = end - block.start
    row = jnp.where(end <= block.length, row, len(rounds))
    sums, rows = {}, {}
    for name, x in values.items():
        x = jnp.where(position < block.length, x, 0)
        partial = jnp.sum(jnp.where(position < end[:, None], x, 0), axis=1)
        filled = carry.sums[name].total + partial
        rows[name] = carry.rows[name].at[row].set(filled, mode="drop")
        sums[name] = add(carry.sums[name], jnp.sum(x))
    return carry._replace(sums=sums, rows=rows)
