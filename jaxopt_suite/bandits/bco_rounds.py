"""One round of bandit convex optimization in blocks: explore, sum up, move the clock.

The policies of :mod:`jaxopt_suite.bandits.bco` and its relatives are short chains of
these functions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.bandits.bco_leader import Leader
from jaxopt_suite.bandits.bco_primitives import (
    one_point_gradient,
    sphere_sample,
)
from jaxopt_suite.bandits.bco_schedule import BCOSchedule
from jaxopt_suite.problems.bco import BCOFeedback


class BCODecision(NamedTuple):
    """What is played, and what its value will be read with, whenever it comes.

    Attributes:
        x: the point played, ``centre + delta * direction``, in the action's dtypes.
        direction: the direction of exploration, in float32 where x is narrower.
        delta: the radius of exploration.
        segment: the segment (or epoch) it belongs to; -1 if nothing is to be learned.
        round: the round it was played in.
        baseline: what is subtracted from the value.
        experts: the points of experts behind the centre, where a policy has some.
    """

    x: PyTree[Float[Array, "..."]]
    direction: PyTree[Float[Array, "..."]]
    delta: Float[Array, "*batch"]
    segment: Int[Array, "*batch"]
    round: Int[Array, "*batch"]
    baseline: Float[Array, "*batch"] | float = 0.0
    experts: PyTree[Float[Array, "..."]] | None = None


class BCOState(NamedTuple):
    """State of :func:`dars`; pytrees like the action, in float32 where it is narrower.

    Attributes:
        y: the centre of the block.
        g: sum of the gradient terms that came in this segment.
        y_sum: sum of the centres of the segment's past blocks.
        block: past blocks of the segment.
        position: past rounds of the block.
        segment: the segment.
        round: the round, over all segments.
        value_sum: sum of the values that came in this segment, under a baseline.
        value_count: how many they are.
        baseline: their mean at the start of the block.
    """

    y: PyTree[Float[Array, "..."]]
    g: PyTree[Float[Array, "..."]]
    y_sum: PyTree[Float[Array, "..."]]
    block: Int[Array, ""]
    position: Int[Array, ""]
    segment: Int[Array, ""]
    round: Int[Array, ""]
    value_sum: Float[Array, ""]
    value_count: Int[Array, ""]
    baseline: Float[Array, ""]


def start_state(leader: Leader, dtype: jnp.dtype) -> BCOState:
    """The state before round 0, in memory of its own."""

    def copy(tree):
        return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)

    y = leader.start(0)
    counts = (jnp.zeros([], jnp.int32) for _ in range(4))
    return BCOState(
        copy(y),
        jax.tree.map(jnp.zeros_like, y),
        jax.tree.map(jnp.zeros_like, y),
        *counts,
        value_sum=jnp.zeros([], dtype),
        value_count=jnp.zeros([], jnp.int32),
        baseline=jnp.zeros([], dtype),
    )


def explore(
    state: BCOState, delta: Float[Array, ""], example_action: PyTree, key: PRNGKeyArray
) -> BCODecision:
    """A point at distance ``delta`` from the centre, in a uniform direction."""
    direction = sphere_sample(key, example_action)
    return BCODecision(
        displaced(state.y, direction, delta, example_action),
        direction,
        delta,
        state.segment,
        state.round,
        state.baseline,
    )


def displaced(
    y: PyTree, direction: PyTree, delta: Float[Array, ""], example_action: PyTree
) -> PyTree:
    """``y + delta * direction`` in the dtypes of ``example_action``."""

    def one(y, u, x):
        return (y + delta.astype(u.dtype) * u).astype(jnp.result_type(x))

    return jax.tree.map(one, y, direction, example_action)


def as_batch(feedback: Any) -> Any:
    """The feedback as arrays with a batch axis, of size 1 if it had none."""
    feedback = jax.tree.map(jnp.asarray, feedback)
    if feedback.mask.ndim:
        return feedback
    return jax.tree.map(lambda x: x[None], feedback)


def gradient_sum(
    feedback: BCOFeedback, keep: Bool[Array, " batch"], n: int
) -> PyTree[Float[Array, "..."]]:
    """Sum of the one-point gradients of a batch over the entries in ``keep``.

    What is not kept does not matter, whatever is in it.
    """

    def term(decision, value):
        value = value - decision.baseline
        return one_point_gradient(value, decision.direction, decision.delta, n)

    terms = jax.vmap(term)(feedback.decision, feedback.value)
    return masked_sum(keep, terms)


def masked_sum(keep: Bool[Array, " batch"], terms: PyTree) -> PyTree:
    """Sum over the leading axis of the terms in ``keep``, in their dtypes."""

    def one(x):
        flags = keep.reshape(keep.shape + (1,) * (x.ndim - 1))
        return jnp.sum(jnp.where(flags, x, 0), axis=0, dtype=x.dtype)

    return jax.tree.map(one, terms)


def count_values(
    state: BCOState, values: Float[Array, " batch"], keep: Bool[Array, " batch"]
) -> BCOState:
    """Adds the values in ``keep`` to those that a baseline is the mean of."""
    values = values.astype(state.value_sum.dtype)
    return state._replace(
        value_sum=state.value_sum + masked_sum(keep, values),
        value_count=state.value_count + jnp.sum(keep, dtype=jnp.int32),
    )


def next_round(state: BCOState, leader: Leader, schedule: BCOSchedule) -> BCOState:
    """Moves the clock by a round: a block may end with it, and a segment."""
    last = len(schedule.starts) - 1
    ends = jnp.asarray(np.cumsum(schedule.lengths), jnp.int32)
    lengths = jnp.asarray(schedule.K, jnp.int32)
    state = state._replace(position=state.position + 1, round=state.round + 1)
    segment_over = state.round == ends[state.segment]

    def close(state):
        closed = close_block(state, leader, state.segment)
        if not last:
            return closed
        following = jnp.minimum(state.segment + 1, last)
        fresh = restart(state, leader, following, following)
        leaves = segment_over & (state.segment < last)
        return jax.tree.map(lambda a, b: jnp.where(leaves, a, b), fresh, closed)

    # The clock depends on no value, so this stays a real branch under vmap over keys.
    return jax.lax.cond(
        segment_over | (state.position == lengths[state.segment]),
        close,
        lambda state: state,
        state,
    )


def close_block(state: BCOState, leader: Leader, row: int | Int[Array, ""]) -> BCOState:
    """Ends a block by row ``row`` of the schedule: the centre moves."""
    y_sum = jax.tree.map(jnp.add, state.y_sum, state.y)
    block = state.block + 1
    count = jnp.maximum(state.value_count, 1).astype(state.value_sum.dtype)
    return state._replace(
        y=leader.follow(state.g, y_sum, block, row),
        y_sum=y_sum,
        block=block,
        position=jnp.zeros_like(state.position),
        baseline=state.value_sum / count,
    )


def restart(
    state: BCOState,
    leader: Leader,
    segment: Int[Array, ""],
    row: int | Int[Array, ""],
) -> BCOState:
    """The state at the start of ``segment``, by row ``row`` of the schedule."""
    blank = jax.tree.map(jnp.zeros_like, state)
    return blank._replace(y=leader.start(row), segment=segment, round=state.round)


def check_baseline(baseline: str | None) -> None:
    """Requires None or ``"mean"``.

    Raises:
        ValueError: it is neither.
    """
    if baseline not in (None, "mean"):
        raise ValueError(f"baseline must be None or 'mean', got {baseline!r}")
