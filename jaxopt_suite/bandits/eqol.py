"""Quasi-optimistic linear bandits: a quadratic bonus, capped by an optimistic one.

An index need not be an upper bound in every direction. The quadratic bonus shrinks
faster than a confidence width as an arm becomes known, which cuts exploration that pays
nothing; the cap keeps the guarantees of optimism.
"""

import warnings
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxopt_suite.bandits.linear import StateSchedule, index_policy, value_at
from jaxopt_suite.bandits.ridge import (
    RidgeState,
    check_layout,
    check_radius,
    ridge_radius,
)
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy


def of_round(
    schedule: Callable[[Int[Array, ""]], float | Array],
) -> Callable[[RidgeState], Array]:
    """An Optax schedule as a schedule of the statistics: ``schedule(state.count)``.

    Args:
        schedule: a function of a count, here the number of rows learned.

    Raises:
        ValueError: it is no function.

    Example:
        >>> policy = eqol(2, c1=of_round(optax.linear_schedule(1.0, 2.0, 100)), c2=0.5)
    """
    if not callable(schedule):
        raise ValueError(f"schedule must be a function of a count, got {schedule!r}")
    return lambda state: jnp.asarray(schedule(state.count))


def capped_bonus(
    widths: Float[Array, " num_arms"],
    c1: Float[Array, ""] | float,
    c2: Float[Array, ""] | float,
) -> Float[Array, " num_arms"]:
    """``min(c1 w^2, c2 w)``; 0 where w is 0, also for infinite ``c1`` or ``c2``.

    Args:
        widths: w >= 0.
        c1: factor of the quadratic branch, in [0, inf].
        c2: factor of the linear one, in [0, inf].

    Example:
        >>> capped_bonus(jnp.array([0.0, 1.0, 4.0]), 1.0, 2.0)
        Array([0., 1., 8.], dtype=float32)
    """
    # Not the square, which may underflow to a 0 that an infinite c1 makes NaN.
    return jnp.where(widths == 0, 0, widths * jnp.minimum(c1 * widths, c2))


def balanced(
    count: Int[Array, ""] | float,
    d: int,
    *,
    lam: float | Array = 1.0,
    feature_bound: float | Array = 1.0,
) -> Float[Array, ""]:
    r"""The scale ``a`` that makes both terms of the regret bound of one order.

    .. math:: a = \frac{1}{2 \sqrt{\ell}}, \qquad
        \ell = \log\Big(1 + \frac{n L^2}{d \lambda}\Big)

    Args:
        count: n >= 1, a number of rounds.
        d: number of parameters.
        lam: regularization.
        feature_bound: L.

    Example:
        >>> float(balanced(1.0, 1, lam=1.0 / (np.e - 1)))
        0.5
    """
    growth = jnp.log1p(count * jnp.square(feature_bound) / (d * lam))
    return 0.5 / jnp.sqrt(growth)


def eqol(
    d: int,
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
    r"""Quasi-optimistic linear contextual bandit.

    .. math:: \langle x, \theta_t \rangle +
        \min\big(c_{1,t}\, w_t(x)^2,\ c_{2,t}\, w_t(x)\big), \qquad
        w_t(x) = \sqrt{x^\top V_t^{-1} x}

    By default, which needs to know no gap,

    .. math:: c_{1,t} = a\, \beta_t \sqrt{(t + 1) / d}, \qquad
        c_{2,t} = \mathrm{cap}\, \beta_t

    with t the number of rows learned, :math:`\beta_t` of :func:`ridge_radius` and d the
    number of parameters (``num_arms`` times the context's width if disjoint). With
    ``cap >= 1`` the regret is :math:`\tilde O(d \sqrt T)` and, where the best arm leads
    by a gap, :math:`\tilde O(d^2 / \Delta)`. With ``c1=inf`` it is :func:`oful`, with
    ``c1=0`` it is :func:`greedy`, with ``c2=inf`` the bonus is not capped.

    Args:
        d: width of the features, or of the context if disjoint.
        lam: regularization > 0; may be traced, like all numbers that follow. The
            guarantees want it at least ``feature_bound**2``.
        noise: sub-Gaussian scale R of the reward's noise, >= 0.
        bound: S >= 0, of the norm of the true parameter.
        feature_bound: L > 0, of the norm of the features; read by ``a="balanced"``.
        conf: probability of failure of the guarantees, in (0, 1).
        a: scale >= 0 of the quadratic branch; None is 0.1; ``"balanced"`` is that of
            :func:`balanced`.
        cap: scale > 0 of the cap; None is 1. Below 1 the guarantees are lost.
        c1: the quadratic branch in place of ``a``: a number >= 0, inf included, or a
            function of the :class:`RidgeState`, see :func:`of_round`.
        c2: the cap in place of ``cap``, likewise.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.
        horizon: a number of rounds >= 1 to use in place of t + 1.

    Raises:
        ValueError: a number is out of its range, both of ``a`` and ``c1`` or of ``cap``
            and ``c2`` are given, ``a`` is another string, or see :func:`index_policy`.

    Warns:
        UserWarning: ``cap`` is below 1.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy, world = eqol(2, noise=0.1), linear_env(2, 3, noise=0.1)
        >>> run = interact(policy, world, jax.random.key(0), 100)
        >>> bool(run.record.regret[-1] < 20)
        True

    Source: "EQOL" (2026), in reconstruction; the schedules follow Lee and Oh, "Minimax
    optimal reinforcement learning with quasi-optimism" (2025), arXiv 2503.00810.
    """
    check_layout(d, lam, layout, num_arms)
    check_radius(noise, bound, conf)
    checks.check_interval("feature_bound", feature_bound, 0.0, closed="()")
    checks.check_interval("horizon", horizon, 1.0, closed="[)")
    _check_branch("a", a, "c1", c1)
    _check_branch("cap", cap, "c2", c2)
    if isinstance(a, str):
        checks.check_choice("a", a, ("balanced",))
    else:
        checks.check_interval("a", a, 0.0, closed="[)")
    checks.check_interval("cap", cap, 0.0, closed="()")
    if checks.is_concrete(cap) and np.any(np.asarray(cap) < 1):
        warnings.warn(
            f"cap = {cap} is below 1: the regret guarantees are lost", stacklevel=2
        )
    num_parameters = d * (num_arms or 1) if layout == "disjoint" else d

    def quadratic(state, beta):
        if c1 is not None:
            return value_at(c1, state)
        rounds = state.count + 1 if horizon is None else horizon
        rounds = jnp.asarray(rounds, beta.dtype)
        scale = 0.1 if a is None else a
        if isinstance(scale, str):
            scale = balanced(
                rounds, num_parameters, lam=state.lam, feature_bound=feature_bound
            )
        growth = jnp.sqrt(rounds / num_parameters)
        return jnp.asarray(scale, beta.dtype) * beta * growth

    def linear(state, beta):
        if c2 is not None:
            return value_at(c2, state)
        return jnp.asarray(1.0 if cap is None else cap, beta.dtype) * beta

    def index(state, predictions, widths):
        beta = ridge_radius(state, noise=noise, bound=bound, conf=conf)
        bonuses = capped_bonus(widths, quadratic(state, beta), linear(state, beta))
        return predictions + bonuses, bonuses

    return index_policy(d, index, lam=lam, layout=layout, num_arms=num_arms)


def _check_branch(name: str, scale: object, other: str, factor: object) -> None:
    if scale is not None and factor is not None:
        raise ValueError(
            f"{name} and {other} are two ways to say the same: give one, got "
            f"{name}={scale!r} and {other}={factor!r}"
        )
    checks.check_interval(other, factor, 0.0)
