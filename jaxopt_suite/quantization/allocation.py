"""Which format each leaf should have, under a budget of bits."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.quantization.masks import Mask, resolve_mask
from jaxopt_suite.quantization.metrics import stored_bits
from jaxopt_suite.quantization.penalty import matching_curvature
from jaxopt_suite.quantization.rounding import Quantizer, check_quantizer


class Allocation(NamedTuple):
    """What :func:`auto_granularity` returns.

    Attributes:
        labels: for each leaf the index of its quantizer, -1 where it has none; fit for
            ``optax.multi_transform``.
        predicted_loss: the sum of the predicted increases of the loss.
        mean_bits: bits per quantized weight, scales included.
    """

    labels: PyTree[int]
    predicted_loss: float
    mean_bits: float


def _check_values(name: str, tree: PyTree) -> None:
    for path, leaf in jax.tree.leaves_with_path(tree):
        if isinstance(leaf, jax.core.Tracer):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} must be concrete, got a tracer: "
                "call auto_granularity outside of jit"
            )


class _Step(NamedTuple):
    """Exchange of a leaf's option for one of more bits."""

    leaf: int
    option: int
    bits: int
    gain: float


def auto_granularity(
    quantizers: Sequence[Quantizer],
    params: PyTree,
    curvature: PyTree[Float[Array, "..."]],
    mean_bits: float,
    mask: Mask = None,
    *,
    scale_bits: int = 32,
) -> Allocation:
    r"""Chooses a quantizer per leaf by predicted loss, under a budget of mean bits.

    .. math:: \min_q \sum_l \tfrac12 \sum_{i \in l} g_{ii} \sigma_i^2(w; q_l)
        \quad \text{such that the mean bits per weight are at most } b

    A knapsack, solved greedily: every leaf starts with the fewest bits, then the steps
    along the lower convex hulls of (bits, loss) are taken in order of loss saved per
    bit, and one that no longer fits is left out. The loss exceeds the optimum by less
    than the first step left out would save. It looks at values, so it cannot be traced.

    Args:
        quantizers: the choices, formats and granularities mixed.
        params: any pytree.
        curvature: :math:`g_{ii} \ge 0`, like the parameters: the second moment of
            Adam's state times the batch size, say.
        mean_bits: :math:`b`, over the selected weights, with their scales.
        mask: which leaves, as in :func:`quantize_tree`.
        scale_bits: bits that a scale is stored in.

    Raises:
        ValueError: no quantizer is given, a budget below the fewest possible bits, a
            curvature or mask that does not fit, a mask that selects nothing, a tracer,
            or a leaf whose predicted loss is not finite.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> params = {"a": jnp.linspace(0, 1, 64)[None], "b": jnp.ones((1, 64))}
        >>> curvature = jax.tree.map(jnp.ones_like, params)
        >>> choices = [make_quantizer("int2"), make_quantizer("int8")]
        >>> auto_granularity(choices, params, curvature, 6.0).labels
        {'a': 1, 'b': 0}
    """
    if not quantizers:
        raise ValueError("quantizers must hold at least one quantizer, got none")
    for i, quantizer in enumerate(quantizers):
        check_quantizer(f"quantizers[{i}]", quantizer)
    check_interval("mean_bits", mean_bits, 0.0)
    check_integer("scale_bits", scale_bits, 0)
    _check_values("params", params)
    _check_values("curvature", curvature)
    chosen = resolve_mask(mask, params)
    kept = [i for i, keep in enumerate(jax.tree.leaves(chosen)) if keep]
    all_leaves, structure = jax.tree.flatten(params)
    leaves = [all_leaves[i] for i in kept]
    diagonal = jax.tree.leaves(matching_curvature(curvature, params, chosen))
    num_weights = sum(leaf.size for leaf in leaves)
    if not num_weights:
        raise ValueError("mask must select at least one weight of params, got none")

    bits = [[stored_bits(q, w.shape, scale_bits) for q in quantizers] for w in leaves]
    fewest = sum(min(row) for row in bits) / num_weights
    if fewest > mean_bits:
        raise ValueError(
            f"mean_bits must be at least {fewest:g}, which the smallest quantizers "
            f"take, got {mean_bits}"
        )
    losses = [
        [float(0.5 * jnp.sum(c * q.variance(w))) for q in quantizers]
        for w, c in zip(leaves, diagonal, strict=True)
    ]
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(params)]
    for i, row in zip(kept, losses, strict=True):
        if not all(map(math.isfinite, row)):
            raise ValueError(
                f"params{names[i]} and its curvature must predict finite losses, got "
                f"{row}"
            )
    picked = _knapsack(bits, losses, mean_bits * num_weights)
    labels = [-1] * len(all_leaves)
    for i, option in zip(kept, picked, strict=True):
        labels[i] = option
    return Allocation(
        jax.tree.unflatten(structure, labels),
        sum(row[option] for row, option in zip(losses, picked, strict=True)),
        sum(row[option] for row, option in zip(bits, picked, strict=True))
        / num_weights,
    )


def _knapsack(
    bits: list[list[int]], losses: list[list[float]], budget: float
) -> list[int]:
    """The option of each leaf."""
    picked, spent, steps = [], 0, []
    for leaf, (row_bits, row_losses) in enumerate(zip(bits, losses, strict=True)):
        first, *hull = _hull(row_bits, row_losses)
        picked.append(first)
        spent += row_bits[first]
        for before, after in zip([first, *hull], hull, strict=False):
            saved = row_losses[before] - row_losses[after]
            steps.append(_Step(leaf, after, row_bits[after] - row_bits[before], saved))
    blocked = set()
    for step in sorted(steps, key=lambda step: -step.gain / step.bits):
        if step.leaf in blocked or spent + step.bits > budget:
            blocked.add(step.leaf)
            continue
        picked[step.leaf] = step.option
        spent += step.bits
    return picked


def _hull(bits: list[int], losses: list[float]) -> list[int]:
    """Options on the lower convex hull, by ascending bits and descending loss."""
    hull: list[int] = []
    for i in sorted(range(len(bits)), key=lambda i: (bits[i], losses[i])):
        if hull and losses[i] >= losses[hull[-1]]:
            continue
        while len(hull) > 1 and _is_above(bits, losses, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    return hull


def _is_above(
    bits: list[int], losses: list[float], left: int, middle: int, right: int
) -> bool:
    rise = (losses[middle] - losses[left]) * (bits[right] - bits[left])
    return rise >= (losses[right] - losses[left]) * (bits[middle] - bits[left])
