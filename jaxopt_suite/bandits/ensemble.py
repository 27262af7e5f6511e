"""Ensemble sampling: explore by following one of many perturbed estimates.

Member j is the ridge estimate of rewards to which noise of its own was added, with a
random start in place of zero. Its offset ``D^j`` from the unperturbed estimate has the
law of a draw of Thompson sampling, and costs ``O(d)`` a round to keep.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxopt_suite.bandits.lazy_triggers import feedback_rows
from jaxopt_suite.bandits.linear import check_context
from jaxopt_suite.bandits.members import (
    draw_member,
    follow_offset,
    member_noise,
)
from jaxopt_suite.bandits.ridge import (
    RidgeState,
    check_layout,
    ridge_init,
    ridge_update,
)
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy
from jaxopt_suite.problems.contextual import LinearDecision

Scale = float | Array | Callable[[RidgeState], Array]


class EnsembleState(NamedTuple):
    """State of :func:`ensemble_sampling` and :func:`ensemble_mixture`.

    Attributes:
        ridge: the statistics; ``ridge.theta`` is the estimate without perturbation.
        offsets: ``D^j`` at unit scale, (m, d), or (m, num_arms, p) if disjoint.
        scale: the perturbation scale v; member j is ``theta + v D^j``.
        noise_key: rewards of row s are perturbed with ``fold_in(noise_key, s)``.
    """

    ridge: RidgeState
    offsets: Float[Array, "members *blocks d"]
    scale: Float[Array, ""]
    noise_key: PRNGKeyArray


def ensemble_size(d: int, horizon: float, c: float = 1.0) -> int:
    r"""How many members lazy ensemble sampling wants.

    .. math:: \max(2, \lceil c\,(d \ln d + d \ln\ln \max(T, 16)) \rceil)

    Args:
        d: number of parameters, ``num_arms`` times the context's width if disjoint.
        horizon: T >= 1, the number of rounds.
        c: factor > 0.

    Raises:
        ValueError: ``d < 1``, ``horizon < 1`` or ``c <= 0``.

    Example:
        >>> [ensemble_size(d, 1e4) for d in (1, 5, 10, 50)]
        [3, 20, 46, 307]
    """
    checks.check_integer("d", d)
    checks.check_interval("horizon", horizon, 1.0)
    checks.check_interval("c", c, 0.0, closed="()")
    logs = math.log(d) + math.log(math.log(max(horizon, 16)))
    return max(2, math.ceil(c * d * logs))


def traced_ensemble_size(d: int, rounds: Int[Array, ""]) -> Int[Array, ""]:
    """:func:`ensemble_size` of a traced number of rounds; rounding may move it by 1."""
    rounds = jnp.maximum(rounds, 16).astype(jnp.result_type(float))
    size = jnp.ceil(d * (math.log(d) + jnp.log(jnp.log(rounds))))
    return jnp.maximum(2, size).astype(jnp.int32)


def ensemble_sampling(
    d: int,
    num_members: int,
    *,
    lam: float | Array = 1.0,
    scale: Scale = 1.0,
    symmetrized: bool = False,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Plays the best arm of a member drawn uniformly in each round.

    .. math:: \theta^j_t = V_t^{-1} \Big(b_t + W^j + \sum_{s<t} x_s Z^j_s\Big),
        \quad W^j \sim N(0, v^2 \lambda I),\ Z^j_s \sim N(0, v^2)

    kept as ``theta_t + v D^j`` by rank-one updates, ``O(m d + d^2)`` a round. Given the
    arms played, ``v D^j ~ N(0, v^2 V_t^-1)``. With as many members as rounds, each
    followed once, it is perturbed-history exploration.

    Args:
        d: width of the features, or of the context if disjoint.
        num_members: m.
        lam: regularization > 0; may be traced.
        scale: v > 0, a number (may be traced) or a function of the
            :class:`RidgeState`, such as a confidence radius. The noise's own scale is
            the practical choice.
        symmetrized: flip the member's offset by a fair sign in each round.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Returns:
        A policy with an :class:`EnsembleState`, whose decision has ``member``.

    Raises:
        ValueError: a size or a concrete number is out of its range, or see
            :func:`ridge_init`.

    Example:
        >>> state = ensemble_sampling(2, num_members=5).init(jax.random.key(0))
        >>> state.offsets.shape, state.ridge.theta
        ((5, 2), Array([0., 0.], dtype=float32))

    Source: Lu and Van Roy, "Ensemble sampling" (2017), arXiv 1705.07347; Janz, Litvak,
    Szepesvari, "Ensemble sampling for linear bandits: small ensembles suffice" (2024),
    arXiv 2311.08376.
    """

    def follow(state, context, key):
        member_key, sign_key = jax.random.split(key) if symmetrized else (key, None)
        member = draw_member(member_key, num_members)
        offset = state.scale * state.offsets[member]
        if sign_key is not None:
            offset = offset * jax.random.rademacher(sign_key, (), offset.dtype)
        return follow_offset(state.ridge, context, offset, member=member)

    return _ensemble_policy(d, num_members, follow, lam, scale, layout, num_arms)


def ensemble_mixture(
    d: int,
    num_members: int,
    *,
    lam: float | Array = 1.0,
    scale: Scale = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
) -> Policy:
    r"""Follows a random mixture of all members of an ensemble.

    .. math:: \arg\max_a \Big\langle x_a,\ \theta_t +
        v \sum_j \zeta_j D^j / \sqrt{m} \Big\rangle, \quad \zeta \sim N(0, I_m)

    with the members of :func:`ensemble_sampling` and a fresh ``zeta`` in each round, so
    that a few members give a continuum of estimates; ``O(m d + d^2)`` a round.

    Args:
        d: width of the features, or of the context if disjoint.
        num_members: m.
        lam: regularization > 0; may be traced.
        scale: v > 0, a number (may be traced) or a function of the
            :class:`RidgeState`.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        num_arms: number of arms; needed if disjoint.

    Returns:
        A policy with an :class:`EnsembleState`; its decision's ``member`` is -1.

    Raises:
        ValueError: as :func:`ensemble_sampling`.

    Example:
        >>> state = ensemble_mixture(2, num_members=5).init(jax.random.key(0))
        >>> state.offsets.shape
        (5, 2)

    Source: the sampling step of Li, Luo, Xu, Zhang, "Ensemble++: scalable exploration
    via ensemble" (2024), arXiv 2407.13195.
    """

    def follow(state, context, key):
        mix = jax.random.normal(key, (num_members,), state.offsets.dtype)
        mix = state.scale * mix / math.sqrt(num_members)
        offset = jnp.tensordot(mix, state.offsets, axes=1)
        return follow_offset(state.ridge, context, offset)

    return _ensemble_policy(d, num_members, follow, lam, scale, layout, num_arms)


def _ensemble_policy(
    d: int,
    num_members: int,
    follow: Callable[..., LinearDecision],
    lam: float | Array,
    scale: Scale,
    layout: str,
    num_arms: int | None,
) -> Policy:
    check_layout(d, lam, layout, num_arms)
    checks.check_integer("num_members", num_members)
    checks.check_interval("scale", scale, 0.0, closed="()")

    def scale_of(ridge):
        value = scale(ridge) if callable(scale) else scale
        return jnp.array(value, ridge.theta.dtype, copy=True)

    def init(key):
        member_key, noise_key = jax.random.split(key)
        ridge = ridge_init(d, lam=lam, layout=layout, num_arms=num_arms)
        members = jnp.arange(num_members)
        noise = member_noise(member_key, 0, members, ridge.theta)
        return EnsembleState(
            ridge, noise / jnp.sqrt(ridge.lam), scale_of(ridge), noise_key
        )

    def select(state, context, key):
        check_context(state.ridge, context)
        return follow(state, context, key)

    def learn(state, row):
        x, r, mask, arm = row
        key = jax.random.fold_in(state.noise_key, state.ridge.count)
        noise = jax.random.normal(key, (num_members,), x.dtype)
        block = ... if arm is None else arm
        V_inv, offsets = state.ridge.V_inv[block], state.offsets
        u = V_inv @ x
        mine = offsets if arm is None else offsets[:, arm]
        step = jnp.outer((noise - mine @ x) / (1 + jnp.maximum(x @ u, 0)), u)
        offsets = offsets + step if arm is None else offsets.at[:, arm].add(step)
        ridge = ridge_update(state.ridge, x, r, arm=arm, mask=mask)
        return state._replace(ridge=ridge, offsets=offsets), None

    def update(feedback, state):
        rows = feedback_rows(feedback, state.ridge)
        rewards = jnp.reshape(feedback.reward, -1)
        batch = (rows.x, rewards, rows.mask, rows.arm)
        if jnp.ndim(feedback.mask):
            state, _ = jax.lax.scan(learn, state, batch)
        else:
            state, _ = learn(state, jax.tree.map(lambda x: x[0], batch))
        return state._replace(scale=scale_of(state.ridge))

    return Policy(init, select, update)
