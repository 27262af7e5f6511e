"""The expected loss under unbiased random rounding, exactly and in approximations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_integer, check_interval, check_key
from jaxopt_suite.quantization.masks import Mask, resolve_mask
from jaxopt_suite.quantization.penalty import keep_chosen, matching_curvature
from jaxopt_suite.quantization.rounding import (
    Quantizer,
    check_quantizer,
    measure,
    quantize_tree,
    unscaled,
)

_MAX_EXACT = 16
Loss = Callable[[Array], Float[Array, ""]]


class _Cell(NamedTuple):
    """What each weight may be rounded to."""

    low: Float[Array, "..."]
    high: Float[Array, "..."]
    gap: Float[Array, "..."]
    prob_high: Float[Array, "..."]


def _cells(
    quantizer: Quantizer, w: Float[Array, "..."]
) -> tuple[_Cell, _Cell, Bool[Array, "..."]]:
    """The cells above and below each weight, and which weights are pinned.

    Off the grid the two are one. A weight on the grid has both, so that the mean of
    their slopes is that of its one-sided slopes. Pinned are the largest weights of a
    group, which stay on the grid however they move, and those of a zero group.
    """
    fmt = quantizer.format
    m = measure(w, fmt, quantizer.granularity)
    pinned = (jnp.abs(m.w) == m.top) | (m.top == 0)

    def cell(lo, hi, delta):
        # The value is exact at the grid, the slope that of the formula.
        gap = m.scale * (hi - lo)
        slope = (m.w - m.scale * lo) / gap
        moving = delta + slope - jax.lax.stop_gradient(slope)
        prob_high = jnp.where(pinned, delta, moving)
        low, high = (unscaled(m, x, fmt, w.dtype).astype(w.dtype) for x in (lo, hi))
        return _Cell(low, high, gap, prob_high)

    lo, hi, delta = quantizer.neighbours(w)
    grid = jnp.asarray(fmt.grid, lo.dtype)
    lower = grid[jnp.maximum(jnp.searchsorted(grid, lo) - 1, 0)]
    on_grid = (delta == 0) & (lower < lo) & ~pinned
    below = cell(
        jnp.where(on_grid, lower, lo),
        jnp.where(on_grid, lo, hi),
        jnp.where(on_grid, 1.0, delta),
    )
    return cell(lo, hi, delta), below, pinned


def _scalar(loss: Callable[..., Any]) -> Callable[..., Float[Array, ""]]:
    """The loss, required to be a real scalar, in a floating dtype."""

    def checked(*args, **kwargs):
        value = jnp.asarray(loss(*args, **kwargs))
        if value.ndim or jnp.iscomplexobj(value):
            raise ValueError(
                f"loss must return a scalar, got {value.dtype} of shape {value.shape}"
            )
        floating = jnp.issubdtype(value.dtype, jnp.floating)
        return value if floating else value.astype(jnp.result_type(float))

    return checked


def exact_smoothed_loss(
    loss: Loss, quantizer: Quantizer, w: Float[Array, "..."]
) -> Float[Array, ""]:
    r"""Expected loss of a randomly rounded array, by enumeration of all roundings.

    .. math:: L_{sm}(w) = \mathbb{E}\, L(R(w)) = \sum_{b \in \{0,1\}^d} L(w_b)
        \prod_i \Delta_i^{b_i} (1 - \Delta_i)^{1 - b_i}

    It is continuous, equals ``loss`` where ``w`` is rounded already, and its least
    value is that of the loss over rounded arrays. Within a cell of the grid it is
    affine in each weight but the largest of a group, for every loss.

    The gradient is the true one: it moves the scale through the largest weights of each
    group (equal ones share it). For a weight exactly on the grid it is the mean of the
    two one-sided slopes. An infinite loss counts for nothing in the value where its
    rounding has probability 0; a NaN is never hidden.

    Args:
        loss: an array like ``w`` -> scalar; called on a batch through ``vmap``.
        quantizer: of :func:`make_quantizer`.
        w: at most 16 weights, of any shape.

    Raises:
        ValueError: there are more than 16 weights, or the loss is no scalar.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> w = jnp.array([3.0, 0.75])
        >>> exact_smoothed_loss(lambda q: q[1] ** 2, make_quantizer("int3"), w)
        Array(0.75, dtype=float32)

    Source: Kwun, Morwani, Su, Gil, Anand, Kakade, "LOTION: Smoothing the Optimization
    Landscape for Quantized Training" (2025), arXiv 2510.08757.
    """
    check_quantizer("quantizer", quantizer)
    w, loss = jnp.asarray(w), _scalar(loss)
    if not w.size:
        return loss(w)
    if w.size > _MAX_EXACT:
        raise ValueError(
            f"w must have at most {_MAX_EXACT} weights, as all 2^d roundings are "
            f"enumerated, got {w.size}: use monte_carlo_smoothed_loss"
        )
    above, below, _ = _cells(quantizer, w)
    both = jax.tree.map(lambda *cells: jnp.stack(cells), above, below)
    return jnp.mean(jax.vmap(lambda cell: _expectation(loss, cell))(both))


def _expectation(loss: Loss, cell: _Cell) -> Float[Array, ""]:
    shape, size = cell.low.shape, cell.low.size
    up = (np.arange(2**size)[:, None] >> np.arange(size)) % 2 == 1
    corners = jnp.where(up, cell.high.ravel(), cell.low.ravel())
    prob_high = cell.prob_high.ravel()
    probabilities = jnp.prod(jnp.where(up, prob_high, 1.0 - prob_high), axis=1)
    # Where the probability is 0, 0 times an infinite loss or slope would be NaN.
    possible = probabilities != 0
    hold = jax.lax.stop_gradient
    corners = jnp.where(possible[:, None], corners, hold(corners))
    losses = jax.vmap(loss)(corners.reshape(-1, *shape))
    top = jnp.finfo(losses.dtype).max
    losses = jnp.where(possible, losses, hold(jnp.clip(losses, -top, top)))
    return jnp.sum(probabilities * losses)


def monte_carlo_smoothed_loss(
    loss: Callable[[PyTree], Float[Array, ""]],
    quantizer: Quantizer,
    params: PyTree,
    key: PRNGKeyArray,
    num_samples: int,
    mask: Mask = None,
) -> Float[Array, ""]:
    r"""Mean loss over random roundings, which estimates the smoothed loss.

    .. math:: \frac1n \sum_{j \le n} L(R_j(w))

    Unbiased, with an error of order :math:`1 / \sqrt n`. Its gradient is 0, as that of
    a rounding is: see :func:`flip_gradient` and :func:`gauss_newton_loss`.

    Args:
        loss: params -> scalar; called on a batch through ``vmap``.
        quantizer: rounds each selected leaf.
        params: any pytree.
        key: typed key; one is split off for each sample.
        num_samples: :math:`n \ge 1`; static.
        mask: which leaves, as in :func:`quantize_tree`.

    Raises:
        ValueError: ``num_samples`` is not a positive integer, ``key`` is none, the mask
            does not fit, or the loss is no scalar.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> quantizer, w = make_quantizer("int3"), jnp.array([[3.0, 1.0]])
        >>> monte_carlo_smoothed_loss(jnp.sum, quantizer, w, jax.random.key(0), 4)
        Array(4., dtype=float32)
    """
    check_quantizer("quantizer", quantizer)
    check_key("key", key)
    check_integer("num_samples", num_samples)

    def sample(key):
        return _scalar(loss)(quantize_tree(quantizer, params, mask, key))

    return jnp.mean(jax.vmap(sample)(jax.random.split(key, num_samples)))


def quadratic_smoothed_loss(
    hessian: Float[Array, "d d"],
    w_star: Float[Array, "d"],
    quantizer: Quantizer,
    w: Float[Array, "d"],
) -> Float[Array, ""]:
    r"""The smoothed loss of a quadratic, in closed form.

    .. math:: L_{sm}(w) = \tfrac12 (w - w^*)^\top H (w - w^*)
        + \tfrac12 \sum_i H_{ii} \sigma_i^2(w)

    Args:
        hessian: :math:`H`, symmetric.
        w_star: the minimiser of the loss.
        quantizer: of :func:`make_quantizer`.
        w: the weights.

    Raises:
        ValueError: the shapes do not fit.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> w = jnp.array([3.0, 0.75])
        >>> quadratic_smoothed_loss(jnp.eye(2), w, make_quantizer("int3"), w)
        Array(0.09375, dtype=float32)
    """
    check_quantizer("quantizer", quantizer)
    hessian, w_star, w = (jnp.asarray(x) for x in (hessian, w_star, w))
    if w.ndim != 1 or w_star.shape != w.shape or hessian.shape != w.shape * 2:
        raise ValueError(
            "hessian, w_star and w must have shapes (d, d), (d,) and (d,), got "
            f"{hessian.shape}, {w_star.shape} and {w.shape}"
        )
    offset = w - w_star
    variance = quantizer.variance(w)
    return 0.5 * (offset @ hessian @ offset + jnp.diagonal(hessian) @ variance)


def gauss_newton_loss(
    loss: Callable[..., Float[Array, ""]],
    quantizer: Quantizer,
    curvature: PyTree[Float[Array, "..."]],
    strength: float | Float[Array, ""] = 1.0,
    mask: Mask = None,
) -> Callable[..., Float[Array, ""]]:
    r"""The loss with the curvature-weighted variance of random rounding added.

    .. math:: L_{GN}(w) = L(w) + \frac\lambda2 \sum_i g_{ii} \sigma_i^2(w)

    With the diagonal :math:`g_{ii}` of the Gauss-Newton matrix and strength 1 this is
    the smoothed loss to second order, and exactly so for a quadratic. At strength 0 it
    is the loss, also where the penalty overflows.

    Args:
        loss: ``loss(params, *args, **kwargs)`` -> scalar.
        quantizer: of :func:`make_quantizer`.
        curvature: :math:`g_{ii} \ge 0`, like the parameters; held constant. Leaves that
            the mask leaves out are not looked at.
        strength: :math:`\lambda \ge 0`; may be traced.
        mask: which leaves, as in :func:`quantize_tree`.

    Returns:
        A function of the same arguments as ``loss``.

    Raises:
        ValueError: a concrete ``strength`` or curvature is negative; in the function,
            the curvature or the mask does not fit the parameters, or the loss is no
            scalar.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> w = jnp.array([[3.0, 0.75]])
        >>> smoothed = gauss_newton_loss(jnp.sum, make_quantizer("int3"), 2.0 + 0 * w)
        >>> smoothed(w)
        Array(3.9375, dtype=float32)

    Source: Kwun et al. (2025), arXiv 2510.08757.
    """
    check_quantizer("quantizer", quantizer)
    check_interval("strength", strength, 0.0)

    def smoothed(params, *args, **kwargs):
        value = _scalar(loss)(params, *args, **kwargs)
        chosen = resolve_mask(mask, params)
        weights = jax.tree.leaves(keep_chosen(chosen, params, jnp.asarray))
        held = jax.lax.stop_gradient(matching_curvature(curvature, params, chosen))
        # 0 times what is not finite would be NaN, in the value and in the slope.
        is_off = lambda x: (strength == 0) & ~jnp.isfinite(x)  # noqa: E731
        penalty = sum(
            jnp.sum(jnp.where(is_off(c), 0.0, c) * quantizer.variance(w))
            for c, w in zip(jax.tree.leaves(held), weights, strict=True)
        )
        added = jnp.where(is_off(penalty), 0.0, 0.5 * strength * penalty)
        return value + added.astype(value.dtype)

    return smoothed


def flip_gradient(
    loss: Loss,
    quantizer: Quantizer,
    w: Float[Array, "..."],
    key: PRNGKeyArray,
    num_samples: int,
) -> Float[Array, "..."]:
    r"""Unbiased gradient of the smoothed loss with the scale held constant.

    .. math:: \partial_i L_{sm}(w) = \mathbb{E}\, \frac{L(R(w) |_{i \to s h_i})
        - L(R(w) |_{i \to s l_i})}{s (h_i - l_i)}

    estimated over ``num_samples`` random roundings. The loss need not be
    differentiable. The largest weights of each group get 0; others exactly on the grid
    get the mean of the two one-sided slopes.

    Args:
        loss: an array like ``w`` -> scalar; called on batches through ``vmap``, four
            times per weight and sample.
        quantizer: of :func:`make_quantizer`.
        w: any shape.
        key: typed key.
        num_samples: roundings to average over; static.

    Raises:
        ValueError: ``num_samples`` is not a positive integer, ``key`` is none, or the
            loss is no scalar.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> quantizer, w = make_quantizer("int3"), jnp.array([3.0, 0.75])
        >>> square = lambda q: jnp.sum(q**2)
        >>> flip_gradient(square, quantizer, w, jax.random.key(0), 4)
        Array([0., 1.], dtype=float32)
    """
    check_quantizer("quantizer", quantizer)
    check_key("key", key)
    check_integer("num_samples", num_samples)
    w, loss = jnp.asarray(w), _scalar(loss)
    if not w.size:
        return jnp.zeros_like(w)
    above, below, pinned = _cells(quantizer, jax.lax.stop_gradient(w))

    def slopes(draw, cell):
        def slope(i, low, high, gap):
            change = loss(_with(draw, i, high)) - loss(_with(draw, i, low))
            return change / gap

        flat = (x.ravel() for x in (cell.low, cell.high, cell.gap))
        return jax.vmap(slope)(jnp.arange(w.size), *flat)

    both = jax.tree.map(lambda *cells: jnp.stack(cells), above, below)

    def sample(key):
        draw = quantizer.round_random(key, w)
        return jnp.mean(jax.vmap(lambda cell: slopes(draw, cell))(both), axis=0)

    found = jax.lax.map(sample, jax.random.split(key, num_samples))
    mean = jnp.mean(found, axis=0).reshape(w.shape)
    return jnp.where(pinned, 0.0, mean).astype(w.dtype)


def _with(draw: Float[Array, "..."], index: Any, value: Any) -> Float[Array, "..."]:
    return draw.ravel().at[index].set(value).reshape(draw.shape)
