"""Thompson sampling for linear bandits: follow a draw of the parameter.

:func:`lin_ts` draws from the posterior's law by a factor of the inverse Gram matrix;
:func:`lin_phe` draws the same law by perturbing every reward in its history anew.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxopt_suite.bandits.linear import (
    StateSchedule,
    check_context,
    choose,
    learned,
    ridge_learn,
    ring_places,
    value_at,
)
from jaxopt_suite.bandits.ridge import (
    RidgeState,
    check_layout,
    check_radius,
    ridge_init,
    ridge_predictions,
    ridge_radius,
    ridge_widths,
)
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy
from jaxopt_suite.problems.contextual import (
    BanditFeedback,
    LinearContext,
    LinearDecision,
)


class ThompsonState(NamedTuple):
    """State of :func:`lin_ts`.

    Attributes:
        ridge: the statistics.
        factor: C with ``C C^T = V^-1``; None in the disjoint layout, which needs none.
    """

    ridge: RidgeState
    factor: Float[Array, "d d"] | None


class PerturbedHistoryState(NamedTuple):
    """State of :func:`lin_phe`.

    Attributes:
        ridge: the statistics.
        rows: features of the last ``horizon`` rows learned, zero where none is yet.
        arms: their arms; None in the shared layout.
    """

    ridge: RidgeState
    rows: Float[Array, "horizon d"]
    arms: Int[Array, " horizon"] | None


def lin_ts(
    d: int,
    *,
    scale: StateSchedule | None = None,
    lam: float | Array = 1.0,
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    conf: float | Array = 0.01,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Linear Thompson sampling.

    .. math:: \arg\max_a \langle x_a, \tilde\theta \rangle, \qquad
        \tilde\theta \sim N(\theta_t,\ s_t^2\, V_t^{-1})

    A factor C of the inverse Gram matrix is kept by rank-one downdates, so that a round
    costs :math:`O(d^2)` and no Cholesky factor. In the disjoint layout blocks are
    independent, and the score of each arm is drawn directly.

    Args:
        d: width of the features, or of the context if disjoint.
        scale: s >= 0, a number (may be traced) or a function of the
            :class:`RidgeState`; None is the radius of :func:`ridge_radius`, which
            theory asks for. The noise's own scale is the practical choice.
        lam: regularization > 0; may be traced, like all numbers that follow.
        noise: sub-Gaussian scale of the reward's noise, >= 0; read by ``scale=None``,
            like ``bound`` and ``conf``.
        bound: of the norm of the true parameter, >= 0.
        conf: probability of failure, in (0, 1).
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Returns:
        A policy with a :class:`ThompsonState`; the decision's bonus is what the draw
        adds to the prediction.

    Raises:
        ValueError: a number is out of its range, or see :func:`index_policy`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy, world = lin_ts(2, scale=0.1), linear_env(2, 3, noise=0.1)
        >>> run = interact(policy, world, jax.random.key(0), 100)
        >>> bool(run.record.regret[-1] < 20)
        True

    Source: Agrawal and Goyal, "Thompson sampling for contextual bandits with linear
    payoffs" (2013), arXiv 1209.3352.
    """
    check_layout(d, lam, layout, num_arms)
    check_radius(noise, bound, conf)
    checks.check_interval("scale", scale, 0.0, closed="[)")

    def scale_at(state):
        if scale is None:
            return ridge_radius(state, noise=noise, bound=bound, conf=conf)
        return value_at(scale, state)

    def init(key):
        del key
        ridge = ridge_init(d, lam=lam, layout=layout, num_arms=num_arms)
        factor = None if layout == "disjoint" else jnp.sqrt(ridge.V_inv)
        return ThompsonState(ridge, factor)

    def select(state, context, key):
        ridge = state.ridge
        check_context(ridge, context)
        if state.factor is None:
            widths = ridge_widths(ridge, context.features)
            normal = jax.random.normal(key, widths.shape, widths.dtype)
            return _follow(ridge, context, scale_at(ridge) * widths * normal)
        normal = jax.random.normal(key, (d,), ridge.theta.dtype)
        offset = scale_at(ridge) * jnp.matmul(state.factor, normal, precision="highest")
        shift = ridge_predictions(ridge._replace(theta=offset), context.features)
        return _follow(ridge, context, shift)

    def update(feedback, state):
        factor = state.factor
        if factor is not None:
            rows = _learned_rows(state.ridge, feedback)
            if rows.ndim == 1:
                factor = downdate_factor(factor, rows)
            else:
                factor, _ = jax.lax.scan(
                    lambda factor, x: (downdate_factor(factor, x), None), factor, rows
                )
        return ThompsonState(ridge_learn(state.ridge, feedback), factor)

    return Policy(init, select, update)


def downdate_factor(
    factor: Float[Array, "d d"], x: Float[Array, " d"]
) -> Float[Array, "d d"]:
    r"""A factor of ``(V + x x^T)^-1`` from a factor C of ``V^-1``, in ``O(d^2)``.

    .. math:: C - k\, (C w)\, w^\top, \qquad w = C^\top x, \quad
        k = \frac{1 - (1 + |w|^2)^{-1/2}}{|w|^2}

    Args:
        factor: C with ``C C^T = V^-1``.
        x: the new row.

    Example:
        >>> downdate_factor(jnp.eye(1), jnp.array([np.sqrt(3.0)]))
        Array([[0.5]], dtype=float32)
    """
    w = jnp.matmul(x, factor, precision="highest")
    root = jnp.sqrt(1 + jnp.sum(w * w))
    # The same k, without the difference of almost equal numbers at a small w.
    k = 1 / (root * (1 + root))
    return factor - jnp.outer(jnp.matmul(factor, w, precision="highest"), k * w)


def lin_phe(
    d: int,
    *,
    perturb: float | Array,
    horizon: int,
    lam: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Perturbed-history exploration: fits rewards with fresh noise in every round.

    .. math:: \arg\max_a \Big\langle x_a,\ V_t^{-1}
        \Big(b_t + W + \sum_{s<t} x_s Z_s\Big) \Big\rangle, \qquad
        W \sim N(0, \lambda v^2 I),\ Z_s \sim N(0, v^2)

    ``O(horizon d)`` a round. Given the rows, the draw has the law of :func:`lin_ts`
    with ``scale=perturb``.

    Args:
        d: width of the features, or of the context if disjoint.
        perturb: v > 0, the scale of the noise; may be traced.
        horizon: number of rows kept; later ones take the places of the oldest, whose
            rewards are then no longer perturbed.
        lam: regularization > 0; may be traced.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Returns:
        A policy with a :class:`PerturbedHistoryState`; the decision's bonus is what the
        noise adds to the prediction.

    Raises:
        ValueError: ``horizon`` is not an integer >= 1, ``perturb`` is not > 0, or see
            :func:`index_policy`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy = lin_phe(2, perturb=0.1, horizon=100)
        >>> world = linear_env(2, 3, noise=0.1)
        >>> run = interact(policy, world, jax.random.key(0), 100)
        >>> bool(run.record.regret[-1] < 20)
        True

    Source: Kveton, Szepesvari, Ghavamzadeh, Boutilier, "Perturbed-history exploration
    in stochastic linear bandits" (2019), arXiv 1903.09132.
    """
    check_layout(d, lam, layout, num_arms)
    checks.check_integer("horizon", horizon)
    checks.check_interval("perturb", perturb, 0.0, closed="()")

    def init(key):
        del key
        ridge = ridge_init(d, lam=lam, layout=layout, num_arms=num_arms)
        arms = jnp.zeros(horizon, jnp.int32) if layout == "disjoint" else None
        return PerturbedHistoryState(
            ridge, jnp.zeros((horizon, d), ridge.theta.dtype), arms
        )

    def select(state, context, key):
        ridge = state.ridge
        check_context(ridge, context)
        start_key, row_key = jax.random.split(key)
        dtype = ridge.theta.dtype
        start = jax.random.normal(start_key, ridge.theta.shape, dtype)
        noise = jax.random.normal(row_key, (horizon,), dtype)
        total = jnp.sqrt(ridge.lam) * start
        if state.arms is None:
            total += jnp.matmul(noise, state.rows, precision="highest")
        else:
            total = total.at[state.arms].add(noise[:, None] * state.rows)
        offset = jnp.einsum("...pq,...q->...p", ridge.V_inv, total, precision="highest")
        offset = jnp.asarray(perturb, dtype) * offset
        shift = ridge_predictions(ridge._replace(theta=offset), context.features)
        return _follow(ridge, context, shift)

    def update(feedback, state):
        rows = _learned_rows(state.ridge, feedback)
        keep = learned(feedback).reshape(-1)
        places = ring_places(state.ridge.count, keep, horizon)
        kept = state.rows.at[places].set(rows.reshape(-1, d), mode="drop")
        arms = state.arms
        if arms is not None:
            arms = arms.at[places].set(feedback.decision.arm.reshape(-1), mode="drop")
        return PerturbedHistoryState(ridge_learn(state.ridge, feedback), kept, arms)

    return Policy(init, select, update)


def _follow(
    ridge: RidgeState, context: LinearContext, shift: Float[Array, " num_arms"]
) -> LinearDecision:
    return choose(context, ridge_predictions(ridge, context.features) + shift, shift)


def _learned_rows(ridge: RidgeState, feedback: BanditFeedback) -> Float[Array, "..."]:
    """The features of the rows that are learned, zero for the others."""
    x = jnp.asarray(feedback.decision.x, ridge.theta.dtype)
    return jnp.where(learned(feedback)[..., None], x, 0)
