"""Adam with the LOTION penalty, whose curvature is Adam's own second moment."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxopt_suite.core.checks import check_interval, is_concrete
from jaxopt_suite.quantization.masks import Mask, resolve_mask
from jaxopt_suite.quantization.penalty import (
    Scalar,
    add_slope,
    at_count,
    check_bool,
    check_updates,
    check_weight,
    keep_chosen,
    penalty_and_slope,
    wide_zeros,
)
from jaxopt_suite.quantization.rounding import Quantizer, check_quantizer


class LotionAdamState(NamedTuple):
    """State of :func:`scale_by_lotion_adam`.

    Attributes:
        count: number of updates so far, an int32 scalar.
        mu: average of the gradient of loss and penalty, at least float32.
        nu: average of the squared gradient of the loss alone, at least float32; it is
            Adam's second moment and the curvature at once.
        penalty: ``1/2 sum c sigma^2`` at the parameters of the last update, before
            ``strength``; for logging.
    """

    count: Int[Array, ""]
    mu: PyTree[Float[Array, "..."]]
    nu: PyTree[Float[Array, "..."]]
    penalty: Float[Array, ""]


def scale_by_lotion_adam(
    quantizer: Quantizer,
    *,
    strength: optax.ScalarOrSchedule = 1.0,
    batch_size: Scalar = 1,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    differentiate_scale: bool = True,
    mask: Mask = None,
    max_ratio: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Adam whose second moment is also the curvature of the LOTION penalty.

    .. math:: \nu_t &= b_2 \nu_{t-1} + (1 - b_2) g_t^2, \qquad
            c = B\, \hat\nu_t \\
        m_t &= b_1 m_{t-1} + (1 - b_1) \left(g_t + \lambda_t \nabla_w
            \tfrac12 \textstyle\sum_i c_i \sigma_i^2(w)\right) \\
        u_t &= \mathrm{clip}\left(\hat m_t / (\sqrt{\hat\nu_t} + \epsilon), -K, K\right)

    The moving scale puts the gradient of a whole group on its largest weight, whose own
    :math:`\nu` may be small: without the clip such a ratio ends in NaN. By default
    :math:`K = (1 - b_1) / \sqrt{(1 - b_2)(1 - b_1^2 / b_2)}`, which no ratio of Adam
    exceeds (Cauchy-Schwarz), and twice that while the strength is 0, so that rounding
    errors pass: strength 0 is ``optax.scale_by_adam``, bit for bit on float32 and
    float64 parameters. Leaves that are not quantized are never clipped.

    Args:
        quantizer: as :func:`add_lotion_penalty`, like ``strength``, ``batch_size``,
            ``differentiate_scale`` and ``mask``.
        strength: see there.
        batch_size: see there.
        b1: decay rate of the gradient in [0, 1); may be traced.
        b2: decay rate of the squared gradient in [0, 1); may be traced.
        eps: added to the root, ``>= 0``; may be traced.
        differentiate_scale: see there.
        mask: see there, also for ``optax.inject_hyperparams``.
        max_ratio: :math:`K > 0`; may be traced. 1 is a good choice too. None takes the
            default above, which needs ``b1**2 < b2``: a traced pair without gives NaN,
            unless the strength is 0, so give a number.

    Raises:
        ValueError: as :func:`add_lotion_penalty`; ``b1`` or ``b2`` is outside [0, 1),
            ``eps`` is negative, ``max_ratio`` is not positive, or it is None and
            ``b1**2 >= b2``.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> int3 = make_quantizer("int3")
        >>> tx = scale_by_lotion_adam(int3, b1=0.5, b2=0.5, max_ratio=1.0)
        >>> w = jnp.array([[3.0, 0.75]])
        >>> updates, state = tx.update(jnp.array([[0.0, 2.0]]), tx.init(w), w)
        >>> updates  # the largest weight has a slope but no curvature: clipped
        Array([[1. , 0.5]], dtype=float32)

    Source: Kwun et al. (2025), arXiv 2510.08757; the clip is ours.
    """
    check_quantizer("quantizer", quantizer)
    check_weight("strength", strength)
    check_weight("batch_size", batch_size, "()")
    check_interval("b1", b1, 0.0, 1.0, closed="[)")
    check_interval("b2", b2, 0.0, 1.0, closed="[)")
    check_interval("eps", eps, 0.0)
    check_bool("differentiate_scale", differentiate_scale)
    _check_ratio(b1, b2, max_ratio)

    def init(params):
        zeros = jax.tree.map(wide_zeros, params)
        return LotionAdamState(
            jnp.zeros([], jnp.int32),
            zeros,
            jax.tree.map(jnp.copy, zeros),
            jnp.zeros([], jnp.float32),
        )

    def update(updates, state, params=None, **extra_args):
        del extra_args
        if params is None:
            raise ValueError("scale_by_lotion_adam: update needs params=, got None")
        check_updates(updates, params)
        chosen = resolve_mask(mask, params)
        count = jnp.asarray(optax.safe_increment(state.count))
        gradient = optax.tree.cast_like(updates, state.nu)
        nu = optax.tree.update_moment_per_elem_norm(gradient, state.nu, b2, 2)
        nu_hat = optax.tree.bias_correction(nu, b2, count)
        penalty, slope = penalty_and_slope(
            quantizer,
            keep_chosen(chosen, params, jnp.asarray),
            keep_chosen(chosen, nu_hat, lambda n: (batch_size * n).astype(n.dtype)),
            differentiate_scale,
        )
        now = at_count(strength, state.count)
        gradient = add_slope(gradient, slope, now)
        mu = optax.tree.update_moment(gradient, state.mu, b1, 1)
        mu_hat = optax.tree.bias_correction(mu, b1, count)

        def ratio(selected, m, v, u):
            r = m / (jnp.sqrt(v) + eps)
            if selected:
                r = _clip_ratio(r, b1, b2, max_ratio, now)
            return r.astype(u.dtype)

        updates = jax.tree.map(ratio, chosen, mu_hat, nu_hat, updates)
        mu = optax.tree.cast_like(mu, state.mu)
        nu = optax.tree.cast_like(nu, state.nu)
        return updates, LotionAdamState(count, mu, nu, penalty)

    return optax.GradientTransformationExtraArgs(init, update)


def lotion_adamw(
    learning_rate: optax.ScalarOrSchedule,
    quantizer: Quantizer,
    *,
    strength: optax.ScalarOrSchedule = 1.0,
    batch_size: Scalar = 1,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: optax.ScalarOrSchedule = 1e-4,
    differentiate_scale: bool = True,
    mask: Mask = None,
    max_ratio: Scalar | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""AdamW with the LOTION penalty, whose curvature is Adam's own second moment.

    .. math:: w_{t+1} = w_t - \eta_t (u_t + \omega w_t)

    with :math:`u_t` of :func:`scale_by_lotion_adam`. It needs no more memory than
    ``optax.adamw``, and is that with strength 0. Weights are trained in full precision;
    ship ``quantize_tree(quantizer, params, mask)``.

    Args:
        learning_rate: :math:`\eta_t`, a number or a schedule; may be traced.
        quantizer: as :func:`scale_by_lotion_adam`, like all that is not below.
        strength: see there.
        batch_size: see there.
        b1: see there.
        b2: see there.
        eps: see there.
        weight_decay: :math:`\omega \ge 0`, on every leaf; a number or a schedule.
        differentiate_scale: see there.
        mask: which leaves are quantized, not which decay. Under
            ``optax.inject_hyperparams`` name a function in ``static_args``: it would
            pass for a schedule.
        max_ratio: see there.

    Raises:
        ValueError: as :func:`scale_by_lotion_adam`; a concrete ``weight_decay`` is
            negative or infinite.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> optimizer = lotion_adamw(0.1, make_quantizer("int4"), batch_size=256)
        >>> params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
        >>> state = optimizer.init(params)
        >>> updates, state = optimizer.update(params, state, params)
        >>> state[0].penalty  # all weights are on the grid
        Array(0., dtype=float32)

    Source: Kwun et al. (2025), arXiv 2510.08757.
    """
    check_weight("weight_decay", weight_decay)
    return optax.with_extra_args_support(
        optax.chain(
            scale_by_lotion_adam(
                quantizer,
                strength=strength,
                batch_size=batch_size,
                b1=b1,
                b2=b2,
                eps=eps,
                differentiate_scale=differentiate_scale,
                mask=mask,
                max_ratio=max_ratio,
            ),
            optax.add_decayed_weights(weight_decay),
            optax.scale_by_learning_rate(learning_rate),
        )
    )


def _check_ratio(b1: Any, b2: Any, max_ratio: Any) -> None:
    if max_ratio is not None:
        check_interval("max_ratio", max_ratio, 0.0, closed="(]")
    elif is_concrete(b1) and is_concrete(b2) and np.any(np.square(b1) >= b2):
        raise ValueError(
            "b1 must have b1**2 < b2, where Adam's ratio has a bound, got "
            f"b1={b1} and b2={b2}: choose others, or give max_ratio"
        )


def _clip_ratio(ratio: Array, b1: Any, b2: Any, max_ratio: Any, strength: Any) -> Array:
    if max_ratio is None:
        bound = (1 - b1) / ((1 - b2) * (1 - b1**2 / b2)) ** 0.5
        # Not unclipped: the momentum may still hold slopes of a strength before 0.
        loose = jnp.where(bound > 0, 2 * bound, jnp.inf)
        max_ratio = jnp.where(strength == 0, loose, bound)
    bound = jnp.asarray(max_ratio, ratio.dtype)
    return jnp.clip(ratio, -bound, bound)
