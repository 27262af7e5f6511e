"""Optimistic linear policies: a bonus for what is not known yet, or none at all."""

import jax.numpy as jnp
from jaxtyping import Array

from jaxopt_suite.bandits.linear import StateSchedule, index_policy, value_at
from jaxopt_suite.bandits.ridge import check_radius, ridge_radius
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy


def greedy(
    d: int,
    *,
    lam: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    """Plays the arm of the largest prediction ``<x, theta_t>``; explores nothing.

    Args:
        d: width of the features, or of the context if disjoint.
        lam: regularization > 0; may be traced.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Raises:
        ValueError: see :func:`index_policy`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> run = interact(greedy(2), linear_env(2, 3, noise=0.1), jax.random.key(0), 9)
        >>> int(run.state.count)
        9
    """

    def index(state, predictions, widths):
        del state
        return predictions, jnp.zeros_like(widths)

    return index_policy(d, index, lam=lam, layout=layout, num_arms=num_arms)


def linucb(
    d: int,
    *,
    alpha: StateSchedule,
    lam: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Adds the same multiple of the width to every arm's prediction.

    .. math:: \langle x, \theta_t \rangle + \alpha\, w_t(x), \qquad
        w_t(x) = \sqrt{x^\top V_t^{-1} x}

    Args:
        d: width of the features, or of the context if disjoint.
        alpha: multiplier >= 0; may be traced, or a function of the
            :class:`RidgeState`.
        lam: regularization > 0; may be traced.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Raises:
        ValueError: a concrete ``alpha`` is below 0, or see :func:`index_policy`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy, world = linucb(2, alpha=0.5), linear_env(2, 3, noise=0.1)
        >>> int(interact(policy, world, jax.random.key(0), 9).state.count)
        9

    Source: Li, Chu, Langford, Schapire, "A contextual-bandit approach to personalized
    news article recommendation" (2010), arXiv 1003.0146.
    """
    checks.check_interval("alpha", alpha, 0.0, closed="[)")

    def index(state, predictions, widths):
        bonuses = value_at(alpha, state) * widths
        return predictions + bonuses, bonuses

    return index_policy(d, index, lam=lam, layout=layout, num_arms=num_arms)


def oful(
    d: int,
    *,
    lam: float | Array = 1.0,
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    conf: float | Array = 0.01,
    multiplier: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Optimism in the face of uncertainty: :func:`linucb` with the proven radius.

    .. math:: \langle x, \theta_t \rangle + m\,\beta_t\, w_t(x)

    with :math:`\beta_t` of :func:`ridge_radius`, so that with ``multiplier=1`` all
    indices are upper bounds in all rounds, with probability ``1 - conf``.

    Args:
        d: width of the features, or of the context if disjoint.
        lam: regularization > 0; may be traced, like all numbers that follow.
        noise: sub-Gaussian scale of the reward's noise, >= 0.
        bound: of the norm of the true parameter, >= 0.
        conf: probability of failure, in (0, 1).
        multiplier: m >= 0; below 1 the guarantee is lost.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Raises:
        ValueError: a number is out of its range, or see :func:`index_policy`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy, world = oful(2, noise=0.1), linear_env(2, 3, noise=0.1)
        >>> run = interact(policy, world, jax.random.key(0), 100)
        >>> bool(run.record.regret[-1] < 20)
        True

    Source: Abbasi-Yadkori, Pal, Szepesvari, "Improved algorithms for linear stochastic
    bandits" (2011).
    """
    check_radius(noise, bound, conf)
    checks.check_interval("multiplier", multiplier, 0.0, closed="[)")

    def width(state):
        radius = ridge_radius(state, noise=noise, bound=bound, conf=conf)
        return jnp.asarray(multiplier, radius.dtype) * radius

    return linucb(d, alpha=width, lam=lam, layout=layout, num_arms=num_arms)


def lin_imed(
    d: int,
    *,
    lam: float | Array = 1.0,
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    conf: float | Array = 0.01,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Indexed minimum empirical divergence (LinIMED-1): plays the least index.

    .. math:: I_a = \begin{cases} -\log g_a & a = a^\star \\
        (\langle x_{a^\star} - x_a, \theta_t \rangle)^2 / g_a - \log g_a & \text{else}
        \end{cases}, \qquad g_a = \beta_t^2\, w_t(x_a)^2

    where :math:`a^\star` has the largest prediction and :math:`\beta_t` is that of
    :func:`ridge_radius`. The decision's score is the negative index, its bonus
    :math:`\log g_a`.

    Args:
        d: width of the features, or of the context if disjoint.
        lam: regularization > 0; may be traced, like all numbers that follow.
        noise: sub-Gaussian scale of the reward's noise, >= 0.
        bound: of the norm of the true parameter, >= 0.
        conf: probability of failure, in (0, 1).
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Raises:
        ValueError: a number is out of its range, or see :func:`index_policy`.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy, world = lin_imed(2, noise=0.1), linear_env(2, 3, noise=0.1)
        >>> run = interact(policy, world, jax.random.key(0), 100)
        >>> bool(run.record.regret[-1] < 20)
        True

    Source: Bian and Tan, "Indexed minimum empirical divergence-based algorithms for
    linear bandits" (2024), arXiv 2405.15200.
    """
    check_radius(noise, bound, conf)

    def index(state, predictions, widths):
        limits = jnp.finfo(widths.dtype)
        radius = ridge_radius(state, noise=noise, bound=bound, conf=conf)
        # A floor, or an arm without features would have the index 0 / 0.
        spread = jnp.maximum((radius * widths) ** 2, limits.tiny)
        gaps = jnp.max(predictions) - predictions
        best = jnp.arange(len(gaps)) == jnp.argmax(predictions)
        bonuses = jnp.log(spread)
        scores = bonuses - jnp.where(best, 0, gaps**2 / spread)
        # A playable arm has to beat those that are not, which stand at -inf.
        return jnp.maximum(scores, limits.min), bonuses

    return index_policy(d, index, lam=lam, layout=layout, num_arms=num_arms)
