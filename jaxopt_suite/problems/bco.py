"""Bandit convex optimization: what a sequence of losses is, and its environment.

A learner plays a point of a convex set in every round and sees the value of that
round's loss at that point alone. The loss changes at the start of a segment, so the
learner is compared with the best point of every segment. Sequences to play against are
in :mod:`jaxopt_suite.problems.bco_losses`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Environment

Round = int | Int[Array, ""]
Scalar = float | Float[Array, ""]
# Up to here one comparison per segment is faster than a binary search.
_COMPARE_ALL = 64


class BCOFeedback(NamedTuple):
    """The value of a loss at the point played; with or without one leading batch axis.

    Attributes:
        decision: the decision it answers; its field ``x`` is the point played.
        value: the loss at that point.
        mask: False where there is nothing: an empty slot of a batch.
        regret: the value less that of the segment's best point, for the record only
            (NaN there changes no decision).
    """

    decision: Any
    value: Float[Array, "*batch"] | float
    mask: Bool[Array, "*batch"] | bool = True
    regret: Float[Array, "*batch"] | float = 0.0


class LossSequence(NamedTuple):
    """One convex loss per round, with what is known of all of them.

    Attributes:
        value: ``value(x, t) -> f_t(x)``; ``t`` may be traced, and both may be vmapped.
        minimizer: ``minimizer(t) -> x*``, the point that round t is compared with: the
            minimizer of the sum of the losses of its segment.
        min_value: ``min_value(t) -> f_t(x*)``.
        segment_starts: first rounds of the segments, the first of them 0.
        bound: a bound on the absolute values on the set.
        lipschitz: a Lipschitz constant on the set.
        strong_convexity: the modulus of strong convexity, 0 without.
    """

    value: Callable[[PyTree, Round], Float[Array, ""]]
    minimizer: Callable[[Round], PyTree]
    min_value: Callable[[Round], Float[Array, ""]]
    segment_starts: Int[np.ndarray, " segments"]
    bound: Scalar
    lipschitz: Scalar
    strong_convexity: Scalar = 0.0


class RandomLosses(NamedTuple):
    """A law of loss sequences; the draw comes from the environment's key alone.

    Attributes:
        draw: ``draw(key) -> drawn``, a pytree of arrays.
        losses: ``losses(drawn) -> LossSequence``.
    """

    draw: Callable[[PRNGKeyArray], PyTree[Array]]
    losses: Callable[[PyTree[Array]], LossSequence]


class BCOEnvState(NamedTuple):
    """State of :func:`bco_env`: the next round, and what the losses drew."""

    round: Int[Array, ""]
    drawn: PyTree[Array]


def as_random(losses: LossSequence | RandomLosses) -> RandomLosses:
    """A fixed sequence as a law with one outcome; a law as it is."""
    if isinstance(losses, RandomLosses):
        return losses
    return RandomLosses(lambda key: (), lambda drawn: losses)


def bco_env(losses: LossSequence | RandomLosses) -> Environment:
    """Answers a decision of round t with ``f_t(decision.x)``; there is no context.

    Args:
        losses: a sequence, or a law that is drawn with the key of ``init``.

    Returns:
        An environment whose feedback is a :class:`BCOFeedback`.

    Raises:
        ValueError: ``losses`` is neither.

    Example:
        >>> from types import SimpleNamespace
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> world = bco_env(norm_segments(4, 2))
        >>> state, context = world.init(jax.random.key(0))
        >>> decision = SimpleNamespace(x=jnp.zeros(2))
        >>> state, context, answer = world.step(state, decision, jax.random.key(1))
        >>> float(answer.value), float(answer.regret)
        (0.0, 0.5)
    """
    if not isinstance(losses, (LossSequence, RandomLosses)):
        raise ValueError(
            "losses must be a LossSequence or RandomLosses, as norm_segments or "
            f"rademacher_blocks make them, got {type(losses).__name__}"
        )
    law = as_random(losses)

    def init(key):
        return BCOEnvState(jnp.zeros([], jnp.int32), law.draw(key)), ()

    def step(state, decision, key):
        del key
        drawn = law.losses(state.drawn)
        value = drawn.value(decision.x, state.round)
        regret = value - drawn.min_value(state.round)
        feedback = BCOFeedback(decision, value, jnp.array(True), regret)
        return state._replace(round=state.round + 1), (), feedback

    return Environment(init, step)


def offset_losses(losses: LossSequence, offset: Scalar) -> LossSequence:
    """Adds a constant to every loss: regret stays, values and their bound do not.

    Args:
        losses: any sequence.
        offset: the constant; may be traced.

    Example:
        >>> from jaxopt_suite.problems.bco_losses import norm_segments
        >>> float(offset_losses(norm_segments(4, 2), 5.0).value(jnp.zeros(2), 0))
        5.0
    """
    return losses._replace(
        value=lambda x, t: losses.value(x, t) + offset,
        min_value=lambda t: losses.min_value(t) + offset,
        bound=losses.bound + abs(offset),
    )


def equal_segments(
    horizon: int, num_segments: int, segment_starts: Sequence[int] | None = None
) -> Int[np.ndarray, " segments"]:
    """First rounds of ``num_segments`` segments, equal up to one round, or those given.

    Raises:
        ValueError: ``horizon`` or ``num_segments`` is below 1, there are more segments
            than rounds, or ``segment_starts`` does not begin with 0, does not increase
            or reaches the horizon.

    Example:
        >>> equal_segments(8, 4).tolist()
        [0, 2, 4, 6]
    """
    checks.check_integer("horizon", horizon)
    checks.check_integer("num_segments", num_segments)
    if segment_starts is not None:
        starts = np.asarray(segment_starts)
        if (
            starts.ndim != 1
            or starts.dtype.kind not in "iu"
            or not starts.size
            or starts[0] != 0
            or np.any(np.diff(starts) <= 0)
            or starts[-1] >= horizon
        ):
            raise ValueError(
                "segment_starts must be integers that begin with 0, strictly increase "
                f"and stay below the horizon {horizon}, got {segment_starts}"
            )
        return starts.astype(np.int32)
    if num_segments > horizon:
        raise ValueError(
            f"num_segments must be at most the horizon {horizon}, got {num_segments}"
        )
    # Python integers: the product may not fit in 32 bits.
    parts = [j * int(horizon) // num_segments for j in range(num_segments)]
    return np.asarray(parts, np.int32)


def segment_index(
    starts: Int[np.ndarray, " segments"],
) -> Callable[[Round], Int[Array, ""]]:
    """The function ``t -> segment`` of the segments with these first rounds."""
    method = "compare_all" if len(starts) <= _COMPARE_ALL else "scan_unrolled"

    def index(t):
        return jnp.searchsorted(
            jnp.asarray(starts[1:], jnp.int32), t, side="right", method=method
        ).astype(jnp.int32)

    return index
