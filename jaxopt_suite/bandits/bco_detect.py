"""Bandit convex optimization that finds out by itself when the losses have changed.

A jump of the losses raises the values that are seen. So the mean values of blocks are
watched, and the learner restarts when they rise above the lowest that they have been.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxopt_suite.bandits.bco_leader import UNIT_BALL, follow_the_leader
from jaxopt_suite.bandits.bco_primitives import (
    Scalar,
    num_coordinates,
    scalar_dtype,
)
from jaxopt_suite.bandits.bco_rounds import (
    BCOState,
    as_batch,
    close_block,
    explore,
    gradient_sum,
    restart,
    start_state,
)
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.bandits.convex_sets import ConvexSet, radii
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy


class Watch(NamedTuple):
    """The values of blocks since the last restart.

    Attributes:
        sums: sums of the values of blocks under way; block i is in slot i mod slots.
        counts: how many values of them have come.
        next_block: the first block whose mean has not been taken.
        taken: means taken.
        recent: the last of them.
        lowest: the lowest mean of ``window`` means in a row.
    """

    sums: Float[Array, " slots"]
    counts: Int[Array, " slots"]
    next_block: Int[Array, ""]
    taken: Int[Array, ""]
    recent: Float[Array, " window"]
    lowest: Float[Array, ""]


class DetectState(NamedTuple):
    """State of :func:`dars_detect`.

    Attributes:
        blocks: that of :func:`dars`; its segment counts the restarts.
        watch: the values of blocks.
    """

    blocks: BCOState
    watch: Watch


def dars_detect(
    example_action: PyTree[Float[Array, "..."]],
    horizon: int,
    expected_length: int,
    *,
    window: int = 2,
    threshold: Scalar = 0.25,
    domain: ConvexSet = UNIT_BALL,
    d_max: int = 0,
    bound: float = 1.0,
    lipschitz: float = 1.0,
    k_scale: float = 1.0,
    bias: float = 3.0,
) -> Policy:
    r"""As :func:`dars` for convex losses, with restarts that it decides on itself.

    Blocks, smoothing radius and learning rate are those of one segment of
    ``expected_length`` rounds. Let :math:`v_i` be the mean value of the i-th block
    since the restart, taken at a block's end once all its values have come, in the
    blocks' order, and :math:`w_i` the mean of the last ``window`` of them. It restarts,
    as at the start of a segment, at the end of a block where

    .. math:: w_i - \min_{k \le i} w_k > \mathrm{threshold} \cdot M

    Args:
        example_action: as for :func:`dars`.
        horizon: number of rounds.
        expected_length: rounds between two changes, roughly.
        window: number of blocks whose mean is watched.
        threshold: rise of it, in units of ``bound``, that makes a restart; > 0, may be
            traced.
        domain: the set.
        d_max: the largest delay. A block whose values are later, or never come, is not
            watched.
        bound: M, as for :func:`dars_schedule`, like all that follow.
        lipschitz: Lipschitz constant.
        k_scale: scale of the block length.
        bias: price of smoothing.

    Returns:
        A policy whose ``update`` is called once a round.

    Raises:
        ValueError: ``expected_length`` is not in [1, horizon], ``window`` is below 1,
            ``threshold`` is not positive; as :func:`dars_schedule` and :func:`dars`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.bco import bco_env
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> policy = dars_detect(jnp.zeros(2), 2**14, 2**13, k_scale=0.2)
        >>> world, key = bco_env(norm_segments(2**14, 2, 2)), jax.random.key(0)
        >>> run = jax.jit(lambda key: interact(policy, world, key, 2**14))(key)
        >>> int(run.state.blocks.segment)  # restarts
        1
    """
    checks.check_integer("horizon", horizon)
    checks.check_integer("expected_length", expected_length)
    if expected_length > horizon:
        raise ValueError(
            f"expected_length must be at most the horizon {horizon}, got "
            f"{expected_length}"
        )
    checks.check_integer("window", window)
    checks.check_interval("threshold", threshold, 0.0, closed="()")
    n, dtype = num_coordinates(example_action), scalar_dtype(example_action)
    schedule = dars_schedule(
        expected_length,
        n,
        d_max=d_max,
        **radii(domain),
        bound=bound,
        lipschitz=lipschitz,
        k_scale=k_scale,
        bias=bias,
    )
    leader = follow_the_leader(example_action, schedule, domain=domain)
    length = int(schedule.K[0])
    slots = -(-d_max // length) + 1

    def init(key):
        del key
        return DetectState(start_state(leader, dtype), _no_watch(slots, window, dtype))

    def select(state, context, key):
        del context
        return explore(state.blocks, leader.delta(0), example_action, key)

    def update(feedback, state):
        feedback = as_batch(feedback)
        blocks = state.blocks
        keep = feedback.mask & (feedback.decision.segment == blocks.segment)
        first = blocks.round - blocks.position - blocks.block * length
        index = (feedback.decision.round - first) // length
        watch = _count(state.watch, feedback.value, index, keep, blocks.block)
        blocks = blocks._replace(
            g=jax.tree.map(jnp.add, blocks.g, gradient_sum(feedback, keep, n)),
            position=blocks.position + 1,
            round=blocks.round + 1,
        )

        def close(state):
            watch, rises = _look(
                state.watch, state.blocks.block, length, threshold * bound
            )
            closed = DetectState(close_block(state.blocks, leader, 0), watch)
            fresh = DetectState(
                restart(state.blocks, leader, state.blocks.segment + 1, 0),
                _no_watch(slots, window, dtype),
            )
            state = jax.tree.map(lambda a, b: jnp.where(rises, a, b), fresh, closed)
            # No lane's alarm is in the clock: the branch below is one for all lanes.
            clock = {"position": jnp.zeros_like(blocks.position), "round": blocks.round}
            return state._replace(blocks=state.blocks._replace(**clock))

        return jax.lax.cond(
            blocks.position == length,
            close,
            lambda state: state,
            DetectState(blocks, watch),
        )

    return Policy(init, select, update)


def _no_watch(slots: int, window: int, dtype: jnp.dtype) -> Watch:
    return Watch(
        sums=jnp.zeros(slots, dtype),
        counts=jnp.zeros(slots, jnp.int32),
        next_block=jnp.zeros([], jnp.int32),
        taken=jnp.zeros([], jnp.int32),
        recent=jnp.zeros(window, dtype),
        lowest=jnp.full([], jnp.inf, dtype),
    )


def _count(
    watch: Watch,
    values: Float[Array, " batch"],
    index: Int[Array, " batch"],
    keep: Array,
    block: Int[Array, ""],
) -> Watch:
    """Adds the values in ``keep``, of blocks ``index``, in the course of ``block``."""
    slots = len(watch.sums)
    slot = jnp.where(keep & (index > block - slots), index % slots, slots)
    values = values.astype(watch.sums.dtype)
    return watch._replace(
        sums=watch.sums.at[slot].add(values, mode="drop"),
        counts=watch.counts.at[slot].add(1, mode="drop"),
    )


def _look(
    watch: Watch, block: Int[Array, ""], length: int, rise: Scalar
) -> tuple[Watch, Array]:
    """At the end of ``block``: takes the means of complete blocks; did they rise?"""
    slots, window = len(watch.sums), len(watch.recent)
    rise = jnp.asarray(rise, watch.sums.dtype)

    def is_complete(carry):
        watch, _ = carry
        whole = watch.counts[watch.next_block % slots] == length
        return whole & (watch.next_block <= block)

    def take(carry):
        watch, rises = carry
        mean = watch.sums[watch.next_block % slots] / length
        recent = watch.recent.at[watch.taken % window].set(mean)
        taken = watch.taken + 1
        level = jnp.where(taken < window, jnp.inf, jnp.mean(recent))
        lowest = jnp.minimum(watch.lowest, level)
        rises = rises | ((taken >= window) & (level - lowest > rise))
        watch = watch._replace(
            next_block=watch.next_block + 1, taken=taken, recent=recent, lowest=lowest
        )
        return watch, rises

    watch, rises = jax.lax.while_loop(is_complete, take, (watch, jnp.array(False)))
    # The next block takes the slot of one that is complete, or given up.
    slot = (block + 1) % slots
    return watch._replace(
        sums=watch.sums.at[slot].set(0.0),
        counts=watch.counts.at[slot].set(0),
        next_block=jnp.maximum(watch.next_block, block + 2 - slots),
    ), rises
