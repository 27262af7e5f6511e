"""Linear policies that draw an arm from probabilities, which the decision records."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxopt_suite.bandits.linear import (
    check_context,
    check_mask,
    play,
    playable_arms,
    ridge_learn,
)
from jaxopt_suite.bandits.ridge import (
    RidgeState,
    check_layout,
    ridge_init,
    ridge_predictions,
)
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy
from jaxopt_suite.problems.contextual import LinearContext, LinearDecision

# probabilities(state, scores, playable) -> one probability per arm.
Probabilities = Callable[[RidgeState, Array, Array], Array]


class RandomState(NamedTuple):
    """State of :func:`random_policy`: the number of feedbacks received."""

    count: Int[Array, ""]


def draw_arm(
    context: LinearContext,
    probabilities: Float[Array, " num_arms"],
    scores: Float[Array, " num_arms"],
    key: PRNGKeyArray,
) -> LinearDecision:
    """The decision for an arm drawn from ``probabilities``, which it records.

    Args:
        context: what the policy was shown.
        probabilities: one per arm, 0 where an arm must not be played.
        scores: what each arm is worth, for the record.
        key: a typed key.
    """
    steps = jnp.cumsum(probabilities)
    # A uniform draw is below 1 by more than the product can round up.
    level = jax.random.uniform(key, dtype=steps.dtype) * steps[-1]
    arm = jnp.argmax(steps > level)
    return play(context, arm, scores, propensity=probabilities[arm])


def epsilon_greedy(
    d: int,
    *,
    epsilon: optax.ScalarOrSchedule,
    lam: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Plays a uniformly random arm with probability epsilon, else the best predicted.

    Args:
        d: width of the features, or of the context if disjoint.
        epsilon: in [0, 1], a number (may be traced) or an Optax schedule of the number
            of rows learned.
        lam: regularization > 0; may be traced.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Raises:
        ValueError: a concrete ``epsilon`` is outside [0, 1], or see
            :func:`index_policy`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy, world = epsilon_greedy(2, epsilon=0.1), linear_env(2, 4, noise=0.1)
        >>> run = interact(policy, world, jax.random.key(0), 9, record="full")
        >>> chances = run.record.decision.propensity
        >>> bool(jnp.all(jnp.isclose(chances, 0.025) | jnp.isclose(chances, 0.925)))
        True
    """
    checks.check_interval("epsilon", epsilon, 0.0, 1.0)

    def probabilities(state, scores, playable):
        value = epsilon(state.count) if callable(epsilon) else epsilon
        value = jnp.asarray(value, scores.dtype)
        shares = playable / jnp.maximum(jnp.sum(playable), 1).astype(scores.dtype)
        return value * shares + (1 - value) * _best(scores)

    return _randomized(d, probabilities, lam, layout, num_arms)


def squarecb(
    d: int,
    *,
    gamma: float | Array,
    lam: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Inverse-gap weighting of the predictions (SquareCB).

    .. math:: p_a = \frac{1}{K + \gamma\, (\max_b s_b - s_a)}, \qquad
        s_a = \langle x_a, \theta_t \rangle

    with K the number of arms that may be played; the best predicted arm, the lowest of
    them, takes the rest of the probability.

    Args:
        d: width of the features, or of the context if disjoint.
        gamma: > 0, how strongly a lower prediction counts; may be traced.
        lam: regularization > 0; may be traced.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Raises:
        ValueError: a concrete ``gamma`` is not > 0, or see :func:`index_policy`.

    Example:
        >>> policy = squarecb(2, gamma=4.0)
        >>> state = policy.init(jax.random.key(0))
        >>> context = LinearContext(jnp.eye(2))
        >>> policy.select(state, context, jax.random.key(1)).propensity
        Array(0.5, dtype=float32)

    Source: Foster and Rakhlin, "Beyond UCB: optimal and efficient contextual bandits
    with regression oracles" (2020), arXiv 2002.04926.
    """
    checks.check_interval("gamma", gamma, 0.0, closed="()")

    def probabilities(state, scores, playable):
        del state
        arms = jnp.sum(playable).astype(scores.dtype)
        weight = jnp.asarray(gamma, scores.dtype)
        shares = 1 / jnp.maximum(arms + weight * (jnp.max(scores) - scores), 1)
        best = _best(scores)
        shares = jnp.where(playable & ~best, shares, 0)
        return jnp.where(best, 1 - jnp.sum(shares), shares)

    return _randomized(d, probabilities, lam, layout, num_arms)


def random_policy(num_arms: int) -> Policy:
    """Plays any arm that may be played with the same probability; learns nothing.

    Args:
        num_arms: number of arms >= 1; contexts are of either layout.

    Raises:
        ValueError: ``num_arms`` is not an integer >= 1; or, at trace time, the context
            is for another number of arms.

    Example:
        >>> policy = random_policy(4)
        >>> state = policy.init(jax.random.key(0))
        >>> context = LinearContext(jnp.eye(4))
        >>> policy.select(state, context, jax.random.key(1)).propensity
        Array(0.25, dtype=float32)
    """
    checks.check_integer("num_arms", num_arms)

    def init(key):
        del key
        return RandomState(jnp.zeros([], jnp.int32))

    def select(state, context, key):
        del state
        features = jnp.asarray(context.features)
        if features.ndim == 2 and len(features) != num_arms:
            raise ValueError(
                f"context.features must have {num_arms} rows, one per arm, got shape "
                f"{features.shape}"
            )
        check_mask(context.mask, num_arms)
        scores = jnp.zeros(num_arms, features.dtype)
        playable = playable_arms(context, scores)
        shares = playable / jnp.maximum(jnp.sum(playable), 1).astype(scores.dtype)
        return draw_arm(context, shares, scores, key)

    def update(feedback, state):
        return RandomState(state.count + jnp.sum(feedback.mask, dtype=jnp.int32))

    return Policy(init, select, update)


def _randomized(
    d: int,
    probabilities: Probabilities,
    lam: float | Array,
    layout: str,
    num_arms: int | None,
) -> Policy:
    """A policy whose probabilities depend on the predictions alone."""
    check_layout(d, lam, layout, num_arms)

    def init(key):
        del key
        return ridge_init(d, lam=lam, layout=layout, num_arms=num_arms)

    def select(state, context, key):
        check_context(state, context)
        predictions = ridge_predictions(state, context.features)
        playable = playable_arms(context, predictions)
        scores = jnp.where(playable, predictions, -jnp.inf)
        return draw_arm(context, probabilities(state, scores, playable), scores, key)

    def update(feedback, state):
        return ridge_learn(state, feedback)

    return Policy(init, select, update)


def _best(scores: Float[Array, " num_arms"]) -> Bool[Array, " num_arms"]:
    return jnp.arange(len(scores)) == jnp.argmax(scores)
