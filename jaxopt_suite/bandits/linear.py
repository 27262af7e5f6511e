"""What all linear policies share: arms in, the best one out, feedback learned.

A policy differs from another only in how it scores the arms. :func:`index_policy` turns
a deterministic score into a :class:`jaxopt_suite.core.Policy`; a randomized policy is
written with :func:`choose` and :func:`ridge_learn`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxopt_suite.bandits.ridge import (
    RidgeState,
    check_layout,
    ridge_init,
    ridge_predictions,
    ridge_update,
    ridge_update_batch,
    ridge_widths,
)
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy
from jaxopt_suite.problems.contextual import (
    BanditFeedback,
    LinearContext,
    LinearDecision,
)

Index = Callable[[RidgeState, Array, Array], tuple[Array, Array]]
StateSchedule = float | Array | Callable[[RidgeState], Array]


def index_policy(
    d: int,
    index: Index,
    *,
    lam: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    """Plays the arm of the largest ``predictions + bonus``; ties go to the lowest arm.

    The state is a :class:`RidgeState`.

    Args:
        d: width of the features, or of the context if disjoint.
        index: ``index(state, predictions, widths) -> (scores, bonuses)``, all of
            shape (num_arms,): an arm's worth, and the part of it that pays for
            exploration. An arm that must not be played has the prediction -inf.
        lam: regularization > 0; may be traced.
        layout: ``"shared"``: a context has one row of features per arm;
            ``"disjoint"``: one vector, for which each arm has its own parameters.
        num_arms: number of arms; needed if disjoint.

    Raises:
        ValueError: see :func:`ridge_init`; or, at trace time, an arm of another width.

    Example:
        >>> greedy = index_policy(2, lambda state, means, widths: (means, 0 * means))
        >>> context = LinearContext(jnp.eye(2))
        >>> state = greedy.init(jax.random.key(0))
        >>> decision = greedy.select(state, context, jax.random.key(1))
        >>> state = greedy.update(BanditFeedback(decision, reward=-1.0), state)
        >>> int(decision.arm), int(greedy.select(state, context, jax.random.key(2)).arm)
        (0, 1)
    """
    check_layout(d, lam, layout, num_arms)

    def init(key):
        del key
        return ridge_init(d, lam=lam, layout=layout, num_arms=num_arms)

    def select(state, context, key):
        del key
        check_context(state, context)
        predictions = ridge_predictions(state, context.features)
        playable = playable_arms(context, predictions)
        predictions = jnp.where(playable, predictions, -jnp.inf)
        widths = ridge_widths(state, context.features)
        return choose(context, *index(state, predictions, widths))

    def update(feedback, state):
        return ridge_learn(state, feedback)

    return Policy(init, select, update)


def choose(
    context: LinearContext,
    scores: Float[Array, " num_arms"],
    bonuses: Float[Array, " num_arms"] | float = 0.0,
    **fields: Any,
) -> LinearDecision:
    """The decision for the playable arm of the largest score.

    Args:
        context: what the policy was shown.
        scores: what each arm is worth.
        bonuses: the part of a score that pays for exploration.
        **fields: ``propensity`` or ``member`` of the :class:`LinearDecision`.
    """
    playable = jnp.where(playable_arms(context, scores), scores, -jnp.inf)
    return play(context, jnp.argmax(playable), playable, bonuses, **fields)


def play(
    context: LinearContext,
    arm: Int[Array, ""],
    scores: Float[Array, " num_arms"],
    bonuses: Float[Array, " num_arms"] | float = 0.0,
    **fields: Any,
) -> LinearDecision:
    """The decision for ``arm``; as :func:`choose`, which picks it by the scores."""
    arm = jnp.asarray(arm, jnp.int32)
    features = jnp.asarray(context.features)
    playable = playable_arms(context, scores)
    blank = LinearDecision(
        arm=arm,
        x=features if features.ndim == 1 else features[arm],
        score=jnp.where(playable[arm], scores[arm], -jnp.inf),
        bonus=jnp.broadcast_to(jnp.asarray(bonuses, scores.dtype), scores.shape)[arm],
        propensity=jnp.full((), jnp.nan, scores.dtype),
        valid=playable[arm],
        member=jnp.full((), -1, jnp.int32),
    )
    return blank._replace(**fields)


def playable_arms(
    context: LinearContext, scores: Float[Array, " num_arms"]
) -> Bool[Array, " num_arms"]:
    """Which arms may be played, for as many arms as there are ``scores``."""
    if context.mask is None:
        return jnp.ones(scores.shape, bool)
    return jnp.asarray(context.mask, bool)


def ridge_learn(state: RidgeState, feedback: BanditFeedback) -> RidgeState:
    """Learns one feedback, or a batch of them; empty slots change nothing.

    A decision that was not valid is not learned from: no arm was played.
    """
    decision, mask = feedback.decision, learned(feedback)
    arm = decision.arm if state.theta.ndim == 2 else None
    if mask.ndim == 0:
        return ridge_update(state, decision.x, feedback.reward, arm=arm, mask=mask)
    return ridge_update_batch(state, decision.x, feedback.reward, mask, arm=arm)


def learned(feedback: BanditFeedback) -> Bool[Array, "*batch"]:
    """Which rows there are to learn from."""
    return jnp.asarray(feedback.mask) & jnp.asarray(feedback.decision.valid)


def ring_places(
    count: Int[Array, ""], keep: Bool[Array, " batch"], size: int
) -> Int[Array, " batch"]:
    """Where the rows of a batch go in a ring of the last ``size`` rows learned.

    A row that is not kept, or for which later ones leave no room, gets the place
    ``size``, past the end: write with ``mode="drop"``.

    Args:
        count: rows learned before the batch.
        keep: which rows are learned.
        size: of the ring.
    """
    rank = jnp.cumsum(keep) - 1
    room = keep & (rank > rank[-1] - size)
    return jnp.where(room, (count + rank) % size, size)


def check_context(state: RidgeState, context: LinearContext) -> None:
    """Refuses a context that does not fit the statistics.

    Raises:
        ValueError: the features are of another rank or width, the mask is not one per
            arm, or it is concrete and lets no arm be played.
    """
    shape, expected = jnp.shape(context.features), state.theta.shape
    disjoint = len(expected) == 2
    if len(shape) != 2 - disjoint or shape[-1] != expected[-1]:
        wanted = f"({expected[-1]},)" if disjoint else f"(num_arms, {expected[-1]})"
        raise ValueError(f"context.features must have shape {wanted}, got {shape}")
    check_mask(context.mask, expected[0] if disjoint else shape[0])


def check_mask(mask: Bool[Array, " num_arms"] | None, num_arms: int) -> None:
    """Refuses a mask that is not one flag per arm, or concrete and False throughout.

    Raises:
        ValueError: it is.
    """
    if mask is None:
        return
    if jnp.shape(mask) != (num_arms,):
        raise ValueError(
            f"context.mask must have shape ({num_arms},), one flag per arm, got "
            f"{jnp.shape(mask)}"
        )
    if checks.is_concrete(mask) and not np.any(np.asarray(mask)):
        raise ValueError("context.mask must let at least one arm be played, got none")


def value_at(value: StateSchedule, state: RidgeState) -> Float[Array, ""]:
    """A number, or what a schedule says of the statistics, in their dtype."""
    return jnp.asarray(value(state) if callable(value) else value, state.theta.dtype)


def ridge_of(state: Any) -> RidgeState:
    """The ridge statistics of a linear policy's state.

    Raises:
        ValueError: the state is none, and has no field ``ridge``.
    """
    if isinstance(state, RidgeState):
        return state
    if isinstance(getattr(state, "ridge", None), RidgeState):
        return state.ridge
    raise ValueError(
        "the policy's state must be a RidgeState or have a field ridge, got "
        f"{type(state).__name__}"
    )
