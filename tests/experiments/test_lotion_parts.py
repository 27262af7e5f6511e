"""The mathematics that parts of the LOTION experiment bring themselves."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lotion import landscape, regression, two_layer
from experiments.lotion.config import Config


def test_curvature_of_the_two_weight_network_is_the_hessian_where_it_is_right():
    teacher = jnp.array(landscape.TEACHER)
    np.testing.assert_allclose(
        landscape.gauss_newton_diagonal(teacher),
        jnp.diagonal(jax.hessian(landscape.loss)(teacher)),
        rtol=1e-5,
    )


@pytest.mark.parametrize("basis", ["diag", "rot"])
def test_regression_has_the_spectrum_loss_and_gradient_it_says(basis):
    dimension, batch = 12, 20_000
    key, batch_key = jax.random.split(jax.random.key(0))
    task = regression.draw_task(key, basis, dimension)
    h = np.asarray(task.covariance, np.float64)
    h = np.diag(h) if basis == "diag" else h
    spectrum = np.arange(1.0, dimension + 1) ** -1.1
    np.testing.assert_allclose(np.linalg.eigvalsh(h), spectrum[::-1], rtol=1e-5)
    np.testing.assert_allclose(task.diagonal(), np.diag(h), rtol=1e-6)
    w = np.linspace(-1.0, 1.0, dimension)
    error = w - np.asarray(task.target, np.float64)
    w = jnp.asarray(w, jnp.float32)
    np.testing.assert_allclose(task.loss(w), 0.5 * error @ h @ error, rtol=1e-5)
    np.testing.assert_allclose(task.gradient(w), h @ error, rtol=1e-4, atol=1e-5)
    # Cov(x x^T e) = (e^T H e) H + (H e)(H e)^T; 6 standard errors: 2e-9 each.
    deviation = np.sqrt((error @ h @ error * np.diag(h) + (h @ error) ** 2) / batch)
    off = np.abs(task.batch_gradient(batch_key, w, batch) - h @ error)
    assert np.all(off <= 6 * deviation)


def test_curvature_of_the_two_layer_network_is_the_mean_squared_derivative():
    weights = two_layer.draw_weights(jax.random.key(0), 3)
    # These points have the second moments of normal inputs and their symmetry.
    points = np.sqrt(two_layer.INPUTS) * np.concatenate(
        [np.eye(two_layer.INPUTS), -np.eye(two_layer.INPUTS)]
    )
    slopes = jax.jacobian(two_layer.network)(weights, jnp.asarray(points, jnp.float32))
    for expected, found in zip(
        slopes, two_layer.gauss_newton_diagonal(weights), strict=True
    ):
        np.testing.assert_allclose(found, np.mean(expected**2, axis=0), rtol=1e-5)


def test_a_width_that_both_methods_solve_has_no_ratio():
    config = dataclasses.replace(Config(), num_seeds=2, widths=(1, 4))
    loss = np.ones((2, 2, 2, 4))
    loss[:, 0] = 1e-12
    loss[1, 1], loss[:, 1, :, 0] = 0.5, np.nan
    metrics, figures, claims = two_layer.summarize(config, {"loss": loss})
    assert metrics["two_layer_loss"].values.shape == loss.shape
    assert list(figures) == ["two_layer"]
    assert [claim.measured for claim in claims] == [1e-12, 0.5]
