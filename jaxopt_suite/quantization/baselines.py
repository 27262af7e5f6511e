"""Other ways to train for quantized weights, as one shape of pure functions.

A method turns the parameters into those that the loss sees. What rounds them invents a
gradient: that of the identity, a straight-through estimator.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_choice, check_interval, check_key
from jaxopt_suite.quantization.granularity import spread
from jaxopt_suite.quantization.masks import Mask, map_selected, resolve_mask
from jaxopt_suite.quantization.penalty import Scalar, wide
from jaxopt_suite.quantization.rounding import (
    Quantizer,
    check_quantizer,
    measure,
    nearest_of,
)


class WeightTransform(NamedTuple):
    """A method of quantization-aware training; minimise ``loss(apply(...))``.

    Attributes:
        init: ``init(params) -> state``: what the method learns beside the parameters.
            Only :func:`lsq` learns: train the pair ``(state, params)``. All others have
            an empty state.
        apply: ``apply(state, key, params) -> params`` for the forward pass of one step.
            The key may be None where nothing is random.
        deploy: ``deploy(state, params) -> params``, the rounded weights to ship.
    """

    init: Callable[[PyTree], PyTree]
    apply: Callable[[PyTree, PRNGKeyArray | None, PyTree], PyTree]
    deploy: Callable[[PyTree, PyTree], PyTree]


def straight_through(
    value: Float[Array, "..."], w: Float[Array, "..."]
) -> Float[Array, "..."]:
    """``value``, bit for bit, with the gradient of ``w``."""
    return jax.lax.stop_gradient(value) + (w - jax.lax.stop_gradient(w))


def per_leaf(
    forward: Callable[..., Array],
    mask: Mask,
    deploy: Callable[[Array], Array],
) -> WeightTransform:
    """A method without a state, from ``forward(key, w)`` and ``deploy(w)`` of a leaf.

    Leaf i has the key ``fold_in(key, i)``, as in :func:`quantize_tree`.
    """

    def init(params):
        resolve_mask(mask, params)
        return optax.EmptyState()

    def apply(state, key, params):
        del state
        chosen = resolve_mask(mask, params)
        if key is None:
            return map_selected(lambda w: forward(None, w), chosen, params)
        structure = jax.tree.structure(params)
        index = structure.unflatten(range(structure.num_leaves))
        return map_selected(
            lambda w, i: forward(jax.random.fold_in(key, i), w), chosen, params, index
        )

    def ship(state, params):
        del state
        return map_selected(deploy, resolve_mask(mask, params), params)

    return WeightTransform(init, apply, ship)


def quantize_params_fn(
    quantizer: Quantizer, mask: Mask = None, mode: str = "nearest"
) -> Callable[..., PyTree]:
    """Fake quantization for a forward pass: rounded values, gradient of the identity.

    Args:
        quantizer: format and groups, of :func:`make_quantizer`.
        mask: which leaves are rounded, as in :func:`quantize_tree`.
        mode: ``"nearest"`` or ``"random"``.

    Returns:
        ``fn(params, key=None) -> params``; ``"random"`` needs the key.

    Raises:
        ValueError: unknown ``mode``; in ``fn``, ``"random"`` without a key.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> fake = quantize_params_fn(make_quantizer("int4"))
        >>> w = jnp.array([[7.0, 2.4]])
        >>> fake(w)
        Array([[7., 2.]], dtype=float32)
        >>> jax.grad(lambda w: jnp.sum(fake(w) ** 2))(w)
        Array([[14.,  4.]], dtype=float32)
    """
    check_choice("mode", mode, ("nearest", "random"))
    method = {"nearest": ste, "random": rat}[mode](quantizer, mask)
    return lambda params, key=None: method.apply((), key, params)


def apply_quantized(
    model_fn: Callable[..., Any], transform: WeightTransform
) -> Callable[..., Any]:
    """A model that runs on transformed parameters.

    Args:
        model_fn: ``model_fn(params, *args, **kwargs)``, such as the ``apply`` of a Flax
            module, or ``lambda model, x: jax.vmap(model)(x)`` for an Equinox one.
        transform: any method of this module.

    Returns:
        ``fn(state, key, params, *args, **kwargs)``.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = ste(make_quantizer("int4"))
        >>> model = apply_quantized(lambda w, x: x @ w, method)
        >>> w = jnp.array([[7.0], [2.4]])
        >>> model(method.init(w), None, w, jnp.ones((1, 2)))
        Array([[9.]], dtype=float32)
    """

    def quantized(state, key, params, *args, **kwargs):
        return model_fn(transform.apply(state, key, params), *args, **kwargs)

    return quantized


def ptq(quantizer: Quantizer, mask: Mask = None) -> WeightTransform:
    """Post-training quantization: trains in full precision and rounds at the end.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = ptq(make_quantizer("int4"))
        >>> w = jnp.array([[7.0, 2.5]])
        >>> method.apply(method.init(w), None, w), method.deploy(method.init(w), w)
        (Array([[7. , 2.5]], dtype=float32), Array([[7., 2.]], dtype=float32))
    """
    check_quantizer("quantizer", quantizer)
    return per_leaf(lambda key, w: w, mask, quantizer.round_nearest)


def ste(quantizer: Quantizer, mask: Mask = None) -> WeightTransform:
    """Straight-through estimator: rounds to nearest, backward the identity ("QAT").

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = ste(make_quantizer("int4"))
        >>> method.apply((), None, jnp.array([[7.0, 2.5]]))
        Array([[7., 2.]], dtype=float32)

    Source: Bengio, Leonard, Courville (2013), arXiv 1308.3432.
    """
    check_quantizer("quantizer", quantizer)
    nearest = quantizer.round_nearest
    return per_leaf(lambda key, w: straight_through(nearest(w), w), mask, nearest)


def rat(quantizer: Quantizer, mask: Mask = None) -> WeightTransform:
    """Randomized rounding forward, identity backward.

    Its expected gradient is that of the loss at randomly rounded weights, which for a
    quadratic is the plain gradient: the penalty of LOTION is what it lacks.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = rat(make_quantizer("int4"))
        >>> method.apply((), jax.random.key(1), jnp.array([[7.0, 2.5]]))
        Array([[7., 3.]], dtype=float32)
    """
    check_quantizer("quantizer", quantizer)

    def forward(key, w):
        return straight_through(quantizer.round_random(key, w), w)

    return per_leaf(forward, mask, quantizer.round_nearest)


def pseudo_noise(quantizer: Quantizer, mask: Mask = None) -> WeightTransform:
    r"""Uniform noise of one grid step instead of rounding; deploys the nearest.

    .. math:: \hat w = w + s (h - l) u, \quad u \sim U(-\tfrac12, \tfrac12)

    with the neighbours :math:`l, h` of ``w`` in units of the scale, held constant.
    A group of zeros has no step, so no noise.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = pseudo_noise(make_quantizer("int4"))
        >>> noisy = method.apply((), jax.random.key(0), jnp.array([[7.0, 2.5]]))
        >>> bool(jnp.all(jnp.abs(noisy - jnp.array([7.0, 2.5])) <= 0.5))
        True

    Source: Defossez, Adi, Synnaeve, "Differentiable Model Compression via Pseudo
    Quantization Noise" (2022), arXiv 2104.09987.
    """
    check_quantizer("quantizer", quantizer)

    def forward(key, w):
        lo, hi, _ = quantizer.neighbours(w)
        group = measure(w, quantizer.format, quantizer.granularity)
        step = jnp.where(group.top == 0, 0.0, group.scale * (hi - lo))
        check_key("key", key)
        noise = jax.random.uniform(key, w.shape, lo.dtype, -0.5, 0.5)
        return w + jax.lax.stop_gradient(step * noise).astype(w.dtype)

    return per_leaf(forward, mask, quantizer.round_nearest)


def ste_clip(quantizer: Quantizer, ratio: Scalar, mask: Mask = None) -> WeightTransform:
    r"""Straight-through estimator on a narrower range, with no gradient outside of it.

    .. math:: \hat w = s\, \mathrm{cast}(\mathrm{clip}(w / s)), \quad
        s = \rho \max |w| / q_{max}, \quad
        \partial \hat w / \partial w = [\,|w| \le \rho \max |w|\,]

    Args:
        quantizer: its format and groups.
        ratio: :math:`\rho \in (0, 1]`, the part of each group's range that is kept; may
            be traced. 1 is :func:`ste`, to rounding.
        mask: which leaves.

    Raises:
        ValueError: a concrete ``ratio`` is outside (0, 1].

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> method = ste_clip(make_quantizer("int2"), 0.5)
        >>> jax.vjp(lambda w: method.apply((), None, w), jnp.array([[4.0, 1.5]]))[0]
        Array([[2., 2.]], dtype=float32)

    Source: Hubara, Courbariaux, Soudry, El-Yaniv, Bengio (2018), JMLR 18.
    """
    check_quantizer("quantizer", quantizer)
    check_interval("ratio", ratio, 0.0, 1.0, closed="(]")

    def rounded(w):
        return round_to_scale(quantizer, w, ratio * quantizer.scale(w))

    def forward(key, w):
        del key
        value, inside = rounded(jax.lax.stop_gradient(w))
        return straight_through(value, jnp.where(inside, w, jax.lax.stop_gradient(w)))

    return per_leaf(forward, mask, lambda w: rounded(w)[0])


def round_to_scale(
    quantizer: Quantizer, w: Float[Array, "..."], scale: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The nearest value of the grid times ``scale``, and whether ``w`` is in its range.

    Args:
        quantizer: its format and groups.
        w: weights; those beyond the range go to its end.
        scale: one per group, positive.
    """
    grid = quantizer.format.grid
    scale = spread(scale, w.shape, quantizer.granularity)
    z = wide(w) / scale
    value = scale * nearest_of(quantizer.format)(jnp.clip(z, grid[0], grid[-1]))
    value = jnp.where(jnp.isnan(z), z, value)
    # The ends are in the range, whichever way the quotient was rounded.
    slack = 1 + 4 * jnp.finfo(z.dtype).eps
    inside = (z >= slack * grid[0]) & (z <= slack * grid[-1])
    return value.astype(w.dtype), inside
