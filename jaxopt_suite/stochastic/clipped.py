"""Norm clipping with a schedule, and clipped SGD on robust or plain gradients."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from optax.experimental import aggregating

from jaxopt_suite.core.checks import check_interval
from jaxopt_suite.core.trees import clip_to_norm, statistics_dtype
from jaxopt_suite.stochastic.aggregators import (
    AxisName,
    aggregate_median_of_means,
    as_aggregator,
)
from jaxopt_suite.stochastic.momentum import normalize


class ClipByScheduledNormState(NamedTuple):
    """State of :func:`clip_by_scheduled_norm`: the number of updates so far."""

    count: Int[Array, ""]


def clip_by_scheduled_norm(
    max_norm: optax.ScalarOrSchedule,
) -> optax.GradientTransformationExtraArgs:
    r"""Clips updates to a global norm that may follow a schedule.

    .. math:: u \leftarrow u \min(1, \lambda_t / \|u\|_2), \qquad \mathrm{clip}(0) = 0

    With a constant it is ``optax.clip_by_global_norm``, except that a finite update
    whose squares overflow keeps its direction.

    Args:
        max_norm: :math:`\lambda_t > 0`, a number or a schedule of the update count; may
            be traced, and inf (no clipping).

    Raises:
        ValueError: a concrete ``max_norm`` is not positive.

    Example:
        >>> tx = clip_by_scheduled_norm(lambda count: 1.0 / (count + 1))
        >>> state = tx.init(jnp.zeros(2))
        >>> for _ in range(2):
        ...     clipped, state = tx.update(jnp.array([3.0, 4.0]), state)
        >>> clipped
        Array([0.3, 0.4], dtype=float32)
    """
    check_interval("max_norm", max_norm, 0.0, closed="(]")

    def init(params):
        del params
        return ClipByScheduledNormState(jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        bound: Any = max_norm(state.count) if callable(max_norm) else max_norm
        count = jnp.asarray(optax.safe_increment(state.count))
        return clip_to_norm(updates, bound), ClipByScheduledNormState(count)

    return optax.GradientTransformationExtraArgs(init, update)


def clipped_sgd(
    learning_rate: optax.ScalarOrSchedule, max_norm: optax.ScalarOrSchedule
) -> optax.GradientTransformationExtraArgs:
    r"""SGD on a clipped gradient.

    .. math:: x_{t+1} = x_t - \gamma_t\, \mathrm{clip}(g_t, \lambda_t)

    Args:
        learning_rate: :math:`\gamma_t`, a number or schedule; may be traced.
        max_norm: :math:`\lambda_t > 0`, likewise.

    Raises:
        ValueError: a concrete ``max_norm`` is not positive.

    Example:
        >>> tx = clipped_sgd(0.5, max_norm=1.0)
        >>> tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))[0]
        Array([-0.3, -0.4], dtype=float32)

    Source: Gorbunov, Danilova, Gasnikov, "Stochastic Optimization with Heavy-Tailed
    Noise via Accelerated Gradient Clipping" (2020), arXiv 2005.10785.
    """
    return optax.with_extra_args_support(
        optax.chain(
            clip_by_scheduled_norm(max_norm),
            optax.scale_by_learning_rate(learning_rate),
        )
    )


def mom_clipped_sgd(
    learning_rate: optax.ScalarOrSchedule,
    max_norm: optax.ScalarOrSchedule,
    num_groups: int,
    *,
    smoothing: float | Float[Array, ""] = 0.0,
    key: PRNGKeyArray | None = None,
    axis_name: AxisName | None = None,
) -> aggregating.Aggregator:
    """Clipped SGD on the median of means of per-example gradients.

    Args:
        learning_rate: step size, a number or schedule; may be traced.
        max_norm: clipping level > 0, likewise.
        num_groups: a positive odd divisor of the batch size; static.
        smoothing: as :func:`~jaxopt_suite.stochastic.aggregate_median_of_means`, like
            ``key`` and ``axis_name``.
        key: see there.
        axis_name: see there.

    Raises:
        ValueError: as its two links.

    Example:
        >>> optimizer = mom_clipped_sgd(0.5, max_norm=1.0, num_groups=3)
        >>> grads = jnp.array([[3.0, 4.0], [3.0, 4.0], [1e30, -1e30]])
        >>> optimizer.update(grads, optimizer.init(jnp.zeros(2)))[0]
        Array([-0.3, -0.4], dtype=float32)

    Source: Puchkin, Gorbunov, Kutuzov, Gasnikov, "Breaking the Heavy-Tailed Noise
    Barrier in Stochastic Optimization Problems" (2023), arXiv 2311.04161.
    """
    return as_aggregator(
        optax.chain(
            aggregate_median_of_means(
                num_groups, smoothing=smoothing, key=key, axis_name=axis_name
            ),
            clipped_sgd(learning_rate, max_norm),
        )
    )


class AverageGradientState(NamedTuple):
    """The average of past gradients, at least float32."""

    average: PyTree[Float[Array, "..."]]


def _average_gradient(b1) -> optax.GradientTransformation:
    """``optax.ema`` without bias correction: wide inside, narrow outside."""

    def init(params):
        return AverageGradientState(
            jax.tree.map(
                lambda p: jnp.zeros(jnp.shape(p), statistics_dtype(jnp.result_type(p))),
                params,
            )
        )

    def update(updates, state, params=None):
        del params
        average = jax.tree.map(
            lambda v, u: (b1 * v + (1 - b1) * u).astype(v.dtype), state.average, updates
        )
        updates = jax.tree.map(lambda v, u: v.astype(u.dtype), average, updates)
        return updates, AverageGradientState(average)

    return optax.GradientTransformation(init, update)


def normalized_sgd_momentum(
    learning_rate: optax.ScalarOrSchedule, b1: float = 0.9
) -> optax.GradientTransformationExtraArgs:
    r"""SGD along the normalized average of past gradients.

    .. math:: v_t = b_1 v_{t-1} + (1 - b_1) g_t, \qquad
        x_{t+1} = x_t - \gamma_t v_t / \|v_t\|_2

    Args:
        learning_rate: :math:`\gamma_t`, a number or schedule; may be traced.
        b1: :math:`b_1 \in [0, 1)`; may be traced.

    Raises:
        ValueError: a concrete ``b1`` is outside [0, 1).

    Example:
        >>> tx = normalized_sgd_momentum(0.5)
        >>> tx.update(jnp.array([3.0, 4.0]), tx.init(jnp.zeros(2)))[0]
        Array([-0.3, -0.4], dtype=float32)

    Source: Cutkosky and Mehta (2020), arXiv 2002.03305.
    """
    check_interval("b1", b1, 0.0, 1.0, closed="[)")
    return optax.with_extra_args_support(
        optax.chain(
            _average_gradient(b1),
            normalize(),
            optax.scale_by_learning_rate(learning_rate),
        )
    )
