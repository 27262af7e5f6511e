"""Dampening: a pull of every weight to the grid value it is rounded to."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from jaxopt_suite.quantization.baselines import (
    WeightTransform,
    per_leaf,
    straight_through,
)
from jaxopt_suite.quantization.masks import Mask, resolve_mask
from jaxopt_suite.quantization.penalty import (
    Scalar,
    add_slope,
    at_count,
    check_updates,
    check_weight,
    keep_chosen,
    wide,
)
from jaxopt_suite.quantization.rounding import Quantizer, check_quantizer


@jax.custom_vjp
def _with_slope(w, slope):
    """``w``, with ``slope`` added to whatever gradient comes back to it."""
    del slope
    return w


_with_slope.defvjp(
    lambda w, slope: (w, slope),
    lambda slope, g: (g + slope.astype(g.dtype), jnp.zeros_like(slope)),
)


def dampening(
    quantizer: Quantizer, strength: Scalar, mask: Mask = None
) -> WeightTransform:
    r"""Straight-through estimator with a pull toward the grid in its gradient.

    .. math:: \nabla_w \left( L(\hat w) + \lambda \textstyle\sum_i
        (w_i - \hat w_i)^2 \right), \quad \hat w = \mathrm{cast}(w) \text{ constant}

    The pull enters with the backward pass, so it does not show in the loss, and a
    factor on the loss does not reach it; forward-mode derivatives (``jax.jvp``) are
    refused. For a strength that rises over the steps build
    the method in the step with a traced ``strength``, or train :func:`ste` through
    ``optax.chain(add_dampening_penalty(q, optax.linear_schedule(0, 1, n)), ...)``,
    which is the same.

    Args:
        quantizer: format and groups, of :func:`make_quantizer`.
        strength: :math:`\lambda \ge 0`; may be traced.
        mask: which leaves are quantized, as in :func:`quantize_tree`.

    Raises:
        ValueError: a concrete ``strength`` is negative or infinite.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = dampening(make_quantizer("int4"), 1.0)
        >>> w = jnp.array([[7.0, 2.25]])
        >>> jax.grad(lambda w: jnp.sum(method.apply((), None, w)))(w)
        Array([[1. , 1.5]], dtype=float32)

    Source: Nagel, Fournarakis, Bondarenko, Blankevoort, "Overcoming Oscillations in
    Quantization-Aware Training" (2022), arXiv 2203.11086.
    """
    check_quantizer("quantizer", quantizer)
    check_weight("strength", strength)

    def forward(key, w):
        del key
        rounded = quantizer.round_nearest(w)
        offset = jax.lax.stop_gradient(wide(w) - wide(rounded))
        slope = 2 * jnp.asarray(strength, offset.dtype) * offset
        return straight_through(rounded, _with_slope(w, slope))

    return per_leaf(forward, mask, quantizer.round_nearest)


class DampeningState(NamedTuple):
    """State of :func:`add_dampening_penalty`.

    Attributes:
        count: number of updates so far, an int32 scalar.
        penalty: ``sum (w - cast(w))^2`` at the parameters of the last update, before
            ``strength``; for logging.
    """

    count: Int[Array, ""]
    penalty: Float[Array, ""]


def add_dampening_penalty(
    quantizer: Quantizer, strength: optax.ScalarOrSchedule, mask: Mask = None
) -> optax.GradientTransformationExtraArgs:
    r"""Adds the gradient of a quadratic pull to the grid, for weights trained by STE.

    .. math:: u \leftarrow u + 2 \lambda_t (w - \mathrm{cast}(w))

    Args:
        quantizer: format and groups, of :func:`make_quantizer`.
        strength: :math:`\lambda_t \ge 0`, a number or a schedule of the update count;
            may be traced. It is best to let it rise from 0.
        mask: which leaves are quantized, as in :func:`quantize_tree`. Under
            ``optax.inject_hyperparams`` name a function in ``static_args``: it would
            pass for a schedule.

    Returns:
        A transformation whose ``update`` needs ``params``.

    Raises:
        ValueError: a concrete ``strength`` is negative or infinite, ``params`` is
            missing, or updates have other shapes.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> tx = add_dampening_penalty(make_quantizer("int4"), 1.0)
        >>> w = jnp.array([[7.0, 2.25]])
        >>> updates, state = tx.update(jnp.ones((1, 2)), tx.init(w), w)
        >>> updates
        Array([[1. , 1.5]], dtype=float32)

    Source: Nagel et al. (2022), arXiv 2203.11086.
    """
    check_quantizer("quantizer", quantizer)
    check_weight("strength", strength)

    def init(params):
        resolve_mask(mask, params)
        return DampeningState(jnp.zeros([], jnp.int32), jnp.zeros([], jnp.float32))

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("add_dampening_penalty: update needs params=, got None")

        check_updates(updates, params)

        def offset(w):
            return wide(w) - wide(quantizer.round_nearest(w))

        offsets = keep_chosen(resolve_mask(mask, params), params, offset)
        slope = jax.tree.map(lambda x: 2 * x, offsets)
        updates = add_slope(updates, slope, at_count(strength, state.count))
        penalty: Any = optax.tree.norm(offsets, squared=True)
        count = jnp.asarray(optax.safe_increment(state.count))
        return updates, DampeningState(count, jnp.asarray(penalty, jnp.float32))

    return optax.GradientTransformationExtraArgs(init, update)
