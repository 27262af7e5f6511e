"""Problems for gradient methods: gradients, optima and data against other libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from jaxopt_suite import problems, stochastic

SILENT = stochastic.gaussian(0.0)


def test_the_quadratic_has_its_gradient_its_excess_and_its_noise():
    spectrum, minimizer = np.array([0.5, 2.0]), np.array([1.0, -1.0])
    start = jnp.array([3.0, 0.0])
    exact = problems.noisy_quadratic(spectrum, minimizer, SILENT, 3, start=start)
    key = jax.random.key(0)
    np.testing.assert_array_equal(exact.init(key), start)
    # f = (0.5 * 2^2 + 2 * 1^2) / 2 and its gradient (0.5 * 2, 2 * 1), by hand.
    assert exact.metrics(start)["excess"] == 2.0
    np.testing.assert_array_equal(exact.grad(key, start), np.tile([1.0, 2.0], (3, 1)))
    noisy = problems.noisy_quadratic(spectrum, minimizer, stochastic.cauchy(), 3)
    np.testing.assert_array_equal(noisy.init(key), np.zeros(2))
    drawn = noisy.grad(key, start) - exact.grad(key, start)
    # Adding 1 or 2 to a draw and taking it off again rounds it.
    np.testing.assert_allclose(drawn, stochastic.cauchy()(key, (3, 2)), atol=1e-5)


def binary_data():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((40, 3)).astype(np.float32)
    labels = (features[:, 0] + rng.standard_normal(40) > 0).astype(np.int32)
    return problems.LabelledData(jnp.asarray(features), jnp.asarray(labels))


def test_the_logistic_optimum_is_that_of_scikit_learn():
    data, l2 = binary_data(), 0.05
    # scikit-learn minimizes C times the summed loss plus half the squared norm.
    peer = LogisticRegression(C=1 / (l2 * 40), fit_intercept=False, tol=1e-10)
    peer.fit(np.asarray(data.features, np.float64), np.asarray(data.labels))
    found = problems.logistic_optimum(data, l2=l2)
    np.testing.assert_allclose(found, peer.coef_[0], atol=1e-5)


def test_logistic_gradients_average_to_that_of_the_loss():
    data, l2 = binary_data(), 0.05
    problem = problems.logistic_regression(data, l2=l2, batch=200_000)
    w = jnp.array([0.3, -0.2, 0.1])
    samples = jax.jit(problem.grad)(jax.random.key(1), w)
    full = jax.grad(lambda w: problem.metrics(w)["loss"])(w)
    error = np.std(np.asarray(samples), axis=0) / np.sqrt(len(samples))
    # 5.5 standard errors: a false alarm in 1e7 runs for all three coordinates.
    assert np.all(np.abs(samples.mean(axis=0) - full) < 5.5 * error)
    optimum = jnp.asarray(problems.logistic_optimum(data, l2=l2), jnp.float32)
    assert problem.metrics(optimum)["distance"] == 0.0
    at_optimum = jax.grad(lambda w: problem.metrics(w)["loss"])(optimum)
    np.testing.assert_allclose(at_optimum, np.zeros(3), atol=1e-6)


def test_noise_is_added_to_every_entry_of_every_gradient():
    data = binary_data()
    make = lambda noise: problems.logistic_regression(  # noqa: E731
        data, l2=0.05, batch=5, noise=noise
    )
    key, w = jax.random.key(2), jnp.zeros(3)
    noisy = make(stochastic.cauchy(0.1)).grad(key, w)
    clean, silent = (make(noise).grad(key, w) for noise in (None, SILENT))
    np.testing.assert_array_equal(silent, clean)
    assert np.all(noisy != clean)


def test_packaged_data_are_as_described():
    cancer, images = problems.breast_cancer(), problems.digits()
    assert cancer.features.shape == (569, 31)
    np.testing.assert_allclose(cancer.features[:, :30].mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(cancer.features[:, :30].std(0), 1.0, atol=1e-4)
    np.testing.assert_array_equal(cancer.features[:, 30], 1.0)
    assert images.features.shape == (1797, 64)
    assert (images.features.min(), images.features.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(images.features, problems.digits().features)


def test_replaced_labels_are_other_classes_at_the_given_rate():
    labels = jnp.zeros(100_000, jnp.int32) + 3
    changed = problems.replace_labels(jax.random.key(3), labels, 0.2, 10)
    counts = np.bincount(np.asarray(changed), minlength=10)
    # Each other class has 100,000 * 0.2 / 9 of them; 5.5 standard deviations.
    expected = 100_000 * 0.2 / 9
    assert np.all(np.abs(np.delete(counts, 3) - expected) < 5.5 * np.sqrt(expected))
    assert abs(counts[3] - 80_000) < 5.5 * np.sqrt(16_000)


def test_errors_name_the_argument_and_the_value():
    data = binary_data()
    with pytest.raises(ValueError, match=r"eigenvalues must be > 0, got \[0\. 1\.\]"):
        problems.noisy_quadratic(np.array([0.0, 1.0]), np.ones(2), SILENT, 3)
    with pytest.raises(ValueError, match=r"minimizer must have the shape .*\(2,\)"):
        problems.noisy_quadratic(np.ones(2), np.ones(3), SILENT, 3)
    with pytest.raises(ValueError, match="batch must be an integer >= 1, got 0"):
        problems.noisy_quadratic(np.ones(2), np.ones(2), SILENT, 0)
    with pytest.raises(ValueError, match="l2 must be > 0, got 0"):
        problems.logistic_regression(data, l2=0.0, batch=3)
    with pytest.raises(ValueError, match="labels must be 0 and 1"):
        problems.logistic_optimum(data._replace(labels=data.labels + 1), l2=0.1)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got 1\.5"):
        problems.replace_labels(jax.random.key(0), data.labels, 1.5, 2)
    with pytest.raises(ValueError, match="num_classes must be an integer >= 2, got 1"):
        problems.replace_labels(jax.random.key(0), data.labels, 0.5, 1)
