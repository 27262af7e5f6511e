"""When has the Gram matrix grown enough to look at it again?

``V_tau`` is the matrix at the last refresh and ``V_t >= V_tau`` the one now. Three
measures of their ratio, each a bound on the next, so that each asks for fewer
refreshes:

    logdet:    log det V_t - log det V_tau > log(1 + growth)
    trace:     tr(M) - d > growth,  M = C^T V_t C,  C C^T = V_tau^-1
    spectral:  the largest eigenvalue of M > 1 + growth

The first costs nothing beyond the statistics; the other two keep M, ``O(d^2)`` a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxopt_suite.bandits.ridge import RidgeState
from jaxopt_suite.core import checks
from jaxopt_suite.core.gating import gated_cond
from jaxopt_suite.problems.contextual import BanditFeedback

TRIGGERS = ("logdet", "trace", "spectral")
_POWER_STEPS = 8
# Relative to the mean eigenvalue: about the rounding of float32.
_JITTER = 1e-7


class Rows(NamedTuple):
    """The rows that a feedback brings, whether it has a batch axis or not.

    Attributes:
        x: features, or contexts if disjoint; 0 where nothing is there.
        mask: which rows are there.
        arm: the block of each row if disjoint, else None.
    """

    x: Float[Array, "rows d"]
    mask: Bool[Array, " rows"]
    arm: Int[Array, " rows"] | None


def feedback_rows(feedback: BanditFeedback, ridge: RidgeState) -> Rows:
    """The rows that ``ridge`` learns from a feedback."""
    decision, (*blocks, d) = feedback.decision, ridge.theta.shape
    x = jnp.asarray(decision.x, ridge.theta.dtype).reshape(-1, d)
    mask = jnp.asarray(feedback.mask) & jnp.asarray(decision.valid)
    mask = jnp.broadcast_to(mask.reshape(-1), x.shape[:1])
    arm = jnp.reshape(decision.arm, -1) if blocks else None
    return Rows(jnp.where(mask[:, None], x, 0), mask, arm)


def check_trigger(growth: float | Array, trigger: str) -> None:
    """Refuses a trigger that is not there.

    Raises:
        ValueError: ``growth < 0`` or not finite, or ``trigger`` is unknown.
    """
    checks.check_interval("growth", growth, 0.0, closed="[)")
    checks.check_choice("trigger", trigger, TRIGGERS)


def drift_init(trigger: str, ridge: RidgeState) -> Float[Array, "*blocks d d"] | None:
    """``M = I`` in each block; None for ``"logdet"``, which does not need it."""
    if trigger == "logdet":
        return None
    eye = jnp.eye(ridge.V_inv.shape[-1], dtype=ridge.V_inv.dtype)
    # A copy: a broadcast array may share the memory of another.
    return jnp.array(jnp.broadcast_to(eye, ridge.V_inv.shape), copy=True)


def drift_rows(
    factor: Float[Array, "*blocks d d"], rows: Rows
) -> Float[Array, "rows d"]:
    """``z = C^T x`` of each row."""
    if rows.arm is None:
        return rows.x @ factor
    return jnp.einsum("bp,bpq->bq", rows.x, factor[rows.arm])


def drift_add(
    drift: Float[Array, "*blocks d d"], z: Float[Array, "rows d"], rows: Rows
) -> Float[Array, "*blocks d d"]:
    """``M += z z^T`` for each row."""
    if rows.arm is None:
        return drift + z.T @ z
    return drift.at[rows.arm].add(z[:, :, None] * z[:, None, :])


def has_grown(
    trigger: str,
    growth: float | Array,
    *,
    logdet: Float[Array, ""],
    drift: Float[Array, "*blocks d d"] | None,
    z: Float[Array, "rows d"] | None,
    rows: Rows,
) -> Bool[Array, ""]:
    """Whether the matrix has outgrown the one at the last refresh.

    Args:
        trigger: which measure.
        growth: by which factor, less 1, it may grow.
        logdet: growth of the log-determinant since the refresh; +inf always fires.
        drift: M with the rows added; None for ``"logdet"``.
        z: the rows that were added last, as :func:`drift_rows` gives them.
        rows: the same rows, for their blocks.
    """
    growth = jnp.asarray(growth, logdet.dtype)
    if drift is None or z is None:
        return logdet > jnp.log1p(growth)
    if trigger == "trace":
        traces = jnp.trace(drift, axis1=-2, axis2=-1)
        grown = jnp.sum(traces - drift.shape[-1]) > growth
    else:
        # Only the blocks of the last rows have changed, each along its row.
        blocks = drift if rows.arm is None else drift[rows.arm]
        axes = (None if rows.arm is None else 0, 0)
        grown = jnp.any(jax.vmap(_power_estimate, axes)(blocks, z) > 1 + growth)
    return grown | jnp.isposinf(logdet)


def cholesky_of_inverse(
    V_inv: Float[Array, "*blocks d d"],
    *,
    axis_name: str | tuple[str, ...] | None = None,
) -> Float[Array, "*blocks d d"]:
    """Lower ``C`` with ``C C^T = V_inv``; a failure is tried once more with a jitter.

    The jitter is ``1e-7 tr(V_inv) / d`` on the diagonal. If that fails too, the result
    is NaN and stays so.

    Args:
        V_inv: symmetric.
        axis_name: over which the rare second try is gated, see
            :func:`jaxopt_suite.core.gated_cond`.
    """
    factor = jnp.linalg.cholesky(V_inv, symmetrize_input=False)

    def retry(factor):
        del factor
        d = V_inv.shape[-1]
        level = _JITTER * jnp.trace(V_inv, axis1=-2, axis2=-1) / d
        eye = jnp.eye(d, dtype=V_inv.dtype)
        return jnp.linalg.cholesky(
            V_inv + level[..., None, None] * eye, symmetrize_input=False
        )

    return gated_cond(jnp.any(jnp.isnan(factor)), retry, factor, axis_name=axis_name)


def _power_estimate(M: Array, z: Array) -> Array:
    """A lower estimate of the largest eigenvalue, from the direction of z; 0 for 0."""

    def normalize(v):
        norm = jnp.linalg.norm(v)
        return v / jnp.where(norm == 0, 1, norm)

    v = jax.lax.fori_loop(0, _POWER_STEPS, lambda _, v: normalize(M @ v), normalize(z))
    return v @ (M @ v)
