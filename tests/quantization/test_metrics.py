"""Metrics by hand and in NumPy, and the choice of formats by brute force."""

import itertools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rounding_reference import grid_of, reference

from jaxopt_suite.quantization import (
    auto_granularity,
    bits_per_weight,
    exact_smoothed_loss,
    fraction_on_grid,
    make_quantizer,
    per_block,
    per_channel,
    per_tensor,
    quantization_error,
    quantize_tree,
    quantized_loss,
)


def tree(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": jnp.asarray(rng.standard_normal((4, 6)), jnp.float32),
        "b": jnp.asarray(rng.standard_normal(5), jnp.float32),
        "c": jnp.asarray(3 * rng.standard_normal((2, 8)), jnp.float32),
    }


def test_error_and_distance_equal_their_formulas():
    params = tree()
    quantizer = make_quantizer("int4", per_block(4))
    squares, near = [], []
    for name in ("a", "c"):
        r = reference(grid_of("int4"), params[name], per_block(4))
        squares += list(np.ravel((r["nearest"] - params[name]) ** 2))
        near += list(np.ravel(np.minimum(r["delta"], 1 - r["delta"])))
    np.testing.assert_allclose(
        quantization_error(quantizer, params), np.mean(squares), rtol=1e-4
    )
    for tolerance in (0.01, 0.2, 0.5):
        np.testing.assert_allclose(
            fraction_on_grid(quantizer, params, tolerance=tolerance),
            np.mean(np.array(near) <= tolerance + 1e-6),
            rtol=1e-6,
        )
    np.testing.assert_allclose(
        fraction_on_grid(quantizer, params), np.mean(np.array(near) <= 0.01)
    )


def test_a_rounded_tree_is_on_the_grid():
    quantizer = make_quantizer("fp4", per_channel(0))
    rounded = quantize_tree(quantizer, tree(1))
    assert quantization_error(quantizer, rounded) == 0
    assert fraction_on_grid(quantizer, rounded) == 1
    only_b = {"a": False, "b": True, "c": False}
    assert fraction_on_grid(make_quantizer("int8"), rounded, only_b) < 1


def test_losses_of_rounded_weights():
    quantizer, w = make_quantizer("int3"), tree(2)["c"][:1]
    target = jnp.arange(8.0)
    loss = lambda q: jnp.sum((q - target) ** 2)  # noqa: E731
    measure = jax.jit(
        lambda w: quantized_loss(loss, quantizer, w, jax.random.key(0), 5_000)
    )
    found = measure(w)
    np.testing.assert_allclose(
        found.nearest, loss(quantizer.round_nearest(w)), rtol=1e-6
    )
    exact = float(jax.jit(lambda w: exact_smoothed_loss(loss, quantizer, w))(w))
    # 5.5 standard errors of 5,000 draws: 4e-8.
    assert abs(found.random_mean - exact) <= 5.5 * found.random_std / np.sqrt(5_000)
    r = reference(grid_of("int3"), w, per_tensor())
    low, high = r["scale"] * r["lo"], r["scale"] * r["hi"]
    jump = (high - target) ** 2 - (low - target) ** 2
    spread = np.sqrt(np.sum(jump**2 * r["delta"] * (1 - r["delta"])))
    # A standard deviation of 5,000 draws is good to 1 in 100.
    np.testing.assert_allclose(found.random_std, spread, rtol=0.07)


def test_bits_count_the_scales():
    params = tree()
    assert bits_per_weight(make_quantizer("int3"), params) == 3 + 2 * 32 / 40
    assert bits_per_weight(make_quantizer("fp4", per_channel(0)), params) == (
        4 + (4 + 2) * 32 / 40
    )
    blocks = make_quantizer("int4", per_block(4))
    assert bits_per_weight(blocks, params, scale_bits=8) == 4 + (8 + 4) * 8 / 40
    shapes = jax.eval_shape(lambda: params)
    assert bits_per_weight(blocks, shapes) == 4 + 12 * 32 / 40


# --- the choice of formats ----------------------------------------------------------

CHOICES = [
    make_quantizer("int8"),
    make_quantizer("int2"),
    make_quantizer("int4"),
    make_quantizer("int4", per_block(8)),
]


def layers():
    rng = np.random.default_rng(3)
    params = {
        # Two shapes: every further one is a compile for each choice.
        name: jnp.asarray(rng.standard_normal((8, n)), jnp.float32)
        for name, n in zip("abcd", (4, 12, 12, 12), strict=True)
    }
    params["bias"] = jnp.ones(3)
    curvature = jax.tree.map(
        lambda w: jnp.asarray(rng.exponential(10 ** rng.normal(), w.shape)), params
    )
    return params, curvature


def options(params, curvature):
    """Bits and predicted loss of each leaf and choice, in NumPy."""
    bits, losses = [], []
    for name in "abcd":
        w, c = params[name], np.asarray(curvature[name], np.float64)
        bits.append([w.size * q.format.bits + 32 * q.scale(w).size for q in CHOICES])
        variances = [
            reference(np.array(q.format.grid), w, q.granularity)["variance"]
            for q in CHOICES
        ]
        losses.append([0.5 * np.sum(c * variance) for variance in variances])
    return np.array(bits), np.array(losses)


def first_left_out(bits, losses, budget):
    """What the first step along the convex hulls that breaks the budget would save."""
    steps = []
    for cost, loss in zip(bits, losses, strict=True):
        for i, j in itertools.permutations(range(len(cost)), 2):
            if cost[j] <= cost[i] or loss[j] >= loss[i]:
                continue
            line = loss[i] + (loss[j] - loss[i]) * (cost - cost[i]) / (
                cost[j] - cost[i]
            )
            if np.all((loss >= line - 1e-9) | ((cost > cost[j]) & (loss >= loss[j]))):
                steps.append((cost[j] - cost[i], loss[i] - loss[j]))
    spent = bits.min(1).sum()
    for cost, saved in sorted(steps, key=lambda step: -step[1] / step[0]):
        spent += cost
        if spent > budget:
            return saved
    return 0.0


def test_the_choice_is_within_budget_and_a_step_of_the_best():
    params, curvature = layers()
    bits, losses = options(params, curvature)
    num_weights = sum(params[name].size for name in "abcd")
    rows = np.arange(4)
    totals = [
        (bits[rows, list(pick)].sum(), losses[rows, list(pick)].sum())
        for pick in itertools.product(range(4), repeat=4)
    ]
    optimal = 0
    for budget in np.linspace(3.0, 9.0, 13):
        found = auto_granularity(CHOICES, params, curvature, budget)
        pick = [found.labels[name] for name in "abcd"]
        assert found.labels["bias"] == -1
        spent, lost = bits[rows, pick].sum(), losses[rows, pick].sum()
        np.testing.assert_allclose(found.mean_bits, spent / num_weights)
        np.testing.assert_allclose(found.predicted_loss, lost, rtol=1e-4)
        assert spent <= budget * num_weights
        best = min(loss for cost, loss in totals if cost <= budget * num_weights)
        slack = first_left_out(bits, losses, budget * num_weights)
        assert lost <= (best + slack) * (1 + 1e-6)
        optimal += np.isclose(lost, best, rtol=1e-6)
    assert optimal >= 8


def test_labels_serve_multi_transform():
    params, curvature = layers()
    labels = auto_granularity(CHOICES, params, curvature, 5.0).labels
    scale = {i: optax.scale(float(i + 2)) for i in range(-1, 4)}
    optimizer = optax.multi_transform(scale, labels)
    updates, _ = optimizer.update(params, optimizer.init(params))
    for name, label in labels.items():
        np.testing.assert_allclose(updates[name], (label + 2) * params[name], rtol=1e-6)


# --- bad input ----------------------------------------------------------------------

QUANTIZER = make_quantizer("int4")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p: quantization_error(QUANTIZER, p, False),
            "mask must select at least",
        ),
        (lambda p: bits_per_weight(QUANTIZER, {"b": p["b"]}), "mask must select at"),
        (lambda p: bits_per_weight(QUANTIZER, p, scale_bits=-1), "scale_bits .*got -1"),
        (
            lambda p: fraction_on_grid(QUANTIZER, p, tolerance=0.6),
            r"tolerance must be in \[0, 0.5\], got 0.6",
        ),
        (
            lambda p: quantized_loss(
                lambda p: 0.0, cast(Any, QUANTIZER), p, jax.random.key(0), 0
            ),
            "num_samples .*got 0",
        ),
        (
            lambda p: auto_granularity([], p, p, 4.0),
            "quantizers must hold at least one",
        ),
        (
            lambda p: auto_granularity(CHOICES, p, jax.tree.map(jnp.ones_like, p), 2.0),
            "mean_bits must be at least 3.6, .*got 2",
        ),
        (
            lambda p: auto_granularity(CHOICES, p, {"a": p["a"]}, 4.0),
            "curvature must be a pytree like params",
        ),
        (
            lambda p: auto_granularity(
                CHOICES,
                jax.tree.map(lambda x: jnp.nan * x, p),
                jax.tree.map(jnp.ones_like, p),
                9.0,
            ),
            r"params\['a'\] and its curvature must predict finite losses",
        ),
        (
            lambda p: jax.jit(lambda c: auto_granularity(CHOICES, p, c, 9.0).labels)(p),
            r"curvature\['a'\] must be concrete, got a tracer",
        ),
        (
            lambda p: auto_granularity(cast(Any, ["int4"]), p, p, 9.0),
            r"quantizers\[0\] must be made by make_quantizer",
        ),
        (
            lambda p: auto_granularity(CHOICES, p, p, 4.0, mask=False),
            "mask must select at least one weight",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(tree())
