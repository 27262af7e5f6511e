r"""What another policy would have earned: estimates from logged bandit feedback.

A log has for each row the arm that was played, its reward, and the probability with
which it was played. A target policy is given by the probabilities
:math:`\pi(a \mid x_i)` of all arms in all rows. All estimators are quotients of two
means over rows, which is how :func:`bootstrap_interval` resamples them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxopt_suite.core import checks
from jaxopt_suite.core.replay import ReplayResult


class BanditLog(NamedTuple):
    """Logged rows.

    Attributes:
        arm: the arm played, (rows,).
        reward: what it earned, (rows,).
        propensity: the probability with which it was played, (rows,).
    """

    arm: Int[Array, " rows"]
    reward: Float[Array, " rows"]
    propensity: Float[Array, " rows"]


class OffPolicyEstimate(NamedTuple):
    """An estimate of a policy's mean reward.

    Attributes:
        value: sum of the numerator divided by the sum of the denominator.
        numerator: one term a row.
        denominator: one term a row.
    """

    value: Float[Array, ""]
    numerator: Float[Array, " rows"]
    denominator: Float[Array, " rows"]


def bandit_log(record: Any) -> BanditLog:
    """The log in the rows of a full record of ``interact``, or of a ``Logged``.

    Args:
        record: has the fields ``decision`` (with ``arm`` and ``propensity``) and
            ``feedback`` (with ``reward``), all with one leading axis.

    Raises:
        ValueError: a field is missing, sizes differ, a concrete mask has a False, or a
            concrete propensity is not in (0, 1]. NaN, which a deterministic policy or
            one without a closed form reports, is not: such a log supports no estimate
            by weighting.

    Example:
        >>> from jaxopt_suite.core import Logged
        >>> from jaxopt_suite.problems.contextual import BanditFeedback, LinearDecision
        >>> half = LinearDecision(
        ...     jnp.array([0, 1]), jnp.ones((2, 1)), propensity=jnp.full(2, 0.5)
        ... )
        >>> feedback = BanditFeedback(half, jnp.array([1.0, 0.0]))
        >>> bandit_log(Logged((), half, feedback)).reward
        Array([1., 0.], dtype=float32)
    """
    try:
        decision, feedback = record.decision, record.feedback
        rows = BanditLog(decision.arm, feedback.reward, decision.propensity)
    except AttributeError as error:
        raise ValueError(
            "record must have decision.arm, decision.propensity and feedback.reward: "
            f"{error}"
        ) from None
    mask = getattr(feedback, "mask", True)
    if checks.is_concrete(mask) and not np.all(mask):
        raise ValueError(
            f"feedback.mask must be True throughout, got {np.sum(~np.asarray(mask))} "
            "rows of False: drop them first"
        )
    return checked_log(rows)


def ips(log: BanditLog, target: Float[Array, "rows arms"]) -> OffPolicyEstimate:
    r"""Inverse propensity scoring, unbiased.

    .. math:: \frac1n \sum_i w_i r_i, \qquad w_i = \pi(a_i \mid x_i) / p_i

    Args:
        log: the logged rows.
        target: the target policy's probabilities of all arms in each row.

    Raises:
        ValueError: shapes disagree, a concrete propensity is not in (0, 1], a
            concrete probability is not in [0, 1], or those of a row do not add up to 1.

    Example:
        >>> log = BanditLog(
        ...     jnp.array([0, 1]), jnp.array([1.0, 3.0]), jnp.array([0.5, 0.5])
        ... )
        >>> always_second = jnp.array([[0.0, 1.0], [0.0, 1.0]])
        >>> ips(log, always_second).value
        Array(3., dtype=float32)

    Source: Horvitz, Thompson, "A generalization of sampling without replacement from a
    finite universe" (1952).
    """
    log = checked_log(log)
    terms = importance_weights(log, target) * log.reward
    return _quotient(terms, jnp.ones_like(terms))


def snips(log: BanditLog, target: Float[Array, "rows arms"]) -> OffPolicyEstimate:
    r"""Self-normalized inverse propensity scoring: slightly biased, less variance.

    .. math:: \sum_i w_i r_i \Big/ \sum_i w_i

    NaN if the target plays none of the logged arms.

    Args:
        log: the logged rows.
        target: the target policy's probabilities of all arms in each row.

    Raises:
        ValueError: as :func:`ips`.

    Example:
        >>> log = BanditLog(
        ...     jnp.array([0, 1]), jnp.array([1.0, 3.0]), jnp.array([0.5, 0.25])
        ... )
        >>> snips(log, jnp.full((2, 2), 0.5)).value
        Array(2.3333333, dtype=float32)

    Source: Swaminathan, Joachims, "The Self-Normalized Estimator for Counterfactual
    Learning" (2015).
    """
    log = checked_log(log)
    weights = importance_weights(log, target)
    return _quotient(weights * log.reward, weights)


def direct_method(
    target: Float[Array, "rows arms"], predicted: Float[Array, "rows arms"]
) -> OffPolicyEstimate:
    r"""The mean reward that a reward model predicts; as biased as the model is.

    .. math:: \frac1n \sum_i \sum_a \pi(a \mid x_i)\, \hat q(x_i, a)

    Args:
        target: the target policy's probabilities of all arms in each row.
        predicted: the model's rewards :math:`\hat q` of all arms in each row.

    Raises:
        ValueError: shapes disagree, or the concrete probabilities of a row are none.

    Example:
        >>> direct_method(jnp.array([[0.25, 0.75]]), jnp.array([[4.0, 8.0]])).value
        Array(7., dtype=float32)
    """
    terms = _expected(_checked_target(target), predicted)
    return _quotient(terms, jnp.ones_like(terms))


def doubly_robust(
    log: BanditLog,
    target: Float[Array, "rows arms"],
    predicted: Float[Array, "rows arms"],
) -> OffPolicyEstimate:
    r"""The direct method, corrected by weighting its errors; unbiased for any model.

    .. math:: \frac1n \sum_i \Big( \sum_a \pi(a \mid x_i)\, \hat q(x_i, a)
        + w_i \big(r_i - \hat q(x_i, a_i)\big) \Big)

    Args:
        log: the logged rows.
        target: the target policy's probabilities of all arms in each row.
        predicted: the model's rewards of all arms in each row. Unbiased if row i's
            predictions were made without row i's reward, as ``cross_fitted_rewards``
            does.

    Raises:
        ValueError: as :func:`ips`.

    Example:
        >>> log = BanditLog(jnp.array([1]), jnp.array([6.0]), jnp.array([0.5]))
        >>> target, predicted = jnp.array([[0.25, 0.75]]), jnp.array([[4.0, 8.0]])
        >>> doubly_robust(log, target, predicted).value  # 7 + 1.5 (6 - 8)
        Array(4., dtype=float32)

    Source: Dudik, Langford, Li, "Doubly Robust Policy Evaluation and Learning" (2011),
    arXiv 1103.4601.
    """
    log = checked_log(log)
    terms = doubly_robust_terms(log, target, predicted)
    return _quotient(terms, jnp.ones_like(terms))


def replay_value(result: ReplayResult) -> OffPolicyEstimate:
    """The estimate of :func:`jaxopt_suite.core.replay`: mean reward of the matches.

    NaN if no row matched. Its bootstrap interval takes the rows as independent, which
    they are for a policy that does not learn; for one that learns it is a rough guide.

    Example:
        >>> from jaxopt_suite.core import ReplayResult
        >>> result = ReplayResult((), jnp.array([0, 1, 2]), jnp.array([0.0, 3.0, 4.0]))
        >>> replay_value(result).value
        Array(2., dtype=float32)
    """
    rewards = jnp.diff(result.reward, prepend=0.0)
    return _quotient(rewards, jnp.diff(result.matches, prepend=0).astype(rewards.dtype))


def bootstrap_interval(
    key: PRNGKeyArray,
    estimate: OffPolicyEstimate,
    *,
    level: float | Float[Array, ""] = 0.95,
    num_resamples: int = 1000,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Percentile bootstrap: quantiles of the estimate over rows drawn again.

    Approximate, for one size of log, and optimistic where few rows carry all the
    weight; a ``confidence_sequence`` is neither.

    Args:
        key: a typed key.
        estimate: of any estimator here.
        level: probability in (0, 1) that the interval is to cover the value.
        num_resamples: how often the log is drawn again; static.

    Returns:
        The two ends of the interval.

    Raises:
        ValueError: ``level`` or ``num_resamples`` is out of its range.

    Example:
        >>> coins = jnp.arange(400.0) % 2
        >>> log = BanditLog(jnp.zeros(400, int), coins, jnp.ones(400))
        >>> estimate = ips(log, jnp.ones((400, 1)))
        >>> low, high = bootstrap_interval(jax.random.key(0), estimate)
        >>> bool(low < 0.46) and bool(low > 0.43) and bool(high > 0.54)
        True
    """
    checks.check_key("key", key)
    checks.check_interval("level", level, 0.0, 1.0, closed="()")
    checks.check_integer("num_resamples", num_resamples)
    rows = len(estimate.numerator)

    def resample(key):
        pick = jax.random.randint(key, (rows,), 0, rows)
        picked = _quotient(estimate.numerator[pick], estimate.denominator[pick])
        return picked.value

    values = jax.lax.map(resample, jax.random.split(key, num_resamples))
    low, high = jnp.quantile(values, 0.5 + jnp.array([-0.5, 0.5]) * level)
    return low, high


def checked_log(log: BanditLog) -> BanditLog:
    """The log as arrays, its concrete propensities checked."""
    checks.leading_size("log", log)
    checks.check_interval("log.propensity", log.propensity, 0.0, 1.0, closed="(]")
    reward = jnp.asarray(log.reward)
    if not jnp.issubdtype(reward.dtype, jnp.floating):
        reward = reward.astype(float)
    return BanditLog(jnp.asarray(log.arm), reward, jnp.asarray(log.propensity))


def _checked_target(target: Any) -> Array:
    checks.check_interval("target", target, 0.0, 1.0)
    target = jnp.asarray(target)
    if target.ndim != 2:
        raise ValueError(f"target must have shape (rows, arms), got {target.shape}")
    if checks.is_concrete(target):
        checks.check_interval("target.sum(axis=1)", target.sum(1), 1 - 1e-3, 1 + 1e-3)
    return target


def importance_weights(
    log: BanditLog, target: Float[Array, "rows arms"]
) -> Float[Array, " rows"]:
    r"""The weights :math:`w_i = \pi(a_i \mid x_i) / p_i` of a checked log."""
    target = _checked_target(target)
    if len(target) != len(log.arm):
        raise ValueError(
            f"target must have one row for each of {len(log.arm)} logged rows, got "
            f"{len(target)}"
        )
    checks.check_interval("log.arm", log.arm, 0, target.shape[1] - 1)
    return target[jnp.arange(len(target)), log.arm] / log.propensity


def _expected(target: Array, predicted: Any) -> Array:
    predicted = jnp.asarray(predicted)
    if predicted.shape != target.shape:
        raise ValueError(
            f"predicted must have the shape of target {target.shape}, got "
            f"{predicted.shape}"
        )
    return jnp.sum(target * predicted, axis=1)


def doubly_robust_terms(
    log: BanditLog,
    target: Float[Array, "rows arms"],
    predicted: Float[Array, "rows arms"],
) -> Float[Array, " rows"]:
    """The terms that :func:`doubly_robust` averages, of a checked log."""
    weights, predicted = importance_weights(log, target), jnp.asarray(predicted)
    expected = _expected(jnp.asarray(target), predicted)
    seen = predicted[jnp.arange(len(predicted)), log.arm]
    return expected + weights * (log.reward - seen)


def _quotient(numerator: Array, denominator: Array) -> OffPolicyEstimate:
    value = jnp.sum(numerator) / jnp.sum(denominator)
    return OffPolicyEstimate(value, numerator, denominator)
