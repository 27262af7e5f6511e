"""Confidence sequences for the value of a policy: bounds that hold at every row."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxopt_suite.bandits.off_policy import (
    BanditLog,
    checked_log,
    doubly_robust_terms,
    importance_weights,
)
from jaxopt_suite.core import checks


class ConfidenceSequence(NamedTuple):
    """Bounds after each row, valid for all rows at once.

    Attributes:
        lower: never falls.
        upper: never rises; below ``lower`` only if an assumption is broken or the
            sequence has failed.
    """

    lower: Float[Array, " rows"]
    upper: Float[Array, " rows"]


def confidence_sequence(
    log: BanditLog,
    target: Float[Array, "rows arms"],
    *,
    level: float | Float[Array, ""] = 0.95,
    reward_range: tuple[float, float] = (0.0, 1.0),
    predicted: Float[Array, "rows arms"] | None = None,
    max_weight: float | Float[Array, ""] | None = None,
) -> ConfidenceSequence:
    r"""Bounds on the target's mean reward that hold after every row at once.

    With probability ``level`` or more the value lies between ``lower[t]`` and
    ``upper[t]`` for all t: one may look after each row and stop when one likes. It
    needs no limit on the weights, and the logging policy may learn, as long as its
    propensities are right.

    With rewards scaled to [0, 1] and :math:`\xi_i = w_i r_i`, guess
    :math:`g_i \le 1` and bet :math:`\lambda_i < 1` from the rows before i,

    .. math:: \exp \sum_i \Big( \lambda_i (\xi_i - v) - \psi(\lambda_i)
        (\xi_i - g_i)^2 \Big), \qquad \psi(\lambda) = -\log(1 - \lambda) - \lambda

    is a supermartingale, because :math:`\xi_i - g_i \ge -1`. By Ville's inequality it
    exceeds :math:`2 / (1 - \mathrm{level})` with probability
    :math:`(1 - \mathrm{level}) / 2` at most, which is the lower bound; the same for
    :math:`w_i (1 - r_i)`, of mean :math:`1 - v`, is the upper bound.

    Args:
        log: the logged rows in the order in which they came.
        target: the target policy's probabilities of all arms in each row, the same
            policy throughout; contexts independent of one law.
        level: in (0, 1).
        reward_range: what the rewards lie between for sure.
        predicted: None for inverse propensity scoring; else the rewards of a model,
            within the range and made without this and later rows, for the doubly robust
            terms.
        max_weight: with ``predicted``: a bound on :math:`w_i` that was known before;
            the terms are divided by ``1 + max_weight``, so it should not be huge.

    Raises:
        ValueError: shapes disagree, a propensity or probability is not one, ``level``
            or ``reward_range`` is out of its range, a concrete reward, prediction or
            weight is outside of what was promised, or only one of ``predicted`` and
            ``max_weight`` is given.

    Example:
        >>> from jaxopt_suite.bandits.off_policy import BanditLog
        >>> log = BanditLog(jnp.zeros(1000, int), jnp.arange(1000) % 2, jnp.ones(1000))
        >>> bounds = confidence_sequence(log, jnp.ones((1000, 1)))
        >>> bool(bounds.lower[-1] < 0.5 < bounds.upper[-1])
        True

    Source: Waudby-Smith, Wu, Ramdas, Karampatziakis, Mineiro, "Anytime-valid off-policy
    inference for contextual bandits" (2022), arXiv 2210.10768.
    """
    checks.check_interval("level", level, 0.0, 1.0, closed="()")
    low, high = reward_range
    if not -math.inf < low < high < math.inf:
        raise ValueError(
            f"reward_range must be two finite numbers in order, got {reward_range}"
        )
    if (predicted is None) != (max_weight is None):
        raise ValueError("predicted and max_weight go together: give both or neither")
    log = checked_log(log)
    checks.check_interval("log.reward", log.reward, low, high)
    checks.check_interval("predicted", predicted, low, high)
    checks.check_interval("max_weight", max_weight, 0.0, closed="[)")
    weights = importance_weights(log, target)
    log = log._replace(reward=(log.reward - low) / (high - low))
    if predicted is None:
        gains, losses, reach = weights * log.reward, weights * (1 - log.reward), 1.0
    else:
        reach = 1.0 + jnp.asarray(max_weight)
        if checks.is_concrete(reach):
            # A weight that was divided in float32 may be above its bound by rounding.
            most = (float(reach) - 1.0) * (1.0 + 1e-5)
            checks.check_interval("weights", weights, 0.0, most)
        scaled = (jnp.asarray(predicted) - low) / (high - low)
        gains = doubly_robust_terms(log, target, scaled)
        losses = 1.0 - gains
    log_odds = jnp.log(2.0 / (1.0 - level))
    lower = _lower_bounds(gains, reach, log_odds)
    upper = 1.0 - _lower_bounds(losses, reach, log_odds)
    width = high - low
    return ConfidenceSequence(low + width * lower, low + width * upper)


def _lower_bounds(terms: Array, reach: Any, log_odds: Array) -> Array:
    """Running lower bounds on the mean in [0, 1] of terms ``>= 1 - reach``."""
    count = jnp.arange(1, len(terms) + 1, dtype=terms.dtype)
    before = jnp.concatenate([jnp.zeros(1, terms.dtype), jnp.cumsum(terms)[:-1]])
    guess = jnp.clip((0.5 + before) / count, 0.0, 1.0)
    # In units of reach, so that a term is never more than 1 below the guess.
    squares = ((terms - guess) / reach) ** 2
    seen = jnp.concatenate([jnp.zeros(1, terms.dtype), jnp.cumsum(squares)[:-1]])
    variance = (0.25 + seen) / count
    bet = jnp.sqrt(2.0 * log_odds / (variance * count * jnp.log1p(count)))
    bet = jnp.minimum(bet, 0.5)
    cost = -jnp.log1p(-bet) - bet
    gained = jnp.cumsum(bet * terms / reach) - jnp.cumsum(cost * squares) - log_odds
    bounds = reach * gained / jnp.cumsum(bet)
    return jnp.clip(jax.lax.cummax(bounds), 0.0, 1.0)
