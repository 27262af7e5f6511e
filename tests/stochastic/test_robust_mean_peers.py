"""Geometric median, medoid, trimmed mean, per-sample clipping: against SciPy, NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from jaxopt_suite.stochastic import (
    clip_then_mean,
    geometric_median,
    medoid,
    trimmed_mean,
)


def points(shape, seed=0):
    return np.random.default_rng(seed).standard_t(2, shape)


def as_tree(samples):
    """Rows of five numbers as a pytree, to see that norms are over all of it."""
    return {"w": jnp.asarray(samples[:, :4]).reshape(-1, 2, 2), "b": samples[:, 4]}


def as_row(tree):
    return np.concatenate([np.ravel(tree["w"]), np.ravel(tree["b"])])


def group_means(samples, k):
    return samples.reshape(k, -1, samples.shape[1]).mean(axis=1)


# Compiled: an eager call runs, and compiles, operation by operation.
weiszfeld = jax.jit(geometric_median, static_argnums=1, static_argnames="num_iters")
middle = jax.jit(medoid, static_argnums=1)
trimmed = jax.jit(trimmed_mean, static_argnums=1)
clipped = jax.jit(clip_then_mean)


# --- geometric median ---------------------------------------------------------------


def assert_gradient_is_that_of_finite_differences(run, samples):
    """Central differences of the sum of ``run`` over its output, in float64."""

    @jax.jit
    def both(samples):
        total = lambda s: jnp.sum(jnp.sin(run(s)))  # noqa: E731
        moves = 1e-6 * jnp.eye(samples.size).reshape(-1, *samples.shape)
        numeric = jax.vmap(lambda m: (total(samples + m) - total(samples - m)) / 2e-6)
        return jax.grad(total)(samples).ravel(), numeric(moves)

    with jax.enable_x64(True):
        exact, numeric = both(jnp.asarray(samples))
    np.testing.assert_allclose(exact, numeric, rtol=1e-6, atol=1e-8)


def total_distance(z, means):
    return np.linalg.norm(means - z, axis=1).sum()


@pytest.mark.parametrize("k", [3, 9])
def test_the_geometric_median_minimizes_the_sum_of_distances(k):
    samples = points((2 * k, 5), seed=k)
    means = group_means(samples, k)
    best = scipy.optimize.minimize(
        total_distance, means.mean(axis=0), (means,), method="BFGS", tol=1e-10
    )
    with jax.enable_x64(True):
        ours = as_row(weiszfeld(as_tree(samples), k, num_iters=3000))
    np.testing.assert_allclose(ours, best.x, atol=1e-4)
    assert total_distance(ours, means) <= best.fun * (1 + 1e-9)


def test_the_default_iterations_come_within_a_permille_of_the_minimum():
    samples = points((30, 5)).astype(np.float32)
    means = group_means(samples, 15)
    best = scipy.optimize.minimize(total_distance, means.mean(axis=0), (means,))
    ours = as_row(weiszfeld(as_tree(samples), 15))
    assert ours.dtype == np.float32
    assert total_distance(ours, means) <= best.fun * 1.001


def test_no_iterations_give_the_coordinate_median_of_the_group_means():
    samples = points((10, 5)).astype(np.float32)
    ours = as_row(weiszfeld(as_tree(samples), 5, num_iters=0))
    expected = np.median(group_means(samples, 5), axis=0)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_in_one_dimension_it_is_the_median():
    samples = np.array([[3.0], [-1.0], [10.0], [4.0], [0.5]], np.float32)
    np.testing.assert_allclose(weiszfeld(samples, 5), [3.0], rtol=1e-5)


def test_points_that_coincide_are_their_own_median():
    ours = weiszfeld(jnp.ones((5, 3)), 5)
    np.testing.assert_allclose(ours, np.ones(3), rtol=1e-6)


def test_a_far_minority_does_not_move_the_geometric_median_far():
    # With fewer than half of the points corrupted it stays near the rest, whatever
    # they are: within 2 m / (k - 2 q) radii, k = 9, q = 4 corrupted.
    samples = points((9, 2)).astype(np.float32)
    radius = np.linalg.norm(samples[4:], axis=1).max()
    samples[:4] = 1e30
    ours = np.asarray(weiszfeld(samples, 9))
    assert np.linalg.norm(ours) <= 2 * (9 - 4) / (9 - 2 * 4) * radius


def test_the_gradient_of_the_geometric_median_equals_finite_differences():
    assert_gradient_is_that_of_finite_differences(
        lambda s: weiszfeld(s, 3, num_iters=20), points((6, 2))
    )


# --- medoid -------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 5, 21])
def test_the_medoid_is_the_group_mean_with_the_least_summed_distance(k):
    samples = points((3 * k, 5), seed=k).astype(np.float32)
    means = group_means(samples.astype(np.float64), k)
    sums = [total_distance(z, means) for z in means]
    expected = means[int(np.argmin(sums))]
    ours = as_row(middle(as_tree(samples), k))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_the_medoid_takes_the_first_on_ties():
    twice = np.array([[2, 0], [1, 0], [1, 0]], np.float32)
    gradient = jax.grad(lambda s: middle(s, 3)[0])(twice)
    np.testing.assert_array_equal(gradient[:, 0], [0, 1, 0])


@pytest.mark.parametrize("estimate", [middle, weiszfeld], ids=["medoid", "geometric"])
def test_an_infinite_minority_does_not_win(estimate):
    samples = np.array([[0, 0], [np.inf, 0], [1, 1], [-np.inf, 3], [2, 0]], np.float32)
    assert np.isfinite(np.asarray(estimate(samples, 5))).all()


def test_the_gradient_of_the_medoid_is_one_nth_on_its_group():
    samples = points((6, 2)).astype(np.float32)
    means = group_means(samples, 3)
    best = int(np.argmin([total_distance(z, means) for z in means]))
    expected = np.zeros((3, 2, 2))
    expected[best] = 0.5
    gradient = jax.grad(lambda s: jnp.sum(middle(s, 3)))(samples)
    np.testing.assert_allclose(gradient, expected.reshape(6, 2), rtol=1e-6)


# --- trimmed mean -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "trim"), [(7, 0), (7, 3), (8, 3), (70, 0), (70, 10), (70, 34)]
)
def test_the_trimmed_mean_equals_scipy(batch, trim):
    samples = points((batch, 5), seed=batch).astype(np.float32)
    # SciPy takes a share and rounds its count down: aim at the middle.
    expected = scipy.stats.trim_mean(samples.astype(float), (trim + 0.5) / batch)
    if trim == 0:
        expected = samples.astype(float).mean(axis=0)
    ours = as_row(trimmed(as_tree(samples), trim))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [7, 70])
def test_trimming_drops_infinities_and_shows_nan(batch):
    samples = points((batch, 3)).astype(np.float32)
    samples[:2, 0], samples[3, 0], samples[4, 1] = np.inf, -np.inf, np.nan
    ours = np.asarray(trimmed(samples, 2))
    assert np.isfinite(ours[[0, 2]]).all()
    assert np.isnan(ours[1])


def test_the_gradient_of_the_trimmed_mean_is_even_over_what_is_kept():
    samples = points((6, 2)).astype(np.float32)
    ranks = samples.argsort(axis=0).argsort(axis=0)
    expected = ((ranks >= 1) & (ranks < 5)) / 4
    gradient = jax.jit(jax.grad(lambda s: jnp.sum(trimmed(s, 1))))(samples)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


# --- per-sample clipping ------------------------------------------------------------


@pytest.mark.parametrize("max_norm", [0.5, 2.0, np.inf])
def test_clip_then_mean_equals_numpy(max_norm):
    samples = points((8, 5)).astype(np.float32)
    samples[0], samples[1, 2] = 0.0, 1e30
    wide = samples.astype(np.float64)
    norms = np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-300)
    expected = (wide * np.minimum(1, max_norm / norms)).mean(axis=0)
    ours = as_row(clipped(as_tree(samples), max_norm))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_clip_then_mean_equals_finite_differences():
    assert_gradient_is_that_of_finite_differences(
        lambda s: clipped(s, 1.0), points((4, 3))
    )


def test_the_clipping_level_may_be_traced():
    samples = jnp.asarray(points((4, 3)), jnp.float32)
    levels = jnp.array([0.5, 2.0])
    swept = jax.jit(jax.vmap(lambda level: clipped(samples, level)))(levels)
    for row, level in zip(swept, levels, strict=True):
        np.testing.assert_allclose(row, clipped(samples, float(level)), rtol=1e-6)


# --- what they share ----------------------------------------------------------------

ESTIMATORS = {
    "geometric_median": lambda samples: geometric_median(samples, 3),
    "medoid": lambda samples: medoid(samples, 3),
    "trimmed_mean": lambda samples: trimmed_mean(samples, 1),
    "clip_then_mean": lambda samples: clip_then_mean(samples, 1.0),
}
each = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


@each
def test_narrow_floats_are_reduced_in_float32_and_kept(estimate):
    samples = {
        "a": jnp.asarray(points((6, 4)), jnp.bfloat16),
        "b": jnp.zeros((6, 0)),
        "c": jnp.asarray(points(6), jnp.float32),
    }
    reduced = jax.jit(estimate)(samples)
    wide = jax.jit(estimate)(jax.tree.map(lambda x: x.astype(jnp.float32), samples))
    for ours, expected, leaf in zip(
        *map(jax.tree.leaves, (reduced, wide, samples)), strict=True
    ):
        assert (ours.shape, ours.dtype) == (leaf.shape[1:], leaf.dtype)
        np.testing.assert_array_equal(ours, expected.astype(leaf.dtype))


@each
def test_an_empty_tree_stays_empty(estimate):
    assert estimate({}) == {}


@each
def test_a_nan_is_never_hidden(estimate):
    samples = points((3, 2)).astype(np.float32)
    samples[1, 1] = np.nan
    assert np.isnan(np.asarray(jax.jit(estimate)(samples))).any()


@each
def test_bad_samples_are_refused(estimate):
    with pytest.raises(ValueError, match=r"\['b'\] must have a floating dtype"):
        estimate({"a": jnp.ones(3), "b": jnp.ones(3, jnp.int32)})
    with pytest.raises(ValueError, match=r"got 3 at .*\['a'\] and 6 at .*\['b'\]"):
        estimate({"a": jnp.ones(3), "b": jnp.ones(6)})


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (lambda x: geometric_median(x, 2), "num_groups .*odd.*got 2"),
        (lambda x: geometric_median(x, 5), "batch size 6 and num_groups 5"),
        (lambda x: geometric_median(x, 3, num_iters=-1), "num_iters .*>= 0, got -1"),
        (lambda x: geometric_median(x, 3, eps=0.0), "eps must be > 0, got 0.0"),
        (lambda x: medoid(x, 2), "num_groups .*odd.*got 2"),
        (lambda x: medoid(x, 5), "batch size 6 and num_groups 5"),
        (lambda x: trimmed_mean(x, 3), "trim must be < 6 / 2.*got 3"),
        (lambda x: trimmed_mean(x, -1), "trim .*>= 0, got -1"),
        (lambda x: clip_then_mean(x, 0.0), "max_norm must be > 0, got 0.0"),
        (lambda x: clip_then_mean(x, -1.0), "max_norm must be > 0, got -1.0"),
    ],
)
def test_bad_arguments_are_refused(estimate, message):
    with pytest.raises(ValueError, match=message):
        estimate(jnp.ones((6, 2)))
