"""Learned step size: the scale of each group is trained with the weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxopt_suite.quantization.baselines import (
    WeightTransform,
    round_to_scale,
    straight_through,
)
from jaxopt_suite.quantization.granularity import spread
from jaxopt_suite.quantization.masks import Mask, resolve_mask
from jaxopt_suite.quantization.penalty import keep_chosen, wide
from jaxopt_suite.quantization.rounding import Quantizer, check_quantizer


def group_sum(x: Float[Array, "..."], quantizer: Quantizer) -> Float[Array, "..."]:
    """The sum of each group, in the shape of ``quantizer.scale``."""
    groups = jax.eval_shape(quantizer.scale, x)

    def lay_out(per_group):
        laid = spread(per_group, x.shape, quantizer.granularity)
        return jnp.broadcast_to(laid, x.shape)

    # Summing over a group is the transpose of handing it one number.
    (total,) = jax.linear_transpose(lay_out, groups)(x)
    return total


class LsqState(NamedTuple):
    """Trainable state of :func:`lsq`.

    Attributes:
        scale: one number per group and quantized leaf, at least float32;
            ``optax.MaskedNode`` on the other leaves.
    """

    scale: PyTree[Float[Array, "..."]]


def lsq(quantizer: Quantizer, mask: Mask = None) -> WeightTransform:
    r"""Learned step size quantization.

    .. math:: \hat w = s\, \mathrm{cast}(\mathrm{clip}(w / s)), \quad
        \frac{\partial \hat w}{\partial w} = [w / s \text{ in range}], \quad
        \frac{\partial \hat w}{\partial s} = \frac{1}{\sqrt{n q_{max}}}
        \begin{cases} \mathrm{cast}(w/s) - w/s & \text{in range} \\
        \pm q_{max} & \text{beyond} \end{cases}

    with n weights per scale, and :math:`s = 2\, \mathrm{mean}|w| / \sqrt{q_{max}}` at
    first. Train the pair, ``jax.grad(lambda pair: loss(method.apply(pair[0], None,
    pair[1])))``, with any optimizer. The magnitude of ``s`` counts, so a step past 0
    does no harm. It deploys the cast with the learned scales, not with the quantizer's.

    Args:
        quantizer: format and groups, of :func:`make_quantizer`.
        mask: which leaves are quantized, as in :func:`quantize_tree`.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = lsq(make_quantizer("int2"))
        >>> w = jnp.array([[4.0, 1.0, 0.0, 1.0]])
        >>> state = method.init(w)
        >>> state.scale, method.apply(state, None, w)
        (Array(3., dtype=float32), Array([[3., 0., 0., 0.]], dtype=float32))
        >>> loss = lambda state: jnp.sum(method.apply(state, None, w))
        >>> jax.grad(loss)(state).scale  # (1 - 1/3 - 1/3) / sqrt(4)
        Array(0.16666..., dtype=float32)

    Source: Esser, McKinstry, Bablani, Appuswamy, Modha, "Learned Step Size
    Quantization" (2020), arXiv 1902.08153.
    """
    check_quantizer("quantizer", quantizer)
    qmax = quantizer.format.qmax
    tiny = jnp.finfo(jnp.float32).tiny

    def first_scale(w):
        magnitude = jnp.abs(wide(w))
        count = group_sum(jnp.ones_like(magnitude), quantizer)
        scale = 2 * group_sum(magnitude, quantizer) / jnp.maximum(count, 1) / qmax**0.5
        return jnp.where(scale < tiny, 1.0, scale)

    def init(params):
        return LsqState(keep_chosen(resolve_mask(mask, params), params, first_scale))

    def forward(w, scale):
        size = group_sum(jnp.ones(w.shape, scale.dtype), quantizer)
        damped = scale / jnp.sqrt(jnp.maximum(size, 1) * qmax)
        s = straight_through(positive(scale), jnp.sign(scale) * damped)
        value, inside = round_to_scale(quantizer, w, jax.lax.stop_gradient(s))
        s = spread(s, w.shape, quantizer.granularity)
        fixed = jax.lax.stop_gradient(s)
        # Per unit of scale: what the cast gives, less what w / s loses in range.
        slope = wide(value) / fixed - jnp.where(inside, wide(w) / fixed, 0.0)
        moved = jax.lax.stop_gradient(slope) * (s - fixed)
        w = jnp.where(inside, w, jax.lax.stop_gradient(w))
        return straight_through(value, w) + moved.astype(w.dtype)

    def positive(scale):
        return jnp.maximum(jnp.abs(scale), tiny)

    def apply(state, key, params):
        del key
        return jax.tree.map(
            lambda selected, w, scale: forward(w, scale) if selected else w,
            resolve_mask(mask, params),
            params,
            state.scale,
        )

    def deploy(state, params):
        return jax.tree.map(
            lambda selected, w, scale: (
                round_to_scale(quantizer, w, positive(scale))[0] if selected else w
            ),
            resolve_mask(mask, params),
            params,
            state.scale,
        )

    return WeightTransform(init, apply, deploy)
