"""Medians, medians of means and the smoothed form, against NumPy and exact laws."""

import math

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings

from jaxopt_suite.stochastic import (
    exact_median,
    median_of_means,
    median_of_means_tree,
)

# Compiled, because every eager call of a network compiles its slices one by one.
median = jax.jit(exact_median, static_argnums=1)
mom = jax.jit(median_of_means, static_argnums=1, static_argnames="axis")


def heavy(shape, seed=0):
    """Cauchy draws with a few shared values, so that ties occur."""
    x = np.random.default_rng(seed).standard_cauchy(shape)
    return np.where(np.abs(x) < 0.1, 0.0, x)


def numpy_median_of_means(samples, num_groups):
    groups = samples.reshape(num_groups, -1, *samples.shape[1:])
    return np.median(groups.astype(np.float64).mean(axis=1), axis=0)


# --- the median ---------------------------------------------------------------------


def median_matches_jax(sizes):
    arrays = {n: jnp.asarray(heavy((n, 17), seed=n), jnp.float32) for n in sizes}
    both = jax.jit(
        lambda arrays: {
            n: (exact_median(x), jnp.median(x, 0)) for n, x in arrays.items()
        },
        compiler_options={"xla_backend_optimization_level": 0},
    )(arrays)
    for n, (ours, theirs) in both.items():
        np.testing.assert_array_equal(ours, theirs, err_msg=f"size {n}")
        np.testing.assert_array_equal(
            ours, np.median(np.asarray(arrays[n]), 0), err_msg=f"size {n}"
        )


def test_the_median_equals_jax_and_numpy_bit_for_bit():
    median_matches_jax([1, 2, 3, 4, 5, 8, 9, 15, 31, 66])


@pytest.mark.slow
def test_the_median_equals_jax_and_numpy_bit_for_bit_at_every_size():
    median_matches_jax(range(1, 65))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_the_median_along_any_axis(axis):
    x = heavy((5, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(median(x, axis), np.median(x, axis))


def test_the_median_of_a_vector_is_a_scalar():
    assert median(np.array([3.0, 1.0, 2.0], np.float32)) == 2.0
    assert median(np.array([3.0, 1.0, 2.0, 10.0], np.float32)) == 2.5


@pytest.mark.parametrize("size", [6, 7, 65])
def test_a_nan_reaches_its_coordinate_and_no_other(size):
    for row in range(0, size, max(1, size // 7)):
        x = heavy((size, 3)).astype(np.float32)
        x[row, 1] = np.nan
        ours = np.asarray(median(x))
        assert np.isnan(ours[1])
        np.testing.assert_array_equal(ours[[0, 2]], np.median(x, 0)[[0, 2]])


@pytest.mark.parametrize("size", [5, 8, 65])
def test_infinities_sort_as_the_largest_and_the_smallest(size):
    x = np.tile(heavy(size).astype(np.float32)[:, None], 4)
    few = (size - 1) // 2
    x[:few, 0], x[:few, 1], x[: few + 2, 2], x[-few - 2 :, 3] = (
        np.inf,
        -np.inf,
        np.inf,
        -np.inf,
    )
    ordered = np.sort(x, axis=0)
    low, high = ordered[(size - 1) // 2], ordered[size // 2]
    np.testing.assert_array_equal(median(x), (low + high) / 2)
    assert np.isfinite(np.asarray(median(x))[:2]).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("size", [6, 7])
def test_the_median_keeps_narrow_dtypes(dtype, size):
    x = jnp.asarray(heavy((size, 9)), dtype)
    ours = median(x)
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, jnp.median(x, axis=0))


def test_the_median_refuses_integers_and_nothing():
    with pytest.raises(ValueError, match="x must have a floating dtype, got int32"):
        exact_median(jnp.arange(3))
    with pytest.raises(ValueError, match=r"size of x along axis 1 .*got 0"):
        exact_median(jnp.zeros((2, 0)), axis=1)


# --- the median of means ------------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(1, 6), (3, 1), (5, 4), (15, 4), (67, 2)])
def test_it_equals_numpy_in_float32_and_float64(k, n):
    samples = heavy((k * n, 2, 3), seed=k)
    largest = np.abs(samples).max(axis=0)
    narrow = samples.astype(np.float32)
    ours = np.asarray(mom(narrow, k))
    assert ours.dtype == np.float32
    assert np.all(np.abs(ours - numpy_median_of_means(narrow, k)) <= 1e-6 * largest)
    with jax.enable_x64(True):
        ours = np.asarray(mom(jnp.asarray(samples), k))
    assert ours.dtype == np.float64
    assert np.all(np.abs(ours - numpy_median_of_means(samples, k)) <= 1e-14 * largest)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_it_reduces_any_axis(axis):
    samples = heavy((6, 6, 6)).astype(np.float32)
    expected = numpy_median_of_means(np.moveaxis(samples, axis, 0), 3)
    ours = mom(samples, 3, axis=axis)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_one_group_is_the_mean_and_one_sample_a_group_is_the_median():
    samples = heavy((15, 4)).astype(np.float32)
    mean = samples.astype(np.float64).mean(0)
    tolerance = 1e-6 * np.abs(samples).max()
    np.testing.assert_allclose(mom(samples, 1), mean, atol=tolerance)
    np.testing.assert_array_equal(mom(samples, 15), np.median(samples, 0))


def test_a_tree_is_reduced_leaf_by_leaf_and_keeps_its_dtypes():
    samples = {
        "w": jnp.asarray(heavy((6, 2, 2)), jnp.float32),
        "b": (jnp.asarray(heavy(6), jnp.bfloat16), jnp.zeros((6, 0)), None),
    }
    reduced = jax.jit(lambda s: median_of_means_tree(s, 3))(samples)
    assert jax.tree.structure(reduced) == jax.tree.structure(samples)
    for ours, leaf in zip(
        jax.tree.leaves(reduced), jax.tree.leaves(samples), strict=True
    ):
        assert (ours.shape, ours.dtype) == (leaf.shape[1:], leaf.dtype)
        if leaf.size:
            np.testing.assert_array_equal(ours, mom(leaf, 3))
    assert median_of_means_tree({}, 3) == {}


def test_means_of_narrow_floats_are_taken_in_float32():
    # In bfloat16 a running sum of ones stops at 256: the mean of 1024 would be 1/4.
    samples = jnp.ones((3 * 1024, 2), jnp.bfloat16)
    np.testing.assert_array_equal(mom(samples, 3), jnp.ones(2))


def test_jit_and_vmap_equal_the_plain_call():
    samples = jnp.asarray(heavy((4, 15, 3)), jnp.float32)
    plain = jnp.stack([mom(s, 5) for s in samples])
    mapped = jax.jit(jax.vmap(lambda s: mom(s, 5)))(samples)
    np.testing.assert_allclose(mapped, plain, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_one_nth_on_the_samples_of_the_middle_group():
    samples = heavy((15, 4)).astype(np.float32) + np.arange(15)[:, None] * 1e-3
    means = samples.reshape(5, 3, 4).mean(axis=1)
    middle = np.argsort(means, axis=0)[2]
    expected = np.zeros((5, 3, 4))
    expected[middle, :, np.arange(4)] = 1 / 3
    gradient = jax.grad(lambda s: jnp.sum(mom(s, 5)))(samples)
    np.testing.assert_allclose(gradient, expected.reshape(15, 4), rtol=1e-6)


def test_infinities_in_a_minority_of_groups_leave_it_finite_and_nan_shows():
    samples = heavy((10, 3)).astype(np.float32)
    samples[0, 0], samples[3, 0] = np.inf, np.inf
    samples[0, 1], samples[3, 1], samples[5, 1] = np.inf, np.inf, np.inf
    samples[9, 2] = np.nan
    reduced = np.asarray(mom(samples, 5))
    assert np.isfinite(reduced[0])
    assert reduced[1] == np.inf
    assert np.isnan(reduced[2])


# --- what a corrupted minority and an affine map do ---------------------------------

ANYTHING = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from(
    [np.inf, -np.inf, 1e30, -1e30]
)
MODERATE = st.floats(-1e3, 1e3, width=32)
# XLA on CPU takes numbers below it for 0: twenty such losses, times a factor of 1e3.
TINY = 2e4 * np.finfo(np.float32).tiny


@given(data=st.data(), k=st.sampled_from([3, 5, 15]))
@settings(deadline=None, max_examples=60)
def test_a_corrupted_minority_stays_within_the_range_of_the_others(data, k):
    clean = data.draw(hnp.arrays(np.float32, (k, 2), elements=MODERATE))
    bad_rows = data.draw(
        st.lists(st.integers(0, k - 1), unique=True, max_size=(k - 1) // 2)
    )
    values = data.draw(hnp.arrays(np.float32, (len(bad_rows), 2), elements=ANYTHING))
    samples = clean.copy()
    samples[bad_rows] = values
    untouched = np.delete(clean, bad_rows, axis=0)
    reduced = np.asarray(mom(samples, k))
    assert np.all(untouched.min(axis=0) - TINY <= reduced)
    assert np.all(reduced <= untouched.max(axis=0) + TINY)


@given(
    samples=hnp.arrays(np.float32, (20, 2), elements=MODERATE),
    a=MODERATE,
    c=hnp.arrays(np.float32, 2, elements=MODERATE),
)
@settings(deadline=None, max_examples=60)
def test_it_is_equivariant_under_scaling_and_shifts(samples, a, c):
    # Means of 4 numbers in float32: a few rounding units of the largest entry.
    size = abs(a) * np.abs(samples).max() + np.abs(c).max()
    expected = a * np.asarray(mom(samples, 5)) + c
    np.testing.assert_allclose(
        mom(np.float32(a) * samples + c, 5), expected, atol=1e-6 * size + TINY
    )


@given(
    samples=hnp.arrays(np.float32, (20, 2), elements=MODERATE),
    orders=st.tuples(*[st.permutations(range(4))] * 5),
    groups=st.permutations(range(5)),
)
@settings(deadline=None, max_examples=60)
def test_the_order_within_groups_and_of_groups_does_not_matter(samples, orders, groups):
    rows = np.concatenate([4 * j + np.array(orders[j]) for j in groups])
    np.testing.assert_allclose(
        mom(samples[rows], 5),
        mom(samples, 5),
        atol=1e-6 * np.abs(samples).max() + TINY,
    )


# --- the smoothed form --------------------------------------------------------------

DRAWS = 100_000


def smoothed(means, theta, seed=0):
    """Smoothed medians of the same group means over many coordinates."""
    samples = jnp.tile(jnp.asarray(means)[:, None], DRAWS)
    key = jax.random.key(seed)
    return np.asarray(mom(samples, len(means), smoothing=theta, key=key))


def test_smoothing_adds_the_median_of_normals():
    # P(Z_(m+1) <= x) is that of a Beta(m + 1, m + 1) at Phi(x).
    k, theta, centre = 7, 0.5, 3.0
    noise = (smoothed([centre] * k, theta) - centre) / theta
    m = (k - 1) // 2
    weight = math.factorial(k) / math.factorial(m) ** 2

    def moment(order):
        phi = scipy.stats.norm
        density = lambda x: weight * (phi.cdf(x) * phi.sf(x)) ** m * phi.pdf(x)  # noqa: E731
        return scipy.integrate.quad(lambda x: x**order * density(x), -9, 9)[0]

    variance, fourth = moment(2), moment(4)
    # 5 standard errors: a false alarm in 6e-7 of the seeds, each.
    assert abs(noise.mean()) <= 5 * math.sqrt(variance / DRAWS)
    assert abs((noise**2).mean() - variance) <= 5 * math.sqrt(
        (fourth - variance**2) / DRAWS
    )
    beta = scipy.stats.beta(m + 1, m + 1)
    assert scipy.stats.kstest(scipy.stats.norm.cdf(noise), beta.cdf).pvalue > 1e-5


def test_smoothing_acts_on_group_means_before_the_median():
    # With one group at 1e9 the median is the third smallest of four normals.
    noise = smoothed([0.0, 0.0, 1e9, 0.0, 0.0], 2.0) / 2.0
    beta = scipy.stats.beta(3, 2)
    assert scipy.stats.kstest(scipy.stats.norm.cdf(noise), beta.cdf).pvalue > 1e-5


def test_the_smoothing_noise_follows_the_key():
    samples = {"a": jnp.zeros((3, 4)), "b": jnp.zeros((3, 4))}
    draw = jax.jit(lambda k: median_of_means_tree(samples, 3, smoothing=1.0, key=k))
    first, again, other = (draw(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first["a"], again["a"])
    assert not np.any(first["a"] == other["a"])
    assert not np.any(first["a"] == first["b"])


def test_smoothing_may_be_traced():
    samples, key = jnp.asarray(heavy((5, 3)), jnp.float32), jax.random.key(0)
    thetas = jnp.array([0.0, 0.3, 1.0])
    run = lambda theta: mom(samples, 5, smoothing=theta, key=key)  # noqa: E731
    swept = jax.jit(jax.vmap(run))(thetas)
    np.testing.assert_array_equal(swept[0], mom(samples, 5))
    np.testing.assert_allclose(swept[2], run(1.0), rtol=1e-6)


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize("num_groups", [0, -3, 4, 3.0, True])
def test_the_number_of_groups_must_be_a_positive_odd_integer(num_groups):
    with pytest.raises(ValueError, match=f"num_groups .*odd.*got {num_groups}"):
        median_of_means(jnp.ones((12, 2)), num_groups)


def test_the_number_of_groups_must_divide_the_batch():
    with pytest.raises(ValueError, match=r"num_groups.*batch size 10 and num_groups 3"):
        median_of_means(jnp.ones((10, 2)), 3)
    with pytest.raises(ValueError, match="batch size 0 and num_groups 3"):
        median_of_means(jnp.ones((0, 2)), 3)


def test_leaves_must_be_floating_with_one_leading_size():
    with pytest.raises(ValueError, match=r"\['b'\].* floating dtype, got int32"):
        median_of_means_tree({"a": jnp.ones(3), "b": jnp.ones(3, jnp.int32)}, 3)
    with pytest.raises(ValueError, match=r"got 3 at .*\['a'\] and 6 at .*\['b'\]"):
        median_of_means_tree({"a": jnp.ones(3), "b": jnp.ones(6)}, 3)


@pytest.mark.parametrize(
    ("smoothing", "key", "message"),
    [
        (-0.5, 0, "smoothing must be >= 0, got -0.5"),
        (math.nan, 0, "smoothing must be >= 0, got nan"),
        (0.5, None, "smoothing 0.5 needs a key, got key=None"),
    ],
)
def test_smoothing_must_be_non_negative_and_needs_a_key(smoothing, key, message):
    key = None if key is None else jax.random.key(key)
    with pytest.raises(ValueError, match=message):
        median_of_means(jnp.ones(3), 3, smoothing=smoothing, key=key)
