"""Lazy ensemble sampling: redraw the ensemble only when the Gram matrix has grown.

Between two refreshes the perturbations stand still, so only ``O(d log T)`` draws of an
ensemble must be good ones, and an ensemble of order ``d log d`` members is enough.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxopt_suite.bandits.ensemble import (
    EnsembleState,
    ensemble_size,
    traced_ensemble_size,
)
from jaxopt_suite.bandits.lazy_triggers import (
    check_trigger,
    cholesky_of_inverse,
    drift_add,
    drift_init,
    drift_rows,
    feedback_rows,
    has_grown,
)
from jaxopt_suite.bandits.linear import check_context, ridge_learn
from jaxopt_suite.bandits.members import (
    apply_blocks,
    draw_member,
    follow_offset,
    local_members,
    member_noise,
    perturbed_rows,
    take_member,
)
from jaxopt_suite.bandits.ridge import (
    RidgeState,
    check_layout,
    check_radius,
    ridge_init,
    ridge_predictions,
    ridge_radius,
)
from jaxopt_suite.core import checks
from jaxopt_suite.core.gating import gated_cond
from jaxopt_suite.core.types import Policy
from jaxopt_suite.problems.contextual import BanditFeedback

# Rounds that an ensemble without a known horizon has room for.
_FOREVER = 1e18


class LazyEnsembleState(NamedTuple):
    """State of :func:`lazy_ensemble_sampling`; "then" is at the last refresh.

    Attributes:
        ridge: the statistics.
        offsets: ``D^j``, its scale included, (m, d), or (m, num_arms, p) if disjoint;
            None for implicit members.
        sums: ``S^j``, the perturbations so far at unit scale, shaped as ``offsets``;
            None unless they accumulate.
        factor: lower ``C`` with ``C C^T = V^-1`` then.
        drift: ``C^T V C`` with the matrix of now; None for the trigger ``"logdet"``.
        member_key: member j of epoch e comes from ``fold_in(fold_in(., e), j)``.
        noise_key: rewards of row s are perturbed with ``fold_in(., s)``.
        scale: v then.
        ref_logdet: the log-determinant then.
        theta_ref: the estimate then; None unless it is what members start from.
        epoch: refreshes so far.
        active: members that may be drawn.
        refreshed: whether the last update refreshed.
    """

    ridge: RidgeState
    offsets: Float[Array, "members *blocks d"] | None
    sums: Float[Array, "members *blocks d"] | None
    factor: Float[Array, "*blocks d d"]
    drift: Float[Array, "*blocks d d"] | None
    member_key: PRNGKeyArray
    noise_key: PRNGKeyArray
    scale: Float[Array, ""]
    ref_logdet: Float[Array, ""]
    theta_ref: Float[Array, "*blocks d"] | None
    epoch: Int[Array, ""]
    active: Int[Array, ""]
    refreshed: Bool[Array, ""]


class _Epoch(NamedTuple):
    """The fields of a :class:`LazyEnsembleState` that only a refresh changes."""

    offsets: Array | None
    factor: Array
    drift: Array | None
    scale: Array
    ref_logdet: Array
    theta_ref: Array | None
    epoch: Array
    active: Array


def lazy_ensemble_sampling(
    d: int,
    num_members: int | None = None,
    *,
    horizon: int | None = None,
    lam: float | Array = 1.0,
    scale: str | float | Array = "theory",
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    conf: float | Array = 0.01,
    growth: float | Array = 1.0,
    trigger: str = "logdet",
    within_epoch: str = "mean",
    redraw: str = "fresh",
    members: str = "explicit",
    num_arms: int | None = None,
    layout: str = "shared",
    gate_axis: str | tuple[str, ...] | None = "lanes",
    member_axis: str | None = None,
    apply_fn: Callable[[Array], Array] | None = None,
    learn: Callable[[RidgeState, BanditFeedback], RidgeState] = ridge_learn,
) -> Policy:
    r"""Follows a member of an ensemble that is redrawn only as its statistics grow.

    Each round plays ``argmax_a <x_a, theta_t + D^j>``, j uniform over the active ones.
    After an update that leaves the Gram matrix V much larger than at the last refresh
    (``trigger``, ``growth``), the ensemble is drawn anew:

    .. math:: D^j = v\, C \xi_j, \quad C C^\top = V^{-1}, \quad \xi_j \sim N(0, I)

    So ``D^j`` keeps the law of a posterior draw up to a factor in [1, 1 + growth] of
    its covariance. Refreshes in T rounds: at most ``d log(1 + T L^2 / (d lam)) /
    log(1 + growth)`` with features of norm L.

    Args:
        d: width of the features, or of the context if disjoint.
        num_members: m; None: :func:`ensemble_size` of the horizon. Without a horizon
            either, as many as 1e18 rounds need are allocated, of which as many as
            the rows so far need are active; the number is reviewed at a refresh.
        horizon: number of rounds, where known; only sizes the ensemble.
        lam: regularization > 0; may be traced.
        scale: v. ``"theory"``: the confidence radius (:func:`ridge_radius`) at the
            refresh, for arbitrary arms and for few alike; ``"finite"``:
            ``noise sqrt(2 log(2 num_arms (epoch + 1)^2 / conf)) + sqrt(lam) bound``,
            a heuristic; or a number > 0, of which ``noise`` is the practical choice.
        noise: the sub-Gaussian scale of the rewards' noise.
        bound: a bound on the norm of the true parameter.
        conf: the probability of failure, in (0, 1).
        growth: by which factor, less 1, V may grow, >= 0. 0 refreshes in each round.
        trigger: how growth is measured: ``"logdet"``, ``"trace"`` or ``"spectral"``,
            from eager to lazy (:mod:`jaxopt_suite.bandits.lazy_triggers`).
        within_epoch: ``"mean"``: the estimate goes on learning; ``"frozen"``: it is
            the one of the last refresh, so that the policy stands still.
        redraw: ``"fresh"``, as above; ``"accumulate"``: the members of
            :func:`ensemble_sampling`, looked at only at a refresh.
        members: ``"explicit"``: stored, ``O(m d)``; ``"implicit"``: recomputed from
            the key when followed, ``O(d^2)`` of memory and time whatever m is.
        num_arms: number of arms; needed if disjoint or for ``scale="finite"``.
        layout: ``"shared"`` or ``"disjoint"``, see :func:`index_policy`.
        gate_axis: the vmapped axis over which refreshes stay rare, see
            :func:`jaxopt_suite.core.gated_cond`.
        member_axis: under ``jax.shard_map``, the mesh axis over which explicit members
            are split; its size must divide their number.
        apply_fn: maps a context's features to those of the ensemble, of width d: the
            body of a network, of which the members are the last layers. After the body
            has been trained, give the state statistics of the new features as
            ``ridge`` and -inf as ``ref_logdet``: the next update redraws the members.
        learn: ``learn(ridge, feedback) -> ridge``; another one than
            :func:`ridge_learn`, such as a Newton step of a generalized linear model,
            needs the trigger ``"logdet"`` and fresh members.

    Returns:
        A policy with a :class:`LazyEnsembleState`, whose decision has ``member``.

    Raises:
        ValueError: a size or a concrete number is out of its range, a name is unknown,
            ``num_arms`` is missing, ``members="implicit"`` is asked to accumulate or to
            be split, or ``learn`` meets what it cannot go with.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> policy = lazy_ensemble_sampling(2, horizon=500, scale=0.1)
        >>> env = linear_env(2, 4, noise=0.1)
        >>> result = interact(policy, env, jax.random.key(0), 500)
        >>> int(result.state.ridge.count), int(result.state.epoch) < 20
        (500, True)

    Source: a reconstruction of lazy ensemble sampling from its abstract (2026), on
    Janz, Litvak, Szepesvari (2024), arXiv 2311.08376, and the rare switches of
    Abbasi-Yadkori, Pal, Szepesvari (2011).
    """
    check_layout(d, lam, layout, num_arms)
    check_radius(noise, bound, conf)
    check_trigger(growth, trigger)
    _check_scale(scale, num_arms)
    checks.check_choice("within_epoch", within_epoch, ("mean", "frozen"))
    checks.check_choice("redraw", redraw, ("fresh", "accumulate"))
    checks.check_choice("members", members, ("explicit", "implicit"))
    explicit, fresh = members == "explicit", redraw == "fresh"
    if not explicit and not (fresh and member_axis is None):
        raise ValueError(
            "members='implicit' are not stored: they need redraw='fresh' and "
            f"member_axis=None, got redraw={redraw!r} and member_axis={member_axis!r}"
        )
    if learn is not ridge_learn and not (fresh and trigger == "logdet"):
        raise ValueError(
            "learn may weight its rows: it needs redraw='fresh' and trigger='logdet', "
            f"got redraw={redraw!r} and trigger={trigger!r}"
        )
    width = d * (num_arms or 1) if layout == "disjoint" else d
    anytime = num_members is None and horizon is None
    if num_members is None:
        num_members = ensemble_size(width, _FOREVER if horizon is None else horizon)
    elif horizon is not None:
        checks.check_interval("horizon", horizon, 1.0)
    checks.check_integer("num_members", num_members)

    def scale_of(ridge, epoch):
        if scale == "theory":
            return ridge_radius(ridge, noise=noise, bound=bound, conf=conf)
        if scale == "finite":
            return _finite_scale(ridge, epoch, num_arms, noise, bound, conf)
        return jnp.array(scale, ridge.theta.dtype, copy=True)

    def active_of(count):
        if not anytime:
            return jnp.array(num_members, jnp.int32)
        return jnp.minimum(traced_ensemble_size(width, count), num_members)

    def begin(ridge, epoch, factor, unit_offsets):
        """All that belongs to the epoch which starts with these statistics."""
        v = scale_of(ridge, epoch)
        return _Epoch(
            offsets=None if unit_offsets is None else v * unit_offsets,
            factor=factor,
            drift=drift_init(trigger, ridge),
            scale=v,
            ref_logdet=jnp.copy(ridge.logdet),
            theta_ref=jnp.copy(ridge.theta) if within_epoch == "frozen" else None,
            epoch=epoch,
            active=active_of(ridge.count),
        )

    def draw(key, epoch, ridge):
        mine = local_members(num_members, member_axis)
        return member_noise(key, epoch, mine, ridge.theta)

    def init(key):
        member_key, noise_key = jax.random.split(key)
        ridge = ridge_init(d, lam=lam, layout=layout, num_arms=num_arms)
        root = jnp.sqrt(ridge.lam)
        epoch, factor = jnp.zeros((), jnp.int32), ridge.V_inv * root
        offsets = draw(member_key, epoch, ridge) / root if explicit else None
        return LazyEnsembleState(
            ridge=ridge,
            sums=None if fresh or offsets is None else ridge.lam * offsets,
            member_key=member_key,
            noise_key=noise_key,
            refreshed=jnp.zeros((), bool),
            **begin(ridge, epoch, factor, offsets)._asdict(),
        )

    def select(state, context, key):
        if apply_fn is not None:
            context = context._replace(features=apply_fn(context.features))
        check_context(state.ridge, context)
        member = draw_member(key, state.active)
        if state.offsets is None:
            offset = _implicit_offsets(state, member[None])[0]
        else:
            offset = take_member(state.offsets, member, member_axis)
        return follow_offset(_base(state), context, offset, member=member)

    def update(feedback, state):
        ridge = learn(state.ridge, feedback)
        rows = feedback_rows(feedback, ridge)
        sums, drift, z = state.sums, state.drift, None
        if sums is not None:
            sums = sums + perturbed_rows(
                state.noise_key, state.ridge, rows, num_members, member_axis
            )
        if drift is not None:
            z = drift_rows(state.factor, rows)
            drift = drift_add(drift, z, rows)
        refreshed = has_grown(
            trigger,
            growth,
            logdet=ridge.logdet - state.ref_logdet,
            drift=drift,
            z=z,
            rows=rows,
        )

        def refresh(old):
            epoch, offsets = old.epoch + 1, None
            factor = cholesky_of_inverse(ridge.V_inv, axis_name=gate_axis)
            if sums is not None:
                offsets = apply_blocks(ridge.V_inv, sums)
            elif explicit:
                xi = draw(state.member_key, epoch, ridge)
                offsets = apply_blocks(factor, xi)
            return begin(ridge, epoch, factor, offsets)

        old = _Epoch(*(getattr(state, name) for name in _Epoch._fields))
        new = gated_cond(
            refreshed, refresh, old._replace(drift=drift), axis_name=gate_axis
        )
        return state._replace(
            ridge=ridge, sums=sums, refreshed=refreshed, **new._asdict()
        )

    return Policy(init, select, update)


def ensemble_values(
    state: LazyEnsembleState | EnsembleState,
    X: Float[Array, "*arms d"],
    num_members: int | None = None,
) -> Float[Array, "members num_arms"]:
    """What every member thinks of every arm, ``<x_a, theta + D^j>``.

    Args:
        state: of an ensemble policy.
        X: one row of features per arm, or the context if disjoint.
        num_members: how many of the members, the first ones; None: all that are
            stored. Implicit members are not stored and have no number of their own.

    Raises:
        ValueError: ``num_members`` is missing for implicit members, below 1, or more
            than are stored.

    Example:
        >>> policy = lazy_ensemble_sampling(2, 50, members="implicit")
        >>> state = policy.init(jax.random.key(0))
        >>> ensemble_values(state, jnp.eye(2), num_members=3).shape
        (3, 2)
    """
    if num_members is not None:
        checks.check_integer("num_members", num_members)
    offsets = state.offsets
    if offsets is not None:
        if num_members is not None and num_members > len(offsets):
            raise ValueError(
                f"num_members must be at most {len(offsets)}, the members that are "
                f"stored, got {num_members}"
            )
        offsets = offsets[:num_members]
    if isinstance(state, EnsembleState):
        base, offsets = state.ridge, state.scale * state.offsets[:num_members]
    else:
        base = _base(state)
        if offsets is None:
            if num_members is None:
                raise ValueError("num_members is needed for implicit members, got None")
            offsets = _implicit_offsets(state, jnp.arange(num_members))

    def values(offset):
        return ridge_predictions(base._replace(theta=base.theta + offset), X)

    return jax.vmap(values)(offsets)


def _check_scale(scale: str | float | Array, num_arms: int | None) -> None:
    if isinstance(scale, str):
        checks.check_choice("scale", scale, ("theory", "finite"))
    else:
        checks.check_interval("scale", scale, 0.0, closed="()")
    if isinstance(scale, str) and scale == "finite" and num_arms is None:
        raise ValueError("scale='finite' needs num_arms, got num_arms=None")


def _finite_scale(ridge, epoch, num_arms, noise, bound, conf):
    dtype = ridge.theta.dtype
    conf, epochs = jnp.asarray(conf, dtype), (epoch + 1).astype(dtype)
    spread = jnp.sqrt(2 * jnp.log(2 * num_arms * epochs**2 / conf))
    return noise * spread + jnp.sqrt(ridge.lam) * bound


def _base(state: LazyEnsembleState) -> RidgeState:
    """The statistics with the estimate from which the members start."""
    if state.theta_ref is None:
        return state.ridge
    return state.ridge._replace(theta=state.theta_ref)


def _implicit_offsets(
    state: LazyEnsembleState, members: Int[Array, " members"]
) -> Float[Array, "members *blocks d"]:
    noise = member_noise(state.member_key, state.epoch, members, state.ridge.theta)
    return state.scale * apply_blocks(state.factor, noise)
