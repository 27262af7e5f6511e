"""Rare switches: a policy that acts as it did when its statistics last grew enough."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from jaxopt_suite.bandits.lazy_triggers import (
    check_trigger,
    cholesky_of_inverse,
    drift_add,
    drift_init,
    drift_rows,
    feedback_rows,
    has_grown,
)
from jaxopt_suite.bandits.linear import ridge_of
from jaxopt_suite.bandits.optimism import oful
from jaxopt_suite.bandits.ridge import RidgeState
from jaxopt_suite.core.gating import gated_cond
from jaxopt_suite.core.types import Policy
from jaxopt_suite.problems.contextual import LinearDecision


class LazyState(NamedTuple):
    """State of :func:`lazy`.

    Attributes:
        current: the policy's state, which has learned everything.
        acting: its state at the last refresh, by which it plays.
        factor: lower ``C`` with ``C C^T = V^-1`` at the last refresh; None for the
            trigger ``"logdet"``.
        drift: ``C^T V C`` with the matrix of now; None for ``"logdet"``.
        ref_logdet: the log-determinant at the last refresh.
        epoch: refreshes so far.
        refreshed: whether the last update refreshed.
    """

    current: PyTree
    acting: PyTree
    factor: Float[Array, "*blocks d d"] | None
    drift: Float[Array, "*blocks d d"] | None
    ref_logdet: Float[Array, ""]
    epoch: Int[Array, ""]
    refreshed: Bool[Array, ""]

    @property
    def ridge(self) -> RidgeState:
        """The statistics, which have learned everything."""
        return ridge_of(self.current)


class LazyDecision(NamedTuple):
    """A :class:`LinearDecision` and the number of the policy that made it.

    Attributes:
        arm: the arm played.
        x: its features in the shared layout; the context in the disjoint one.
        score: its index.
        bonus: the part of the score that pays for exploration.
        propensity: the probability of this arm under the policy; NaN if unknown.
        valid: False if no arm could be played.
        member: the ensemble member that was followed; -1 without an ensemble.
        epoch: refreshes before it; where this changes, the policy was switched.
    """

    arm: Int[Array, "*batch"]
    x: Float[Array, "*batch d"]
    score: Float[Array, "*batch"]
    bonus: Float[Array, "*batch"]
    propensity: Float[Array, "*batch"]
    valid: Bool[Array, "*batch"]
    member: Int[Array, "*batch"]
    epoch: Int[Array, "*batch"]


class _Epoch(NamedTuple):
    """The fields of a :class:`LazyState` that only a refresh changes."""

    acting: Any
    factor: Array | None
    drift: Array | None
    ref_logdet: Array
    epoch: Array


def lazy(
    policy: Policy,
    *,
    growth: float | Array = 1.0,
    trigger: str = "logdet",
    gate_axis: str | tuple[str, ...] | None = "lanes",
) -> Policy:
    """Plays by a policy's state of the last refresh, while that state goes on learning.

    A refresh comes after an update that leaves the Gram matrix V much larger than at
    the last one: ``O(d log T)`` times in T rounds. Where a policy is served by many
    machines, only a refresh needs to be sent to them.

    Args:
        policy: its state is a :class:`RidgeState` or has one in the field ``ridge``,
            with rows of weight 1 unless ``trigger="logdet"``; it decides by a
            :class:`LinearDecision`.
        growth: by which factor, less 1, V may grow, >= 0. 0 refreshes after each row
            that adds to V, which gives the policy itself.
        trigger: how growth is measured: ``"logdet"``, ``"trace"`` or ``"spectral"``,
            from eager to lazy (:mod:`jaxopt_suite.bandits.lazy_triggers`).
        gate_axis: the vmapped axis over which refreshes stay rare, see
            :func:`jaxopt_suite.core.gated_cond`.

    Returns:
        A policy with a :class:`LazyState`, that decides by a :class:`LazyDecision`.

    Raises:
        ValueError: ``growth < 0``, ``trigger`` is unknown, or the policy's state has no
            ridge statistics.

    Example:
        >>> from jaxopt_suite.core import interact
        >>> from jaxopt_suite.problems.linear_bandit import linear_env
        >>> env = linear_env(2, 5, noise=0.1)
        >>> result = interact(lazy(oful(2)), env, jax.random.key(0), 500, record="full")
        >>> int(result.state.ridge.count), int(result.state.epoch) < 20
        (500, True)
        >>> switches = jnp.sum(jnp.diff(result.record.decision.epoch) > 0)

    Source: the rarely switching algorithm of Abbasi-Yadkori, Pal, Szepesvari, "Improved
    algorithms for linear stochastic bandits" (2011), for any policy.
    """
    check_trigger(growth, trigger)

    def begin(current, epoch):
        ridge = ridge_of(current)
        drift, factor = drift_init(trigger, ridge), None
        if drift is not None:
            factor = cholesky_of_inverse(ridge.V_inv, axis_name=gate_axis)
        acting = jax.tree.map(jnp.copy, current)
        return _Epoch(acting, factor, drift, jnp.copy(ridge.logdet), epoch)

    def init(key):
        current = policy.init(key)
        epoch = begin(current, jnp.zeros((), jnp.int32))
        return LazyState(current, refreshed=jnp.zeros((), bool), **epoch._asdict())

    def select(state, context, key):
        decision = policy.select(state.acting, context, key)
        return LazyDecision(**decision._asdict(), epoch=state.epoch)

    def update(feedback, state):
        fields = feedback.decision._asdict()
        del fields["epoch"]
        feedback = feedback._replace(decision=LinearDecision(**fields))
        current, drift, z = policy.update(feedback, state.current), state.drift, None
        ridge = ridge_of(current)
        rows = feedback_rows(feedback, ridge)
        if drift is not None and state.factor is not None:
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
        new = gated_cond(
            refreshed,
            lambda old: begin(current, old.epoch + 1),
            _Epoch(state.acting, state.factor, drift, state.ref_logdet, state.epoch),
            axis_name=gate_axis,
        )
        return LazyState(current, refreshed=refreshed, **new._asdict())

    return Policy(init, select, update)


def rare_oful(
    d: int,
    *,
    growth: float | Array = 1.0,
    trigger: str = "logdet",
    lam: float | Array = 1.0,
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    conf: float | Array = 0.01,
    multiplier: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
    gate_axis: str | tuple[str, ...] | None = "lanes",
) -> Policy:
    """Rarely switching OFUL: ``lazy(oful(d, ...), growth=growth)``.

    Its regret is at most ``sqrt(1 + growth)`` times the bound of :func:`oful`.

    Args:
        d: as for :func:`oful`.
        growth: as for :func:`lazy`.
        trigger: as for :func:`lazy`.
        lam: as for :func:`oful`, like all that follow but the last.
        noise: sub-Gaussian scale of the reward's noise.
        bound: of the norm of the true parameter.
        conf: probability of failure.
        multiplier: of the radius.
        layout: ``"shared"`` or ``"disjoint"``.
        num_arms: number of arms; needed if disjoint.
        gate_axis: as for :func:`lazy`.

    Raises:
        ValueError: as :func:`oful` and :func:`lazy`.

    Example:
        >>> state = rare_oful(2, growth=3.0).init(jax.random.key(0))
        >>> int(state.ridge.count), int(state.epoch)
        (0, 0)

    Source: Abbasi-Yadkori, Pal, Szepesvari, "Improved algorithms for linear stochastic
    bandits" (2011).
    """
    policy = oful(
        d,
        lam=lam,
        noise=noise,
        bound=bound,
        conf=conf,
        multiplier=multiplier,
        layout=layout,
        num_arms=num_arms,
    )
    return lazy(policy, growth=growth, trigger=trigger, gate_axis=gate_axis)
