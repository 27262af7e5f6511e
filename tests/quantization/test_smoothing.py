"""The smoothed loss against enumeration corner by corner, and its estimators."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding_reference import grid_of, reference

from jaxopt_suite.quantization import (
    exact_smoothed_loss,
    flip_gradient,
    gauss_newton_loss,
    get_format,
    make_quantizer,
    monte_carlo_smoothed_loss,
    per_block,
    per_tensor,
    quadratic_smoothed_loss,
    quantized_loss,
)


def corners_of(name, w, granularity=None):
    """All roundings of a vector and their probabilities, in NumPy."""
    r = reference(grid_of(name), w, granularity or per_tensor())
    up = np.array(list(np.ndindex(*(2,) * w.size)), bool)
    probabilities = np.prod(np.where(up, r["delta"], 1 - r["delta"]), axis=1)
    return r["scale"] * np.where(up, r["hi"], r["lo"]), probabilities


def quadratic(d, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((d, d))
    return a @ a.T / d, rng.standard_normal(d), rng.standard_normal(d)


# --- quadratics ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "x64"),
    [
        ("int4", True),
        pytest.param("int4", False, marks=pytest.mark.slow),
        pytest.param("fp4", False, marks=pytest.mark.slow),
        pytest.param("fp4", True, marks=pytest.mark.slow),
    ],
)
def test_for_a_quadratic_it_is_the_loss_and_the_weighted_variance(name, x64):
    hessian, w_star, w = quadratic(8, 0)
    corners, probabilities = corners_of(name, w)
    offsets = corners - w_star
    expected = probabilities @ np.einsum("ci,ij,cj->c", offsets, hessian, offsets) / 2
    unit = 1e-12 if x64 else 1e-5
    quantizer = make_quantizer(name)

    def three_ways(hessian, w_star, w):
        loss = lambda q: (q - w_star) @ hessian @ (q - w_star) / 2  # noqa: E731
        return (
            exact_smoothed_loss(loss, quantizer, w),
            quadratic_smoothed_loss(hessian, w_star, quantizer, w),
            gauss_newton_loss(loss, quantizer, jnp.diag(hessian), mask=True)(w),
        )

    with jax.enable_x64(x64):
        found = jax.jit(three_ways)(*(jnp.asarray(x) for x in (hessian, w_star, w)))
    np.testing.assert_allclose(found, expected, rtol=unit)


def test_blocks_have_scales_of_their_own():
    hessian, w_star, w = quadratic(8, 1)
    granularity = per_block(3)
    corners, probabilities = corners_of("int3", w, granularity)
    offsets = corners - w_star
    expected = probabilities @ np.einsum("ci,ij,cj->c", offsets, hessian, offsets) / 2
    quantizer = make_quantizer("int3", granularity)
    loss = lambda q: (q - w_star) @ hessian @ (q - w_star) / 2  # noqa: E731
    got = jax.jit(lambda w: exact_smoothed_loss(loss, quantizer, w))(w)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.slow
def test_the_gradient_of_the_penalized_loss_is_that_of_the_smoothed_one():
    hessian, w_star, w = (jnp.asarray(x, jnp.float32) for x in quadratic(8, 2))
    quantizer = make_quantizer("int4")
    loss = lambda q: (q - w_star) @ hessian @ (q - w_star) / 2  # noqa: E731
    exact = jax.jit(jax.grad(lambda w: exact_smoothed_loss(loss, quantizer, w)))(w)
    penalized = gauss_newton_loss(loss, quantizer, jnp.diag(hessian), mask=True)
    got = jax.jit(jax.grad(penalized))(w)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5)


# --- the same least value as the quantized loss -------------------------------------


def losses_of(q):
    """Of the last axis: a wavy loss in a bowl, and a bowl."""
    a, b = q[..., 0], q[..., 1]
    valley = 0.3 * (a - 0.7) ** 2 + 0.2 * (b + 0.4) ** 2
    waves = jnp.sin(3 * a) * jnp.cos(2 * b) + valley
    return jnp.stack([waves, (a - 1) ** 2 + 3 * (b - 0.43) ** 2], -1)


@functools.cache
def evaluated(name):
    """Nodes of a square and their casts: smoothed loss, least corner, loss, cast."""
    quantizer = make_quantizer(name)
    axis = np.linspace(-2, 2, 401)
    nodes = jnp.asarray(np.stack(np.meshgrid(axis, axis, indexing="ij"), -1))

    @jax.jit
    @jax.vmap
    @jax.vmap
    def evaluate(w):
        lo, hi, _ = quantizer.neighbours(w)
        corners = quantizer.scale(w) * jnp.stack(
            [jnp.stack([a, b]) for a in (lo[0], hi[0]) for b in (lo[1], hi[1])]
        )
        smoothed = [
            exact_smoothed_loss(lambda q: losses_of(q)[i], quantizer, w) for i in (0, 1)
        ]
        cast = quantizer.round_nearest(w)
        least = jnp.min(losses_of(corners), axis=0)
        return jnp.stack(smoothed), least, losses_of(cast), cast

    at_nodes = evaluate(nodes)
    return jax.tree.map(np.asarray, (at_nodes, evaluate(at_nodes[-1])))


def on_nodes(name, loss):
    """Of one loss."""
    return [(*(x[..., loss] for x in found[:3]), found[3]) for found in evaluated(name)]


@pytest.mark.parametrize(
    "name",
    ["int3", *(pytest.param(n, marks=pytest.mark.slow) for n in ("int2", "int4"))],
)
@pytest.mark.parametrize("loss", [0, 1])
def test_smoothing_keeps_the_least_value_and_where_it_is(loss, name):
    (smoothed, least, of_cast, cast), at_casts = on_nodes(name, loss)
    assert np.all(smoothed >= least - 1e-6 * (1 + np.abs(smoothed)))
    np.testing.assert_array_equal(at_casts[3], cast)
    np.testing.assert_allclose(at_casts[0], of_cast, rtol=1e-6, atol=1e-6)
    least_smoothed = min(smoothed.min(), at_casts[0].min())
    np.testing.assert_allclose(least_smoothed, of_cast.min(), atol=1e-6)
    # And it is attained at a quantized point.
    assert at_casts[0].min() <= smoothed.min() + 1e-6


@pytest.mark.slow
def test_a_bowl_has_another_least_point_in_every_format():
    found, waves_least = [], []
    for name in ("int2", "int3", "int4"):
        (_, _, of_cast, cast), _ = on_nodes(name, 1)
        found.append(cast[np.unravel_index(np.argmin(of_cast), of_cast.shape)])
        waves_least.append(on_nodes(name, 0)[0][2].min())
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(found[i] - found[j]).max() > 1e-3
    np.testing.assert_allclose(waves_least, -0.7546913, atol=2e-6)


# --- estimators ---------------------------------------------------------------------


def steep(q):
    return jnp.tanh(jnp.sum(q * jnp.arange(1.0, 9.0))) + 0.1 * jnp.sum(q**4)


steep_all = jax.jit(jax.vmap(steep))


@pytest.mark.slow
def test_the_monte_carlo_estimate_converges_with_one_over_the_root_of_samples():
    w = np.random.default_rng(3).standard_normal((1, 8)).astype(np.float32)
    quantizer = make_quantizer("int3")
    corners, probabilities = corners_of("int3", w[0])
    losses = np.asarray(steep_all(corners), np.float64)
    exact = probabilities @ losses
    sd = np.sqrt(probabilities @ losses**2 - exact**2)
    params = {"w": jnp.asarray(w), "b": jnp.ones(3)}

    def estimates(num_samples):
        estimate = lambda key: monte_carlo_smoothed_loss(  # noqa: E731
            lambda p: steep(p["w"][0]), quantizer, params, key, num_samples
        )
        keys = jax.random.split(jax.random.key(num_samples), 400)
        return np.asarray(jax.jit(jax.vmap(estimate))(keys), np.float64)

    for num_samples in (4, 256):
        found = estimates(num_samples)
        expected = sd / np.sqrt(num_samples)
        # A mean within 5.5 standard errors, a standard deviation (of 400) within six.
        assert abs(found.mean() - exact) <= 5.5 * expected / 20 + 1e-5
        np.testing.assert_allclose(found.std(), expected, rtol=6 / np.sqrt(800))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int3", "fp4"])
def test_the_flip_gradient_is_unbiased(name):
    # Five standard errors for each of 8 weights and two formats: 6e-7 * 16 < 1e-5.
    w = np.random.default_rng(5).standard_normal(8).astype(np.float32)
    quantizer = make_quantizer(name)
    r = reference(grid_of(name), w, per_tensor())
    corners, _ = corners_of(name, w)
    losses = np.asarray(steep_all(corners), np.float64).reshape((2,) * 8)
    expected = np.zeros(8)
    for i in range(8):
        # The slope along weight i, averaged over the roundings of the others.
        others = np.where(np.arange(8) == i, 0.5, r["delta"])
        flip = np.take(losses, 1, i) - np.take(losses, 0, i)
        for j in reversed([j for j in range(8) if j != i]):
            axis = j if j < i else j - 1
            low, high = np.take(flip, 0, axis), np.take(flip, 1, axis)
            flip = (1 - others[j]) * low + others[j] * high
        expected[i] = flip / (r["scale"][i] * (r["hi"][i] - r["lo"][i]))
    largest = np.argmax(np.abs(w))
    expected[largest] = 0.0

    one = lambda key: flip_gradient(steep, quantizer, jnp.asarray(w), key, 1)  # noqa: E731
    keys = jax.random.split(jax.random.key(6), 20_000)
    samples = np.asarray(jax.jit(jax.vmap(one))(keys), np.float64)
    error = np.abs(samples.mean(0) - expected)
    assert np.all(error <= 5 * samples.std(0) / np.sqrt(20_000) + 1e-6)
    assert samples[:, largest].std() == 0
    several = flip_gradient(steep, quantizer, jnp.asarray(w), jax.random.key(7), 3)
    keys = jax.random.split(jax.random.key(7), 3)
    expected = np.mean([single(quantizer, w, key) for key in keys], axis=0)
    np.testing.assert_allclose(several, expected, rtol=1e-4, atol=1e-6)


def single(quantizer, w, key):
    """One sample of the flip gradient, coordinate by coordinate."""
    draw = np.asarray(quantizer.round_random(key, w))
    lo, hi, _ = (np.asarray(x) for x in quantizer.neighbours(w))
    scale, slopes = float(quantizer.scale(w)), np.zeros(w.size)
    for i in range(w.size):
        both = np.stack([draw, draw])
        both[:, i] = scale * lo[i], scale * hi[i]
        low, high = (float(x) for x in steep_all(both))
        slopes[i] = (high - low) / (scale * (hi[i] - lo[i]))
    slopes[np.argmax(np.abs(w))] = 0.0
    return slopes


def test_on_the_grid_the_flip_gradient_is_the_mean_of_both_slopes():
    quantizer = make_quantizer("fp4")
    w = jnp.array([6.0, 2.0, -0.5, 0.0, 2.0])
    cube = lambda q: jnp.sum(q**3)  # noqa: E731
    estimate = lambda w: flip_gradient(cube, quantizer, w, jax.random.key(8), 2)  # noqa: E731
    got = jax.jit(estimate)(w)
    slope = lambda a, b: (b**3 - a**3) / (b - a)  # noqa: E731
    expected = [
        0.0,
        (slope(1.5, 2) + slope(2, 3)) / 2,
        (slope(-1, -0.5) + slope(-0.5, 0)) / 2,
        (slope(-0.5, 0) + slope(0, 0.5)) / 2,
        (slope(1.5, 2) + slope(2, 3)) / 2,
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


# --- narrow, zero, refused ----------------------------------------------------------


@functools.cache
def smoothed_with_slope(loss):
    quantizer = make_quantizer("int3")
    smoothed = lambda w: exact_smoothed_loss(loss, quantizer, w)  # noqa: E731
    return jax.jit(jax.value_and_grad(smoothed))


@pytest.mark.parametrize(
    ("fn", "slope"),
    [(jnp.log, lambda x: 1 / x), (jnp.sqrt, lambda x: 0.5 / np.sqrt(x))],
)
def test_what_is_infinite_at_a_rounding_that_never_comes_does_no_harm(fn, slope):
    # The first weight stays 3; at its other neighbour, 2, the logarithm and the slope
    # of the root are infinite.
    evaluate = smoothed_with_slope(lambda q: fn(q[0] - 2) + q[1] ** 3)
    value, grad = evaluate(jnp.array([3.0, 0.75]))
    np.testing.assert_allclose(value, float(fn(1.0)) + 0.75, rtol=1e-6)
    # With a = w_0 / 3 and p = w_1 / a: fn(w_0 - 2) + p a^3 = fn(w_0 - 2) + w_1 a^2.
    np.testing.assert_allclose(grad, [slope(1.0) + 2 * 0.75 / 3, 1.0], rtol=1e-6)


def test_what_is_infinite_at_a_rounding_that_may_come_is_not_hidden():
    value, _ = smoothed_with_slope(lambda q: jnp.sum(jnp.log(q)))(jnp.array([3.0, 0.5]))
    assert value == -np.inf
    value, _ = smoothed_with_slope(lambda q: jnp.sum(jnp.log(q - 3)))(jnp.array([3.0]))
    assert np.isnan(value)


def test_nothing_is_added_at_strength_zero():
    quantizer, w = make_quantizer("int3"), jnp.array([[3.0, 0.75]])
    for size, curvature in ((1e25, 1.0), (1.0, np.inf)):
        loss = gauss_newton_loss(
            lambda w: jnp.sum(2 * w), quantizer, curvature + 0 * w, strength=0.0
        )
        value, grad = jax.value_and_grad(loss)(size * w)
        np.testing.assert_allclose(value, size * 7.5, rtol=1e-6)
        np.testing.assert_array_equal(grad, [[2.0, 2.0]])
    # The slope along the strength is half the variance.
    along = lambda s: gauss_newton_loss(jnp.sum, quantizer, 1 + 0 * w, s)(w)  # noqa: E731
    np.testing.assert_allclose(jax.grad(along)(0.0), 0.09375)


@pytest.mark.parametrize("number", [2, 2.0, True])
def test_a_loss_may_be_any_real_number(number):
    quantizer, w = make_quantizer("int3"), jnp.array([[3.0, 0.75]])
    found = gauss_newton_loss(lambda w: number, quantizer, 1 + 0 * w)(w)
    np.testing.assert_allclose(found, float(number) + 0.09375)
    assert exact_smoothed_loss(lambda w: number, quantizer, w) == float(number)


def test_empty_arrays_and_lists():
    quantizer, empty = make_quantizer("int4"), jnp.zeros((0, 2))
    loss = lambda w: jnp.sum(w) + 3.0  # noqa: E731
    assert exact_smoothed_loss(loss, quantizer, empty) == 3.0
    key = jax.random.key(0)
    assert flip_gradient(loss, quantizer, empty, key, 2).shape == (0, 2)
    hessian: Any = [[2.0, 0.0], [0.0, 2.0]]
    w_star, w = cast(Any, [7.0, 2.0]), cast(Any, [7.0, 2.5])
    found = quadratic_smoothed_loss(hessian, w_star, quantizer, w)
    np.testing.assert_allclose(found, 0.25 + 0.25)


def test_zero_and_bfloat16_weights():
    quantizer = make_quantizer("int4", per_block(2))
    w = jnp.array([0.0, 0.0, 1.0, 0.3], jnp.bfloat16)
    total = lambda q: jnp.sum(q.astype(jnp.float32))  # noqa: E731
    smoothed = lambda w: exact_smoothed_loss(total, quantizer, w)  # noqa: E731
    value, grad = jax.jit(jax.value_and_grad(smoothed))(w)
    assert grad.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(grad), [0.0, 0.0, 1.0, 1.0], rtol=0.02)
    np.testing.assert_allclose(value, 1.3, rtol=0.01)
    flip = lambda w: flip_gradient(total, quantizer, w, jax.random.key(9), 2)  # noqa: E731
    flips = jax.jit(flip)(w)
    assert flips.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(flips), [0.0, 0.0, 0.0, 1.0], rtol=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: exact_smoothed_loss(jnp.sum, q, jnp.ones(17)), "at most 16.*got 17"),
        (
            lambda q: monte_carlo_smoothed_loss(
                jnp.sum, q, jnp.ones((2, 2)), jax.random.key(0), 0
            ),
            "num_samples must be an integer >= 1, got 0",
        ),
        (
            lambda q: flip_gradient(jnp.sum, q, jnp.ones(2), jax.random.key(0), 0),
            "num_samples must be an integer >= 1, got 0",
        ),
        *(
            (call, r"loss must return a scalar, got float32 of shape \(2,\)")
            for call in (
                lambda q: exact_smoothed_loss(jnp.abs, q, jnp.ones(2)),
                lambda q: flip_gradient(jnp.abs, q, jnp.ones(2), jax.random.key(0), 1),
                lambda q: gauss_newton_loss(jnp.abs, q, jnp.ones(2), mask=True)(
                    jnp.ones(2)
                ),
            )
        ),
        *(
            (
                lambda q, fn=fn: fn(jnp.sum, q, jnp.ones(2), cast(Any, None), 1),
                "key must .*None",
            )
            for fn in (monte_carlo_smoothed_loss, flip_gradient, quantized_loss)
        ),
        (lambda q: gauss_newton_loss(jnp.sum, q.format, 1.0), "by make_quantizer, got"),
        (
            lambda q: quadratic_smoothed_loss(jnp.eye(2), jnp.ones(3), q, jnp.ones(2)),
            r"shapes .*got \(2, 2\), \(3,\) and \(2,\)",
        ),
        (
            lambda q: gauss_newton_loss(jnp.sum, q, jnp.ones((2, 2)), -1.0),
            "strength must be >= 0, got -1.0",
        ),
        (
            lambda q: gauss_newton_loss(jnp.sum, q, -jnp.ones((2, 2)))(
                jnp.ones((2, 2))
            ),
            "curvature must be >= 0",
        ),
        (
            lambda q: gauss_newton_loss(jnp.sum, q, jnp.ones(2))(jnp.ones((2, 2))),
            r"curvature must have shape \(2, 2\), got \(2,\)",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(make_quantizer(get_format("int4")))
