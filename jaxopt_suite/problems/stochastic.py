"""Problems for gradient methods under noise, and the packaged data they use.

The gradients are per example: leaves carry a leading sample axis, as an Aggregator
wants them. Data come with scikit-learn, so nothing is downloaded.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.core.types import Problem
from jaxopt_suite.stochastic.noise import Noise, add_noise


def noisy_quadratic(
    eigenvalues: Float[Array, " d"] | np.ndarray,
    minimizer: Float[Array, " d"] | np.ndarray,
    noise: Noise,
    batch: int,
    *,
    start: Float[Array, " d"] | None = None,
) -> Problem:
    r"""A diagonal quadratic whose gradient is seen through additive noise.

    .. math:: f(x) = \tfrac12 (x - x^*)^T \mathrm{diag}(h) (x - x^*), \qquad
        G_s = \nabla f(x) + \nu_s, \quad s < B

    Args:
        eigenvalues: :math:`h > 0`, shape ``(d,)``.
        minimizer: :math:`x^*`, shape ``(d,)``.
        noise: the law of each entry of :math:`\nu`.
        batch: :math:`B`, the number of oracle calls in a gradient; static.
        start: where ``init`` starts; None is 0.

    Returns:
        A Problem whose ``grad`` gives shape ``(B, d)``. Its metrics are ``excess``,
        :math:`f(x) - f^*`.

    Raises:
        ValueError: an eigenvalue is not positive, or the shapes differ.

    Example:
        >>> from jaxopt_suite.stochastic import cauchy
        >>> problem = noisy_quadratic(jnp.ones(3), jnp.ones(3), cauchy(), batch=15)
        >>> problem.metrics(problem.init(jax.random.key(0)))
        {'excess': Array(1.5, dtype=float32)}
    """
    check_integer("batch", batch)
    check_interval("eigenvalues", eigenvalues, 0.0, closed="()")
    eigenvalues, minimizer = jnp.asarray(eigenvalues), jnp.asarray(minimizer)
    if eigenvalues.shape != minimizer.shape:
        raise ValueError(
            f"minimizer must have the shape of eigenvalues {eigenvalues.shape}, "
            f"got {minimizer.shape}"
        )

    def init(key):
        del key
        return jnp.zeros_like(minimizer) if start is None else jnp.asarray(start)

    def grad(key, params):
        exact = eigenvalues * (params - minimizer)
        return exact + noise(key, (batch, *exact.shape), exact.dtype)

    def metrics(params):
        offset = params - minimizer
        return {"excess": 0.5 * jnp.sum(eigenvalues * offset**2)}

    return Problem(init, grad, metrics)


class LabelledData(NamedTuple):
    """Inputs and classes.

    Attributes:
        features: shape ``(examples, features)``.
        labels: integer classes, shape ``(examples,)``.
    """

    features: Float[Array, "examples features"]
    labels: Int[Array, " examples"]


def logistic_regression(
    data: LabelledData, *, l2: float, batch: int, noise: Noise | None = None
) -> Problem:
    r"""Binary logistic regression on minibatches drawn with replacement.

    .. math:: f(w) = \frac1N \sum_i \log(1 + e^{-y_i x_i^T w}) + \frac{\lambda}{2}
        \|w\|_2^2, \quad y_i = 2\,\mathrm{label}_i - 1

    Args:
        data: labels 0 and 1. For an intercept, add a column of ones.
        l2: :math:`\lambda > 0`, on all coordinates.
        batch: number of examples in a gradient; static.
        noise: added to every entry of every per-example gradient, if given.

    Returns:
        A Problem that starts at 0; ``grad`` gives shape ``(batch, features)``. Its
        metrics are ``distance`` to the optimum of :func:`logistic_optimum`, and
        ``loss``.

    Raises:
        ValueError: ``l2`` or ``batch`` is not positive, or labels are not 0 and 1.

    Example:
        >>> data = LabelledData(jnp.array([[1.0], [-1.0], [2.0]]), jnp.array([1, 0, 0]))
        >>> problem = logistic_regression(data, l2=0.1, batch=15)
        >>> problem.grad(jax.random.key(0), jnp.zeros(1)).shape
        (15, 1)
    """
    check_integer("batch", batch)
    optimum = jnp.asarray(logistic_optimum(data, l2=l2), data.features.dtype)
    signs = 2.0 * data.labels.astype(data.features.dtype) - 1.0

    def example_loss(w, x, sign):
        return jax.nn.softplus(-sign * jnp.dot(x, w)) + 0.5 * l2 * jnp.dot(w, w)

    def init(key):
        del key
        return jnp.zeros(data.features.shape[1], data.features.dtype)

    def grad(key, params):
        pick_key, noise_key = jax.random.split(key)
        rows = jax.random.randint(pick_key, (batch,), 0, data.features.shape[0])
        samples = jax.vmap(jax.grad(example_loss), (None, 0, 0))(
            params, data.features[rows], signs[rows]
        )
        return samples if noise is None else add_noise(noise_key, noise, samples)

    def metrics(params):
        losses = jax.vmap(example_loss, (None, 0, 0))(params, data.features, signs)
        distance = jnp.linalg.norm(params - optimum)
        return {"distance": distance, "loss": jnp.mean(losses)}

    return Problem(init, grad, metrics)


def logistic_optimum(data: LabelledData, *, l2: float) -> np.ndarray:
    """The minimizer of :func:`logistic_regression`, by Newton's method in float64.

    Raises:
        ValueError: ``l2`` is not positive, or labels are not 0 and 1.

    Example:
        >>> data = LabelledData(jnp.array([[1.0], [-1.0]]), jnp.array([1, 0]))
        >>> logistic_optimum(data, l2=0.5).round(4)
        array([0.6748])
    """
    check_interval("l2", l2, 0.0, closed="()")
    features = np.asarray(data.features, np.float64)
    labels = np.asarray(data.labels)
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(f"labels must be 0 and 1, got {np.unique(labels)}")
    w = np.zeros(features.shape[1])
    for _ in range(100):
        rate = 1.0 / (1.0 + np.exp(-features @ w))
        gradient = features.T @ (rate - labels) / len(labels) + l2 * w
        if np.linalg.norm(gradient) < 1e-13:
            break
        curvature = (features.T * (rate * (1 - rate))) @ features / len(labels)
        w = w - np.linalg.solve(curvature + l2 * np.eye(len(w)), gradient)
    return w


def breast_cancer() -> LabelledData:
    """Breast cancer (569 cases, 30 features): standardized, with a column of ones.

    Needs scikit-learn, in the extra ``jaxopt-suite[experiments]``.
    """
    bunch = _packaged("breast_cancer")
    inputs = (bunch.data - bunch.data.mean(axis=0)) / bunch.data.std(axis=0)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    return LabelledData(
        jnp.asarray(inputs, jnp.float32), jnp.asarray(bunch.target, jnp.int32)
    )


def digits() -> LabelledData:
    """Handwritten digits (1797 images of 8 x 8), pixels in [0, 1], in a fixed shuffle.

    Needs scikit-learn, in the extra ``jaxopt-suite[experiments]``.
    """
    bunch = _packaged("digits")
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return LabelledData(
        jnp.asarray(bunch.data[order] / 16.0, jnp.float32),
        jnp.asarray(bunch.target[order], jnp.int32),
    )


def _packaged(name: str) -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(
            f"the {name} data come with scikit-learn: "
            "pip install 'jaxopt-suite[experiments]'"
        ) from error
    return getattr(datasets, f"load_{name}")()


def replace_labels(
    key: PRNGKeyArray, labels: Int[Array, " examples"], share: float, num_classes: int
) -> Int[Array, " examples"]:
    """Replaces each label with probability ``share`` by another class, uniformly.

    Raises:
        ValueError: a concrete ``share`` is outside [0, 1], or ``num_classes`` < 2.

    Example:
        >>> labels = jnp.zeros(4, jnp.int32)
        >>> replace_labels(jax.random.key(0), labels, 1.0, 2)
        Array([1, 1, 1, 1], dtype=int32)
    """
    check_interval("share", share, 0.0, 1.0)
    check_integer("num_classes", num_classes, 2)
    pick_key, shift_key = jax.random.split(key)
    picked = jax.random.uniform(pick_key, labels.shape) < share
    shift = jax.random.randint(shift_key, labels.shape, 1, num_classes)
    return jnp.where(picked, (labels + shift) % num_classes, labels)
