"""Diagonal curvature for the LOTION penalty, beyond the squared gradient.

Each estimator is a plain function of the parameters. :func:`average_curvature` calls
one every few steps and averages; its result goes to ``update(..., curvature=...)`` of
:func:`add_lotion_penalty`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_integer, check_interval
from jaxopt_suite.core.types import Transformation
from jaxopt_suite.quantization.penalty import Scalar, wide


def gnb_curvature(
    logits_fn: Callable[..., Float[Array, "*batch classes"]],
    params: PyTree[Float[Array, "..."]],
    inputs: Any,
    key: PRNGKeyArray,
) -> PyTree[Float[Array, "..."]]:
    r"""Gauss-Newton diagonal of the mean cross-entropy, from sampled labels.

    .. math:: B\, \hat g^2, \quad \hat g = \nabla_w \frac1B \sum_{n=1}^B
        -\log p_w(\hat y_n \mid x_n), \quad \hat y_n \sim p_w(\cdot \mid x_n)

    It is unbiased for the diagonal of :math:`\frac1B \sum_n J_n^T (\mathrm{diag}(p_n) -
    p_n p_n^T) J_n`, at the price of one more gradient, and never negative.

    Args:
        logits_fn: ``logits_fn(params, inputs)``; all axes but the last are examples, so
            a language model counts every position.
        params: where; any pytree of floating arrays.
        inputs: a batch, handed to ``logits_fn``.
        key: typed key of the labels.

    Returns:
        A pytree like ``params``, at least float32.

    Example:
        >>> x = jnp.array([[1.0], [2.0]])
        >>> c = gnb_curvature(lambda w, x: x * w, jnp.zeros(2), x, jax.random.key(0))
        >>> c.shape  # the mean over keys is mean(x^2) p (1 - p) = 0.625
        (2,)

    Source: the Gauss-Newton-Bartlett estimator of Liu, Li, Hall, Liang, Ma, "Sophia: A
    Scalable Stochastic Second-order Optimizer" (2023), arXiv 2305.14342.
    """
    logits, pull_back = jax.vjp(lambda params: logits_fn(params, inputs), params)
    labels = jax.random.categorical(key, logits)

    def mean_loss(logits):
        losses = optax.losses.softmax_cross_entropy_with_integer_labels(
            wide(logits), labels
        )
        return jnp.mean(losses)

    (gradient,) = pull_back(jax.grad(mean_loss)(logits))
    return jax.tree.map(lambda g: labels.size * wide(g) ** 2, gradient)


def hutchinson_diagonal(
    loss: Callable[[PyTree], Float[Array, ""]],
    params: PyTree[Float[Array, "..."]],
    key: PRNGKeyArray,
    num_samples: int = 1,
) -> PyTree[Float[Array, "..."]]:
    r"""Hutchinson's estimate of the diagonal of the Hessian.

    .. math:: \frac1S \sum_{s=1}^S z_s \odot H z_s, \quad z_s \in \{-1, 1\}^d

    Unbiased; entry i has the variance :math:`\frac1S \sum_{j \ne i} H_{ij}^2`. It may
    be negative, also where the diagonal is not: clip it at 0 for a penalty.

    Args:
        loss: ``params -> scalar``, twice differentiable.
        params: where; any pytree of floating arrays.
        key: typed key of the signs.
        num_samples: S; static. Each costs one product of the Hessian with a vector.

    Raises:
        ValueError: ``num_samples`` is not a positive integer.

    Example:
        >>> loss = lambda w: jnp.sum(jnp.array([1.0, 2.0]) * w**2)
        >>> hutchinson_diagonal(loss, jnp.ones(2), jax.random.key(0))
        Array([2., 4.], dtype=float32)

    Source: Hutchinson (1989), Communications in Statistics 18; Bekas, Kokiopoulou, Saad
    (2007), Applied Numerical Mathematics 57.
    """
    check_integer("num_samples", num_samples)
    params = jax.tree.map(wide, params)
    gradient = jax.grad(loss)

    def one(key):
        signs = optax.tree.random_like(key, params, jax.random.rademacher)
        _, product = jax.jvp(gradient, (params,), (signs,))
        return jax.tree.map(jnp.multiply, signs, product)

    samples = jax.lax.map(one, jax.random.split(key, num_samples))
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), samples)


def exact_diagonal(
    loss: Callable[[PyTree], Float[Array, ""]],
    params: PyTree[Float[Array, "..."]],
) -> PyTree[Float[Array, "..."]]:
    """The diagonal of the Hessian, one product with a unit vector per parameter.

    For small problems. An entry may be negative: clip it at 0 for a penalty.

    Args:
        loss: ``params -> scalar``, twice differentiable.
        params: where; any pytree of floating arrays.

    Example:
        >>> exact_diagonal(lambda w: w["a"] ** 3 * w["b"], {"a": 1.0, "b": 2.0})
        {'a': Array(12., dtype=float32), 'b': Array(0., dtype=float32)}
    """
    flat, unravel = jax.flatten_util.ravel_pytree(jax.tree.map(wide, params))
    if not flat.size:
        return unravel(flat)
    gradient = jax.grad(lambda x: loss(unravel(x)))

    def entry(i):
        unit = jnp.zeros_like(flat).at[i].set(1)
        return jax.jvp(gradient, (flat,), (unit,))[1][i]

    return unravel(jax.lax.map(entry, jnp.arange(flat.size)))


class CurvatureState(NamedTuple):
    """State of :func:`average_curvature`.

    Attributes:
        count: number of updates so far, an int32 scalar.
        average: decaying average of the estimates, without bias correction.
    """

    count: Int[Array, ""]
    average: PyTree[Float[Array, "..."]]


def average_curvature(
    estimate: Callable[..., PyTree[Float[Array, "..."]]],
    *,
    every: int = 10,
    b2: Scalar = 0.99,
) -> Transformation:
    r"""Refreshes a curvature every few steps and averages what it finds.

    .. math:: a_k = b_2 a_{k-1} + (1 - b_2) \hat c_k, \qquad c = a_k / (1 - b_2^k)

    Args:
        estimate: such as :func:`gnb_curvature` with its model fixed; returns a pytree
            like the parameters.
        every: updates between two estimates; static. The first update makes one.
        b2: decay rate per estimate in [0, 1), 0 for the latest alone; may be traced.

    Returns:
        ``init(params) -> state`` and ``update(inputs, state) -> (curvature, state)``
        with ``inputs`` the tuple of arguments of ``estimate``. Under ``vmap`` every
        update pays for an estimate.

    Raises:
        ValueError: ``every`` is not a positive integer, ``b2`` is outside [0, 1), or
            ``estimate`` returns None.

    Example:
        >>> square = lambda w: jnp.sum(w**2)
        >>> estimate = lambda w: exact_diagonal(square, w)
        >>> estimator = average_curvature(estimate, every=2, b2=0.5)
        >>> w = jnp.ones(2)
        >>> curvature, state = estimator.update((w,), estimator.init(w))
        >>> curvature
        Array([2., 2.], dtype=float32)
    """
    check_integer("every", every)
    check_interval("b2", b2, 0.0, 1.0, closed="[)")

    def init(params):
        zeros = jax.tree.map(lambda p: jnp.zeros_like(wide(p)), params)
        return CurvatureState(jnp.zeros([], jnp.int32), zeros)

    def update(inputs, state, **extra_args):
        del extra_args

        def refresh(average):
            found = estimate(*inputs)
            if found is None:
                raise ValueError("estimate must return a pytree like params, got None")
            return jax.tree.map(
                lambda a, c: (b2 * a + (1 - b2) * jnp.asarray(c, a.dtype)).astype(
                    a.dtype
                ),
                average,
                found,
            )

        due = state.count % every == 0
        average = jax.lax.cond(due, refresh, lambda average: average, state.average)
        count = jnp.asarray(optax.safe_increment(state.count))
        num_estimates = 1 + state.count // every
        curvature = optax.tree.bias_correction(average, b2, num_estimates)
        return curvature, CurvatureState(count, average)

    return Transformation(init, update)
