"""Clipped SSTM: accelerated gradient steps that survive heavy tails.

The parameters that a caller sees are the query points; the solution is
:func:`sstm_eval_params`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from optax.experimental import aggregating

from jaxopt_suite.core.checks import check_integer, check_interval, is_concrete
from jaxopt_suite.core.trees import clip_to_norm, statistics_dtype
from jaxopt_suite.stochastic.aggregators import (
    AxisName,
    aggregate_median_of_means,
    as_aggregator,
)

Scalar = float | Float[Array, ""]


class ClippedSSTMState(NamedTuple):
    """State of :func:`clipped_sstm`.

    Attributes:
        count: updates so far in this run (restarted: in this stage).
        y: the averaged iterate, which is the solution; at least float32.
        z: the mirror iterate; at least float32.
        a_sum: :math:`A_t`, the sum of the step sizes so far.
    """

    count: Int[Array, ""]
    y: PyTree[Float[Array, "..."]]
    z: PyTree[Float[Array, "..."]]
    a_sum: Float[Array, ""]


class RestartedClippedSSTMState(NamedTuple):
    """State of :func:`restarted_clipped_sstm`: that of the stage, and its number."""

    inner: ClippedSSTMState
    stage: Int[Array, ""]


def _start(params) -> ClippedSSTMState:
    def wide(p):
        # A copy: a caller may donate the state and keep the parameters.
        return jnp.array(p, statistics_dtype(jnp.result_type(p)))

    dtypes = [jnp.result_type(p) for p in jax.tree.leaves(params)]
    return ClippedSSTMState(
        count=jnp.zeros([], jnp.int32),
        y=jax.tree.map(wide, params),
        z=jax.tree.map(wide, params),
        a_sum=jnp.zeros([], jnp.result_type(jnp.float32, *dtypes)),
    )


def _mix(a: Array, x: PyTree, b: Array, y: PyTree) -> PyTree:
    """The weighted mean (a x + b y) / (a + b)."""
    weight = b / (a + b)
    return jax.tree.map(lambda p, q: p + weight.astype(p.dtype) * (q - p), x, y)


def _advance(updates, state: ClippedSSTMState, curvature, clip_b):
    """One step from the gradient at the query point; returns (state, next query)."""
    step = (state.count + 2) / (2 * curvature)
    clipped = clip_to_norm(updates, clip_b / step)
    z = jax.tree.map(lambda p, g: p - step.astype(p.dtype) * g, state.z, clipped)
    y = _mix(state.a_sum, state.y, step, z)
    a_sum = state.a_sum + step
    next_step = (state.count + 3) / (2 * curvature)
    query = _mix(a_sum, y, next_step, z)
    count = jnp.asarray(optax.safe_increment(state.count))
    return ClippedSSTMState(count, y, z, a_sum.astype(state.a_sum.dtype)), query


def _check(smoothness, a, clip_b):
    check_interval("smoothness", smoothness, 0.0, closed="()")
    check_interval("a", a, 1.0, closed="[)")
    check_interval("clip_b", clip_b, 0.0, closed="(]")


def _difference(target, params):
    return jax.tree.map(
        lambda x, p: (x - jnp.asarray(p, x.dtype)).astype(jnp.result_type(p)),
        target,
        params,
    )


def clipped_sstm(
    smoothness: Scalar, a: Scalar = 1.0, clip_b: Scalar = jnp.inf
) -> optax.GradientTransformationExtraArgs:
    r"""Clipped stochastic similar triangles, for convex smooth problems.

    With :math:`A_0 = 0`, :math:`y_0 = z_0 = x_0` and, for :math:`t = 0, 1, \dots`,

    .. math::
        \alpha_{t+1} &= (t + 2) / (2 a L), \qquad A_{t+1} = A_t + \alpha_{t+1} \\
        x_{t+1} &= (A_t y_t + \alpha_{t+1} z_t) / A_{t+1} \\
        z_{t+1} &= z_t - \alpha_{t+1}\,
            \mathrm{clip}(g(x_{t+1}), B / \alpha_{t+1}) \\
        y_{t+1} &= (A_t y_t + \alpha_{t+1} z_{t+1}) / A_{t+1}

    Without noise and clipping :math:`f(y_K) - f^* \le 2 a L R^2 / (K (K + 3))`. The
    parameters are the query points :math:`x_{t+1}` (:math:`x_1 = x_0`), and the
    solution :math:`y` is ``sstm_eval_params(state, params)``.

    Args:
        smoothness: :math:`L > 0`, the Lipschitz constant of the gradient.
        a: :math:`a \ge 1`; larger means smaller steps and less noise.
        clip_b: :math:`B > 0`, the clipping level times the step; inf does not clip.
            All three may be traced.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ValueError: a concrete argument is out of range, or ``params`` is missing.

    Example:
        >>> tx = clipped_sstm(smoothness=1.0)
        >>> x = jnp.array([1.0])
        >>> updates, state = tx.update(x, tx.init(x), x)
        >>> x = optax.apply_updates(x, updates)
        >>> x, sstm_eval_params(state, x)
        (Array([0.], dtype=float32), Array([0.], dtype=float32))

    Source: Gorbunov, Danilova, Gasnikov, "Stochastic Optimization with Heavy-Tailed
    Noise via Accelerated Gradient Clipping" (2020), arXiv 2005.10785.
    """
    _check(smoothness, a, clip_b)

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("clipped_sstm: update needs params=, got None")
        state, query = _advance(updates, state, jnp.asarray(a * smoothness), clip_b)
        return _difference(query, params), state

    return optax.GradientTransformationExtraArgs(_start, update)


def restarted_clipped_sstm(
    smoothness: Scalar,
    period: int | Int[Array, ""],
    a: Scalar = 1.0,
    clip_b: Scalar = jnp.inf,
) -> optax.GradientTransformationExtraArgs:
    r"""Clipped SSTM, restarted from its solution, for strongly convex problems.

    Every ``period`` updates the count and :math:`A` go back to 0 and the run starts
    again from :math:`y`, with :math:`B_s = B\,2^{-s/2}` in stage :math:`s`. With
    :math:`K_0 = \lceil \sqrt{8 a L / \mu} \rceil` each noise-free stage at least halves
    :math:`\|y - x^*\|^2`. The last update of a stage leads to :math:`y`, the next
    query.

    Args:
        smoothness: :math:`L > 0`.
        period: :math:`K_0 \ge 1` updates in a stage.
        a: :math:`a \ge 1`.
        clip_b: :math:`B > 0` of the first stage. All four may be traced.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ValueError: a concrete argument is out of range, or ``params`` is missing.

    Example:
        >>> tx = restarted_clipped_sstm(smoothness=1.0, period=2)
        >>> x = jnp.array([1.0])
        >>> state = tx.init(x)
        >>> for _ in range(2):
        ...     updates, state = tx.update(x, state, x)
        ...     x = optax.apply_updates(x, updates)
        >>> state.stage, state.inner.count
        (Array(1, dtype=int32), Array(0, dtype=int32))

    Source: Gorbunov, Danilova, Gasnikov (2020), arXiv 2005.10785.
    """
    _check(smoothness, a, clip_b)
    if is_concrete(period):
        check_integer("period", np.asarray(period).item())

    def init(params):
        return RestartedClippedSSTMState(_start(params), jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("restarted_clipped_sstm: update needs params=, got None")
        stage = state.stage.astype(state.inner.a_sum.dtype)
        bound = clip_b * 2.0 ** (-stage / 2)
        inner, query = _advance(
            updates, state.inner, jnp.asarray(a * smoothness), bound
        )
        ends = inner.count >= period
        query = jax.tree.map(lambda q, y: jnp.where(ends, y, q), query, inner.y)
        inner = ClippedSSTMState(
            count=jnp.where(ends, 0, inner.count),
            y=inner.y,
            z=jax.tree.map(lambda z, y: jnp.where(ends, y, z), inner.z, inner.y),
            a_sum=jnp.where(ends, 0.0, inner.a_sum),
        )
        state = RestartedClippedSSTMState(inner, state.stage + ends)
        return _difference(query, params), state

    return optax.GradientTransformationExtraArgs(init, update)


def mom_clipped_sstm(
    num_groups: int,
    smoothness: Scalar,
    a: Scalar = 1.0,
    clip_b: Scalar = jnp.inf,
    *,
    smoothing: Scalar = 0.0,
    key: PRNGKeyArray | None = None,
    axis_name: AxisName | None = None,
) -> aggregating.Aggregator:
    """Clipped SSTM on the median of means of per-example gradients.

    Args:
        num_groups: a positive odd divisor of the batch size; static.
        smoothness: as :func:`clipped_sstm`, like ``a`` and ``clip_b``.
        a: see there.
        clip_b: see there.
        smoothing: as :func:`~jaxopt_suite.stochastic.aggregate_median_of_means`, like
            ``key`` and ``axis_name``.
        key: see there.
        axis_name: see there.

    Raises:
        ValueError: as its two links.

    Example:
        >>> optimizer = mom_clipped_sstm(3, smoothness=1.0)
        >>> x = jnp.array([1.0])
        >>> grads = jnp.array([[1.0], [1.0], [1e30]])
        >>> optimizer.update(grads, optimizer.init(x), x)[0]
        Array([-1.], dtype=float32)

    Source: Puchkin, Gorbunov, Kutuzov, Gasnikov (2023), arXiv 2311.04161.
    """
    return as_aggregator(
        optax.chain(
            aggregate_median_of_means(
                num_groups, smoothing=smoothing, key=key, axis_name=axis_name
            ),
            clipped_sstm(smoothness, a, clip_b),
        )
    )


def sstm_eval_params(state: Any, params: PyTree) -> PyTree[Float[Array, "..."]]:
    """The solution :math:`y` of a clipped SSTM state, wherever it sits in a chain.

    Args:
        state: state of :func:`clipped_sstm`, of :func:`restarted_clipped_sstm`, or of a
            chain that holds one of them.
        params: the query point; gives the dtypes.

    Raises:
        ValueError: ``state`` holds no such state, or several.

    Example:
        >>> tx = optax.chain(optax.identity(), clipped_sstm(1.0))
        >>> x = jnp.array([1.0])
        >>> sstm_eval_params(tx.init(x), x)
        Array([1.], dtype=float32)
    """
    is_sstm = lambda s: isinstance(s, ClippedSSTMState)  # noqa: E731
    found = [s for s in jax.tree.leaves(state, is_leaf=is_sstm) if is_sstm(s)]
    if len(found) != 1:
        raise ValueError(
            f"state must hold one ClippedSSTMState, found {len(found)} in "
            f"{type(state).__name__}"
        )
    return jax.tree.map(lambda y, p: y.astype(jnp.result_type(p)), found[0].y, params)
