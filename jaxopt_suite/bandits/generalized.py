"""Quasi-optimism for rewards that are yes or no, or counts: generalized linear models.

The mean reward is a known increasing function of ``<x, theta*>``. One online Newton
step per row keeps the same statistics as in the linear case, with each row weighted by
the variance that the model predicts for it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxopt_suite.bandits.eqol import eqol
from jaxopt_suite.bandits.linear import StateSchedule, learned
from jaxopt_suite.bandits.ridge import RidgeState, ridge_update
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy


class Link(NamedTuple):
    """A generalized linear model.

    Attributes:
        mean: the mean reward at a value of ``<x, theta*>``.
        slope: its derivative, which is also the variance of the reward.
    """

    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _logistic_slope(value: Array) -> Array:
    return jax.nn.sigmoid(value) * jax.nn.sigmoid(-value)


LINKS = {
    "logistic": Link(jax.nn.sigmoid, _logistic_slope),
    "poisson": Link(jnp.exp, jnp.exp),
}


def newton_update(
    state: RidgeState,
    x: Float[Array, " d"],
    r: Float[Array, ""] | float,
    *,
    link: str,
    limit: float | Array,
    arm: Array | int | None = None,
    mask: Array | bool = True,
) -> RidgeState:
    r"""Learns one row of a generalized linear model by an online Newton step.

    .. math:: V \leftarrow V + \mu'(\eta)\, x x^\top, \qquad
        \theta \leftarrow \theta + V^{-1} x\, (r - \mu(\eta)), \qquad
        \eta = \langle x, \theta \rangle

    with the new V on the right, and :math:`\eta` cut to ``[-limit, limit]`` in
    :math:`\mu` and :math:`\mu'`, so that no row has a weight of almost 0. It is one
    :func:`ridge_update` with that weight and the working response
    :math:`\langle x, \theta \rangle + (r - \mu) / \mu'`.

    Args:
        state: the statistics so far.
        x: features, or the context if disjoint.
        r: reward: 0 or 1 for ``"logistic"``, a count for ``"poisson"``.
        link: ``"logistic"`` or ``"poisson"``.
        limit: > 0, what the absolute ``<x, theta*>`` does not exceed; may be traced.
        arm: the block that learns; only and always for a disjoint state.
        mask: False changes nothing.

    Raises:
        ValueError: the link is unknown, ``limit`` is not > 0, or see
            :func:`ridge_update`.

    Example:
        >>> from jaxopt_suite.bandits.ridge import ridge_init
        >>> state = ridge_init(1)
        >>> newton_update(state, jnp.ones(1), 1.0, link="logistic", limit=1.0).theta
        Array([0.4], dtype=float32)
    """
    checks.check_choice("link", link, tuple(LINKS))
    checks.check_interval("limit", limit, 0.0, closed="()")
    dtype = state.theta.dtype
    x, r = jnp.asarray(x, dtype), jnp.asarray(r, dtype)
    value = jnp.sum(x * (state.theta if arm is None else state.theta[arm]))
    cut = jnp.clip(value, -jnp.asarray(limit, dtype), jnp.asarray(limit, dtype))
    weight = LINKS[link].slope(cut)
    response = value + (r - LINKS[link].mean(cut)) / weight
    # Not as weight=, which refuses a NaN where it is concrete.
    root = jnp.sqrt(weight)
    return ridge_update(state, root * x, root * response, arm=arm, mask=mask)


def generalized_eqol(
    d: int,
    link: str,
    *,
    lam: float | Array = 1.0,
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    feature_bound: float | Array = 1.0,
    conf: float | Array = 0.01,
    a: float | Array | str | None = None,
    cap: float | Array | None = None,
    c1: StateSchedule | None = None,
    c2: StateSchedule | None = None,
    layout: str = "shared",
    num_arms: int | None = None,
    horizon: float | Array | None = None,
) -> Policy:
    r"""EQOL for a generalized linear model: same index, statistics of Newton steps.

    .. math:: \langle x, \theta_t \rangle +
        \min\big(c_{1,t}\, w_t(x)^2,\ c_{2,t}\, w_t(x)\big), \qquad
        V_t = \lambda I + \sum_{s<t} \mu'(\eta_s)\, x_s x_s^\top

    on the scale of :math:`\langle x, \theta \rangle`, whose order is that of the means.
    The width counts in standard deviations of the reward, so ``noise=1`` is the model's
    own. The radius is that of the linear case: an approximation for many rows, without
    its guarantee.

    Args:
        d: width of the features, or of the context if disjoint.
        link: ``"logistic"``, rewards 0 or 1; ``"poisson"``, counts.
        lam: as for :func:`eqol`, like all that follow; ``feature_bound * bound`` is
            also the limit of :func:`newton_update`.
        noise: standard deviations of the reward, over those that the model says.
        bound: of the norm of the true parameter, > 0.
        feature_bound: of the norm of the features, > 0.
        conf: probability of failure.
        a: scale of the quadratic branch.
        cap: scale of the cap.
        c1: the quadratic branch.
        c2: the cap.
        layout: ``"shared"`` or ``"disjoint"``.
        num_arms: number of arms.
        horizon: a number of rounds to use in place of t + 1.

    Raises:
        ValueError: the link is unknown, ``bound`` is not > 0, or as :func:`eqol`.

    Example:
        >>> from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext
        >>> policy = generalized_eqol(2, "logistic", bound=2.0)
        >>> state = policy.init(jax.random.key(0))
        >>> context = LinearContext(jnp.eye(2))
        >>> decision = policy.select(state, context, jax.random.key(1))
        >>> state = policy.update(BanditFeedback(decision, reward=0.0), state)
        >>> int(policy.select(state, context, jax.random.key(2)).arm)
        1

    Source: Newton steps as in Zhang, Yang, Jin, Xiao, Zhou, "Online stochastic linear
    optimization under one-bit feedback" (2016), arXiv 1509.07728.
    """
    checks.check_choice("link", link, tuple(LINKS))
    checks.check_interval("bound", bound, 0.0, closed="()")
    policy = eqol(
        d,
        lam=lam,
        noise=noise,
        bound=bound,
        feature_bound=feature_bound,
        conf=conf,
        a=a,
        cap=cap,
        c1=c1,
        c2=c2,
        layout=layout,
        num_arms=num_arms,
        horizon=horizon,
    )
    limit = feature_bound * bound

    def learn(state, row):
        x, r, mask, arm = row
        arm = arm if layout == "disjoint" else None
        return newton_update(
            state, x, r, link=link, limit=limit, arm=arm, mask=mask
        ), None

    def update(feedback, state):
        decision = feedback.decision
        mask = learned(feedback)
        row = decision.x, jnp.asarray(feedback.reward), mask, decision.arm
        if mask.ndim:
            return jax.lax.scan(learn, state, row)[0]
        return learn(state, row)[0]

    return policy._replace(update=update)
