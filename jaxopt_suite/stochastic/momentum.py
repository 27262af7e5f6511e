"""Normalization and recursive momentum, for noise without a variance."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxopt_suite.core.checks import check_interval
from jaxopt_suite.core.trees import global_norm, scale_to_norm, statistics_dtype


class NormalizeState(NamedTuple):
    """State of :func:`normalize`: the norm before the last normalization."""

    norm: Float[Array, ""]


def normalize(
    eps: float | Float[Array, ""] = 1e-12,
) -> optax.GradientTransformationExtraArgs:
    r"""Divides updates by their norm over the whole pytree.

    .. math:: d = q / \|q\|_2 \text{ if } \|q\|_2 > \epsilon, \text{ else } 0

    A step of a fixed length bounds the travel whatever the noise, so nothing needs to
    be clipped. A finite entry of 1e30 in float32 still gives a unit vector.

    Args:
        eps: :math:`\epsilon \ge 0`, in units of the updates; may be traced.

    Raises:
        ValueError: a concrete ``eps`` is negative.

    Example:
        >>> tx = normalize()
        >>> tx.update(jnp.array([0.0, 4e30]), tx.init(jnp.zeros(2)))[0]
        Array([0., 1.], dtype=float32)

    Source: Cutkosky and Mehta, "Momentum Improves Normalized SGD" (2020),
    arXiv 2002.03305.
    """
    check_interval("eps", eps, 0.0)

    def init(params):
        return NormalizeState(jnp.zeros([], global_norm(params).dtype))

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        norm = global_norm(updates)
        tiny = norm <= eps
        updates = jax.tree.map(
            lambda u: jnp.where(tiny, 0.0, u).astype(u.dtype),
            scale_to_norm(updates, 1.0),
        )
        return updates, NormalizeState(norm.astype(state.norm.dtype))

    return optax.GradientTransformationExtraArgs(init, update)


class StormState(NamedTuple):
    """State of :func:`storm`.

    Attributes:
        count: number of updates so far.
        estimate: :math:`v_{t-1}`, at least float32.
    """

    count: Int[Array, ""]
    estimate: PyTree[Float[Array, "..."]]


def storm(beta: optax.ScalarOrSchedule) -> optax.GradientTransformationExtraArgs:
    r"""Recursive momentum that corrects for the move of the parameters.

    .. math:: v_0 = a_0, \qquad v_t = a_t + (1 - \beta_t)(v_{t-1} - a'_t)

    where :math:`a_t` is the gradient at the current and :math:`a'_t` that at the
    previous parameters **on the same sample**, passed as ``updates_prev``. With
    additive noise :math:`\epsilon_t` the error obeys :math:`e_t = (1-\beta_t) e_{t-1} +
    \beta_t \epsilon_t` exactly; plain momentum adds the drift of the gradient.

    Args:
        beta: :math:`\beta_t \in (0, 1]`, a number or a schedule of the count; may be
            traced. 1 gives :math:`v_t = a_t`.

    Returns:
        A transformation whose ``update`` needs ``updates_prev=``.

    Raises:
        ValueError: a concrete ``beta`` is outside (0, 1], or ``updates_prev`` is
            missing.

    Example:
        >>> tx = storm(0.5)
        >>> w = jnp.zeros([])
        >>> v, state = tx.update(w + 4.0, tx.init(w), updates_prev=w)
        >>> v, state = tx.update(w + 1.0, state, updates_prev=w + 2.0)
        >>> v
        Array(2., dtype=float32)

    Source: Cutkosky and Orabona, "Momentum-Based Variance Reduction in Non-Convex SGD"
    (2019), arXiv 1905.10018.
    """
    check_interval("beta", beta, 0.0, 1.0, closed="(]")

    def init(params):
        estimate = jax.tree.map(
            lambda p: jnp.zeros(jnp.shape(p), statistics_dtype(jnp.result_type(p))),
            params,
        )
        return StormState(jnp.zeros([], jnp.int32), estimate)

    def update(updates, state, params=None, *, updates_prev=None, **extra_args):
        del params, extra_args
        if updates_prev is None:
            raise ValueError(
                "storm needs updates_prev=, the gradient at the previous parameters on "
                "the same sample, got None"
            )
        keep = 1.0 - (beta(state.count) if callable(beta) else beta)
        keep = jnp.where(state.count == 0, 0.0, keep)
        first = state.count == 0

        def step(v, a, a_prev):
            a, a_prev = a.astype(v.dtype), a_prev.astype(v.dtype)
            return jnp.where(first, a, a + keep.astype(v.dtype) * (v - a_prev))

        estimate = jax.tree.map(step, state.estimate, updates, updates_prev)
        updates = jax.tree.map(lambda v, a: v.astype(a.dtype), estimate, updates)
        count = jnp.asarray(optax.safe_increment(state.count))
        return updates, StormState(count, estimate)

    return optax.GradientTransformationExtraArgs(init, update)
