"""Scales, neighbours and roundings against a transcription in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding_reference import reference

from jaxopt_suite.quantization import (
    get_format,
    make_quantizer,
    per_block,
    per_channel,
    per_tensor,
)

GRANULARITIES = (per_channel(0), per_block(3, 0), per_block(3))


def weights(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def grid(quantizer):
    return np.asarray(quantizer.format.grid)


@functools.cache
def compiled(quantizer):
    """Everything of an array at once: few compiles."""

    @jax.jit
    def everything(w):
        return {
            "cast": quantizer.round_nearest(w),
            "scale": quantizer.scale(w),
            "cell": quantizer.neighbours(w),
            "variance": quantizer.variance(w),
            "codes": quantizer.codes(w),
        }

    return everything


# --- against the transcription ------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "granularity"),
    [
        *(("int4", g) for g in GRANULARITIES),
        ("fp4", per_block(3)),
        pytest.param("nf4", per_block(3), marks=pytest.mark.slow),
    ],
)
def test_everything_equals_its_formula_in_every_granularity(name, granularity):
    quantizer = make_quantizer(name, granularity)
    w = weights((7, 8))
    got, expected = compiled(quantizer)(w), reference(grid(quantizer), w, granularity)
    np.testing.assert_allclose(got["cast"], expected["nearest"], rtol=1e-6)
    lo, hi, delta = got["cell"]
    inside = (expected["delta"] > 1e-5) & (expected["delta"] < 1 - 1e-5)
    assert inside.sum() >= 20
    np.testing.assert_array_equal(lo[inside], np.float32(expected["lo"])[inside])
    np.testing.assert_array_equal(hi[inside], np.float32(expected["hi"])[inside])
    np.testing.assert_allclose(delta[inside], expected["delta"][inside], atol=1e-5)
    np.testing.assert_allclose(
        got["variance"] / expected["scale"] ** 2,
        expected["variance"] / expected["scale"] ** 2,
        atol=1e-5,
    )
    codes, scales = got["codes"]
    back = quantizer.dequantize(codes, scales)
    np.testing.assert_allclose(back, got["cast"], rtol=2e-7)


def test_the_shape_of_scales():
    w, name = weights((6, 5, 8)), "fp4"
    for granularity, shape in [
        (per_tensor(), ()),
        (per_channel(1), (1, 5, 1)),
        (per_block(4), (6, 5, 2)),
        (per_block(4, 0), (2, 5, 8)),
        (per_block(9, 1), (6, 1, 8)),
    ]:
        scale = make_quantizer(name, granularity).scale(w)
        assert scale.shape == shape
        assert scale.dtype == jnp.float32
    top = get_format(name).qmax
    np.testing.assert_allclose(
        make_quantizer(name, per_channel(1)).scale(w)[0, :, 0],
        np.abs(w).max((0, 2)) / top,
        rtol=3e-7,
    )


@pytest.mark.parametrize("name", ["int8", pytest.param("fp8", marks=pytest.mark.slow)])
def test_the_other_formats_too(name):
    quantizer, w = make_quantizer(name, per_block(16)), weights((50, 32), 1)
    got = compiled(quantizer)(w)
    expected = reference(grid(quantizer), w, quantizer.granularity)
    # Off by a step only where a float32 cannot tell which neighbour is nearer.
    tied = abs(expected["delta"] - 0.5) < 1e-4
    missed = abs(got["cast"] - expected["nearest"])
    assert np.all((missed <= 1e-6 * abs(expected["nearest"])) | tied)
    step = expected["scale"] * (expected["hi"] - expected["lo"])
    missed = abs(got["variance"] - expected["variance"])
    assert np.all(missed <= 1e-6 * abs(w) * step)


def test_ties_go_to_the_even_code():
    middles = {
        "fp4": ([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], [0.0, 1, 1, 2, 2, 4, 4]),
        "int4": ([0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5], [0.0, 2, 2, 4, 4, 6, 6]),
        "int2": ([0.5], [0.0]),
    }
    for name, (tied, expected) in middles.items():
        top = get_format(name).qmax
        both = np.array([top, *tied, *(-t for t in tied)], np.float32)
        got = make_quantizer(name).round_nearest(both)
        np.testing.assert_array_equal(got, [top, *expected, *(-e for e in expected)])


def test_grid_values_are_their_own_lower_neighbour_but_for_the_last():
    for name in ("int2", "int4", "fp4", "nf4"):
        fmt = get_format(name)
        values = np.asarray(fmt.grid, np.float32)
        lo, hi, delta = make_quantizer(name).neighbours(values)
        np.testing.assert_array_equal(lo, [*values[:-1], values[-2]])
        np.testing.assert_array_equal(hi, [*values[1:], values[-1]])
        np.testing.assert_array_equal(delta, [0.0] * (len(values) - 1) + [1.0])


# --- unbiased -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "granularity"),
    [
        pytest.param(name, granularity, marks=() if fast else pytest.mark.slow)
        for name in ("int2", "int3", "int4", "int8", "fp4")
        for granularity in (per_tensor(), per_channel(0), per_block(3))
        for fast in [(name, granularity.kind) == ("fp4", "block")]
    ],
)
def test_random_rounding_has_the_mean_and_the_variance_it_should(name, granularity):
    # 5.5 standard errors: 4e-8 each, below 1e-4 for all 15 * 64 weights.
    num_draws = 200_000
    quantizer, w = make_quantizer(name, granularity), weights((8, 8), 2)
    keys = jax.random.split(jax.random.key(1), num_draws)
    sums, squares = (np.float64(x).sum(0) for x in errors_of(quantizer, keys, w))
    expected = reference(grid(quantizer), w, granularity)
    error = np.abs(sums) / num_draws
    step = expected["scale"] * (expected["hi"] - expected["lo"])
    enough = num_draws * expected["delta"] * (1 - expected["delta"]) >= 100
    assert enough.sum() >= 16
    standard_error = np.sqrt(expected["variance"] / num_draws)
    assert np.all(np.where(enough, error <= 5.5 * standard_error, error <= 1e-3 * step))
    np.testing.assert_allclose(
        squares / num_draws,
        expected["variance"],
        atol=0.02 * expected["variance"].max(),
    )


@functools.partial(jax.jit, static_argnums=0)
def errors_of(quantizer, keys, w):
    """Sums over 200 parts of the draws' errors and of their squares."""
    errors = draw_all(quantizer, keys, w) - w
    errors = errors.reshape(200, -1, *w.shape)
    return errors.sum(1), (errors**2).sum(1)


@functools.partial(jax.jit, static_argnums=0)
def draw_all(quantizer, keys, w):
    return jax.vmap(quantizer.round_random, (0, None))(keys, w)


@pytest.mark.slow
def test_weights_are_rounded_independently():
    # Correlations of 20,000 draws of 64 weights: 6 standard errors, 2e-9 * 2016.
    w = weights((8, 8), 3)
    keys = jax.random.split(jax.random.key(2), 20_000)
    draws = np.asarray(draw_all(make_quantizer("int3"), keys, w)).reshape(-1, 64)
    varying = draws.std(axis=0) > 0.1 * draws.std(axis=0).max()
    correlation = np.corrcoef(draws[:, varying].T)
    np.fill_diagonal(correlation, 0.0)
    assert np.abs(correlation).max() <= 6 / np.sqrt(20_000)


# --- rounded arrays are fixed points ------------------------------------------------


def million(granularity):
    w = weights((31_250, 32), 4)
    if granularity.kind == "block":
        w[:300] *= np.float32(1e-42)
        w[300:600] *= np.float32(1e30)
        w[600:900] *= np.float32(1e-37)
    return w


@pytest.mark.parametrize(
    ("name", "granularity"),
    [
        ("int4", per_block(32)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("int4", per_tensor()),
                ("int4", per_channel(1)),
                ("int8", per_block(32)),
                ("fp4", per_block(32)),
                ("nf4", per_block(32)),
            ]
        ),
    ],
)
def test_a_second_rounding_changes_no_bit(name, granularity):
    quantizer, w = make_quantizer(name, granularity), million(granularity)
    first = twice(quantizer)(w)
    for rounded in first[:2]:
        assert np.all(np.isfinite(rounded))
        nearest, random, scale, variance = twice(quantizer)(rounded)
        np.testing.assert_array_equal(nearest, rounded)
        np.testing.assert_array_equal(random, rounded)
        np.testing.assert_array_equal(scale, first[2])
        assert not np.any(variance)
        # By itself or within a larger program: the same bits.
        np.testing.assert_array_equal(quantizer.round_nearest(rounded), rounded)


@functools.cache
def twice(quantizer):
    """Both roundings, the scale and the variance, in one program."""

    @jax.jit
    def both(w):
        random = quantizer.round_random(jax.random.key(0), w)
        return (
            quantizer.round_nearest(w),
            random,
            quantizer.scale(w),
            quantizer.variance(w),
        )

    return both


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("int8", jnp.bfloat16),
        pytest.param("int4", jnp.bfloat16, marks=pytest.mark.slow),
        pytest.param("fp4", jnp.float16, marks=pytest.mark.slow),
    ],
)
def test_a_second_rounding_changes_no_bit_of_narrow_weights(name, dtype):
    quantizer = make_quantizer(name, per_block(32))
    w = jnp.asarray(weights((2_000, 32), 5), dtype)
    first = twice(quantizer)(w)
    assert first[2].dtype == first[3].dtype == jnp.float32
    for rounded in first[:2]:
        assert rounded.dtype == dtype
        nearest, random, _, variance = twice(quantizer)(rounded)
        np.testing.assert_array_equal(nearest, rounded)
        np.testing.assert_array_equal(random, rounded)
        assert not np.any(variance)
    # The rounding is that of float32, then cast.
    wide = quantizer.round_nearest(w.astype(jnp.float32))
    np.testing.assert_array_equal(first[0], wide.astype(dtype))
