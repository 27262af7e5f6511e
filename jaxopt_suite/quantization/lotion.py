"""LOTION: the curvature-weighted variance of randomized rounding as a penalty.

Rounding a weight at random to its two neighbours on the grid, without bias, costs
``1/2 g_ii sigma_i^2`` of loss to second order. Adding the gradient of that cost to the
gradient of the loss leads any optimizer to the grid.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxopt_suite.core.checks import check_interval
from jaxopt_suite.quantization.masks import Mask, resolve_mask
from jaxopt_suite.quantization.penalty import (
    Scalar,
    add_slope,
    at_count,
    check_bool,
    check_updates,
    check_weight,
    keep_chosen,
    map_kept,
    matching_curvature,
    penalty_and_slope,
    wide_zeros,
)
from jaxopt_suite.quantization.rounding import Quantizer, check_quantizer


class LotionState(NamedTuple):
    """State of :func:`add_lotion_penalty`.

    Attributes:
        count: number of updates so far, an int32 scalar.
        nu: average of the squared gradient, at least float32; ``optax.MaskedNode`` on
            leaves that are not quantized, or everywhere if the curvature is given.
        penalty: ``1/2 sum c sigma^2`` at the parameters of the last update, before
            ``strength``; for logging.
    """

    count: Int[Array, ""]
    nu: PyTree[Float[Array, "..."]]
    penalty: Float[Array, ""]


def add_lotion_penalty(
    quantizer: Quantizer,
    *,
    strength: optax.ScalarOrSchedule = 1.0,
    batch_size: Scalar = 1,
    curvature: str | PyTree[Float[Array, "..."]] = "second_moment",
    b2: Scalar = 0.99,
    differentiate_scale: bool = True,
    mask: Mask = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Adds the gradient of the LOTION penalty to the gradient of the loss.

    .. math:: \nu_t = b_2 \nu_{t-1} + (1 - b_2) g_t^2, \quad
        c = \frac{B\, \nu_t}{1 - b_2^t}, \quad
        u = g_t + \lambda_t \nabla_w \tfrac12 \sum_i c_i \sigma_i^2(w)

    where :math:`\sigma_i^2(w)` is the variance of randomized rounding, ``c`` is held
    constant and ``g`` is the gradient of the plain loss at full-precision weights. Put
    it first in a chain: ``optax.chain(add_lotion_penalty(q), optax.adamw(1e-3))``.

    Args:
        quantizer: format and groups, of :func:`make_quantizer`.
        strength: :math:`\lambda_t \ge 0`, a number or a schedule of the update count;
            may be traced. With 1 and the true batch size the sum is the expected
            loss of the rounded weights to second order. 0 changes nothing.
        batch_size: :math:`B > 0`, examples that the gradient is a mean of; may be
            traced. It turns squared means of gradients into a Fisher diagonal.
        curvature: ``"second_moment"``, or a constant pytree like the parameters (such
            as :func:`exact_diagonal`), to which ``batch_size`` does not apply.
        b2: decay rate in [0, 1); may be traced.
        differentiate_scale: let the gradient move the scale through the largest weight
            of each group. Holding it still trains to a higher loss.
        mask: which leaves are quantized: a pytree of bools or a function of the
            parameters; None takes those with two axes or more.
            Under ``optax.inject_hyperparams`` name a function in ``static_args``: it
            would pass for a schedule.

    Returns:
        A transformation whose ``update`` needs ``params``. An extra argument
        ``curvature=``, a pytree like the parameters, replaces the estimate in that
        call, without ``batch_size``; the estimate still advances.

    Raises:
        ValueError: a concrete ``strength`` or curvature is negative, ``batch_size`` is
            not positive, one of them is infinite, ``b2`` is outside [0, 1), ``params``
            is missing, or updates or a curvature do not match the parameters. A traced
            negative curvature is not seen: it pushes weights away from the grid.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> tx = add_lotion_penalty(make_quantizer("int3"), b2=0.5)
        >>> w = jnp.array([[3.0, 0.75]])
        >>> updates, state = tx.update(jnp.array([[0.0, 2.0]]), tx.init(w), w)
        >>> updates  # 4/2 0.75 / 3 through the scale, and 2 + 4/2 (1 - 2 * 0.75)
        Array([[0.5, 1. ]], dtype=float32)
        >>> state.penalty  # 4/2 0.75 (1 - 0.75)
        Array(0.375, dtype=float32)

    Source: Kwun, Morwani, Su, Gil, Anand, Kakade, "LOTION: Smoothing the Optimization
    Landscape for Quantized Training" (2025), arXiv 2510.08757.
    """
    check_quantizer("quantizer", quantizer)
    check_weight("strength", strength)
    check_weight("batch_size", batch_size, "()")
    check_interval("b2", b2, 0.0, 1.0, closed="[)")
    check_bool("differentiate_scale", differentiate_scale)
    constant = _constant_curvature(curvature)

    def init(params):
        chosen = resolve_mask(mask, params)
        if constant is None:
            nu = keep_chosen(chosen, params, wide_zeros)
        else:
            nu = jax.tree.map(lambda _: optax.MaskedNode(), chosen)
        return LotionState(jnp.zeros([], jnp.int32), nu, jnp.zeros([], jnp.float32))

    def update(updates, state, params=None, *, curvature=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("add_lotion_penalty: update needs params=, got None")
        check_updates(updates, params)
        chosen = resolve_mask(mask, params)
        count = jnp.asarray(optax.safe_increment(state.count))
        nu = map_kept(
            lambda n, g: ((1 - b2) * g.astype(n.dtype) ** 2 + b2 * n).astype(n.dtype),
            state.nu,
            updates,
        )
        given = constant if curvature is None else curvature
        if given is None:
            unbiased = optax.tree.bias_correction(nu, b2, count)
            used = jax.tree.map(lambda n: (batch_size * n).astype(n.dtype), unbiased)
        else:
            used = matching_curvature(given, params, chosen)
        weights = keep_chosen(chosen, params, jnp.asarray)
        penalty, slope = penalty_and_slope(
            quantizer, weights, used, differentiate_scale
        )
        updates = add_slope(updates, slope, at_count(strength, state.count))
        return updates, LotionState(count, nu, penalty)

    return optax.GradientTransformationExtraArgs(init, update)


def _constant_curvature(curvature: Any) -> PyTree | None:
    """The curvature given to the factory; None if it is to be estimated."""
    if not isinstance(curvature, str) and curvature is not None:
        return curvature
    if curvature != "second_moment":
        raise ValueError(
            "curvature must be 'second_moment' or a pytree like the parameters, got "
            f"{curvature!r}: for 'adam' use lotion_adamw, and for 'gnb', 'hutchinson' "
            "or 'exact' give update(..., curvature=) what gnb_curvature, "
            "hutchinson_diagonal or exact_diagonal returns"
        )
    return None
