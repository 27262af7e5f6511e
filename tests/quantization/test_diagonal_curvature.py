"""Curvature estimators against Gauss-Newton and Hessian matrices in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from jaxopt_suite.quantization import (
    add_lotion_penalty,
    average_curvature,
    exact_diagonal,
    gnb_curvature,
    hutchinson_diagonal,
    make_quantizer,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3))
W = {"w": RNG.standard_normal((3, 4)), "b": RNG.standard_normal(4)}


def logits_fn(params, x):
    return x @ params["w"] + params["b"]


def narrow(tree, dtype=np.float32):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def gauss_newton_diagonal():
    """The mean over examples of the diagonal of J^T (diag(p) - p p^T) J."""
    p = softmax(X @ W["w"] + W["b"], axis=1)
    spread = p * (1 - p)
    return {"w": (X**2).T @ spread / len(X), "b": spread.mean(axis=0)}


def test_sampled_labels_give_the_gauss_newton_diagonal_on_average():
    num = 20_000
    params, x = narrow(W), narrow(X)
    keys = jax.random.split(jax.random.key(0), num)
    draws = jax.jit(jax.vmap(lambda key: gnb_curvature(logits_fn, params, x, key)))(
        keys
    )
    for name, expected in gauss_newton_diagonal().items():
        samples = np.asarray(draws[name], np.float64)
        assert samples.min() >= 0
        # 16 numbers within five standard errors: false alarm below 1e-5.
        error = np.abs(samples.mean(axis=0) - expected)
        assert np.all(error <= 5 * samples.std(axis=0) / np.sqrt(num))


@pytest.mark.slow
def test_every_position_of_a_sequence_is_an_example():
    # Two sequences of five positions are ten examples.
    params = narrow(W, jnp.bfloat16)

    @jax.jit
    def both(x):
        key = jax.random.key(0)
        together = gnb_curvature(logits_fn, params, x, key)
        return together, gnb_curvature(logits_fn, params, x.reshape(10, 3), key)

    together, apart = both(narrow(np.stack([X, X]), jnp.bfloat16))
    for name, value in together.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, apart[name], rtol=0.05, atol=1e-3)


def cubic(params):
    """Its Hessian's diagonal: A_ii in w, and 6 b in b."""
    quadratic = 0.5 * params["w"] @ jnp.asarray(A, params["w"].dtype) @ params["w"]
    return quadratic + jnp.sum(params["b"] ** 3) + params["w"][0] * params["b"][0]


B = RNG.standard_normal((6, 6))
A = B @ B.T
POINT = {"w": RNG.standard_normal(6), "b": np.array([1.0, -2.0])}


def test_the_exact_diagonal_is_that_of_the_hessian():
    got = jax.jit(lambda p: exact_diagonal(cubic, p))(narrow(POINT))
    np.testing.assert_allclose(got["w"], np.diag(A), rtol=1e-5)
    np.testing.assert_allclose(got["b"], 6 * POINT["b"], rtol=1e-5)


def test_hutchinson_is_unbiased_within_the_error_of_its_formula():
    num = 20_000
    estimate = jax.jit(
        lambda p, key: hutchinson_diagonal(cubic, p, key, num_samples=num)
    )
    mean = np.asarray(estimate(narrow(POINT), jax.random.key(1))["w"])
    others = (A**2).sum(axis=1) - np.diag(A) ** 2
    others[0] += 1.0  # the mixed derivative in w[0] and b[0]
    # Five standard errors, six numbers: false alarm 4e-6.
    np.testing.assert_array_less(np.abs(mean - np.diag(A)), 5 * np.sqrt(others / num))


def test_averages_follow_the_recursion_and_estimate_when_due():
    estimator = average_curvature(lambda x: x**2, every=3, b2=0.75)
    state, update = estimator.init(jnp.zeros(2)), jax.jit(estimator.update)
    average, num = np.zeros(2), 0
    for t in range(7):
        x = np.array([t + 1.0, -2.0])
        curvature, state = update((jnp.asarray(x),), state)
        if t % 3 == 0:
            average, num = 0.75 * average + 0.25 * x**2, num + 1
        np.testing.assert_allclose(curvature, average / (1 - 0.75**num), rtol=1e-5)


def test_an_estimate_goes_straight_into_the_penalty():
    params = narrow(W)
    penalty = add_lotion_penalty(make_quantizer("int4"))
    estimator = average_curvature(
        lambda params, x, key: gnb_curvature(logits_fn, params, x, key), every=2
    )

    @jax.jit
    def step(state, estimator_state, key):
        inputs = (params, narrow(X), key)
        c, estimator_state = estimator.update(inputs, estimator_state)
        zero = jax.tree.map(jnp.zeros_like, params)
        updates, _ = penalty.update(zero, state, params, curvature=c)
        return updates, estimator_state

    updates, _ = step(penalty.init(params), estimator.init(params), jax.random.key(0))
    assert np.any(updates["w"] != 0)
    assert np.all(updates["b"] == 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hutchinson_diagonal(cubic, POINT, jax.random.key(0), 0),
            "num_samples",
        ),
        (lambda: average_curvature(cubic, every=0), "every must be an integer >= 1"),
        (lambda: average_curvature(cubic, b2=1.0), r"b2 must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_diagonal_of_nothing_is_nothing():
    empty = {"w": jnp.zeros((0, 3))}
    assert exact_diagonal(lambda p: jnp.sum(p["w"]), empty)["w"].shape == (0, 3)


def test_an_estimate_of_python_numbers_is_averaged_and_none_is_refused():
    one = average_curvature(lambda w: {"w": 2.0})
    params = {"w": jnp.float32(1.0)}
    curvature, _ = one.update((params,), one.init(params))
    np.testing.assert_allclose(curvature["w"], 2.0, rtol=1e-5)
    none = average_curvature(lambda w: None)
    with pytest.raises(ValueError, match="estimate must return a pytree like params"):
        none.update((params,), none.init(params))
