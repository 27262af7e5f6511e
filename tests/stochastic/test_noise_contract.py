"""Samplers as functions: keys, shapes, dtypes, traced parameters, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.stochastic import (
    additive,
    cauchy,
    centred_exponential,
    centred_pareto,
    gaussian,
    mixture,
    skewed_stable,
    student_t,
    symmetric_lomax,
    symmetric_pareto,
    symmetric_stable,
)

# Every law as a function of one parameter that may be traced.
FAMILIES = {
    "gaussian": gaussian,
    "cauchy": cauchy,
    "symmetric_stable": symmetric_stable,
    "skewed_stable": lambda p: skewed_stable(1.0 + p / 2, p - 1.0, p),
    "symmetric_pareto": lambda p: symmetric_pareto(p, p),
    "symmetric_lomax": lambda p: symmetric_lomax(p, p),
    "centred_pareto": lambda p: centred_pareto(1.0 + p, p),
    "centred_exponential": centred_exponential,
    "additive": lambda p: additive(cauchy(p), centred_pareto(1.6, p)),
    "mixture": lambda p: mixture(cauchy(p), centred_pareto(1.6), p / 2),
}


def draws_of_all(parameter, key, dtype=None):
    return {
        name: family(parameter)(key, (50,), dtype) for name, family in FAMILIES.items()
    }


# Fifty draws: compiling costs more than running.
QUICK = {"xla_backend_optimization_level": 0}
compiled_draws = jax.jit(draws_of_all, static_argnums=(0, 2), compiler_options=QUICK)


def test_parameters_may_be_traced_and_equal_the_loop():
    traces = 0

    def draw(parameter):
        nonlocal traces
        traces += 1
        return draws_of_all(parameter, jax.random.key(0))

    swept = jax.jit(jax.vmap(draw), compiler_options=QUICK)(jnp.array([0.4, 1.0, 1.9]))
    assert traces == 1
    for name, draws in compiled_draws(1.9, jax.random.key(0)).items():
        np.testing.assert_allclose(swept[name][2], draws, 2e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64, None]
)
def test_draws_have_the_dtype_asked_for(dtype):
    with jax.enable_x64(True):
        draws = jax.eval_shape(
            lambda p: (
                draws_of_all(p, jax.random.key(0), dtype)
                | {"student_t": student_t(p, p)(jax.random.key(0), (50,), dtype)}
            ),
            1.2,
        )
        expected = jnp.dtype(jnp.float64 if dtype is None else dtype)
        assert {x.dtype for x in draws.values()} == {expected}
        assert not any(x.weak_type for x in draws.values())


def test_narrow_draws_are_rounded_float32_draws():
    key = jax.random.key(0)
    narrow = compiled_draws(1.9, key, jnp.bfloat16)
    wide = compiled_draws(1.9, key)
    for name, draws in narrow.items():
        np.testing.assert_array_equal(draws, wide[name].astype(jnp.bfloat16), name)


def test_the_key_decides_the_draw_and_a_scalar_is_the_default_shape():
    noise = cauchy()
    draw = jax.jit(lambda key: noise(key, [2, 3]))
    first, again = (draw(jax.random.key(0)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (2, 3)
    assert not np.any(first == draw(jax.random.key(1)))
    assert jax.eval_shape(lambda key: noise(key), jax.random.key(0)).shape == ()
    assert jax.jit(lambda key: noise(key, (0, 2)))(jax.random.key(0)).shape == (0, 2)


def test_scale_zero_draws_zeros_and_scale_multiplies_the_draw():
    key = jax.random.key(0)
    for family in (gaussian, cauchy, centred_exponential):
        draw = jax.jit(lambda key: [family(s)(key, (9,)) for s in (0.0, 3.0, 1.0)])
        none, three, one = draw(key)
        np.testing.assert_array_equal(none, np.zeros(9))
        np.testing.assert_allclose(three, 3 * np.asarray(one), rtol=1e-6)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: gaussian(-1.0), "scale must be >= 0, got -1.0"),
        (lambda: cauchy(-1.0), "scale must be >= 0, got -1.0"),
        (lambda: symmetric_stable(0.0), r"index must be in \(0, 2\], got 0.0"),
        (lambda: symmetric_stable(2.1), r"index must be in \(0, 2\], got 2.1"),
        (lambda: symmetric_stable(1.5, -1.0), "scale must be >= 0, got -1.0"),
        (lambda: skewed_stable(1.0, 0.5), r"index must be in \(1, 2\), got 1.0"),
        (lambda: skewed_stable(2.0, 0.5), r"index must be in \(1, 2\), got 2.0"),
        (lambda: skewed_stable(1.5, 1.1), r"skew must be in \[-1, 1\], got 1.1"),
        (lambda: skewed_stable(1.5, 0.5, -1.0), "scale must be >= 0, got -1.0"),
        (lambda: student_t(0.0), "df must be > 0, got 0.0"),
        (lambda: student_t(2.0, -1.0), "scale must be >= 0, got -1.0"),
        (lambda: symmetric_pareto(0.0), "tail must be > 0, got 0.0"),
        (lambda: symmetric_pareto(1.0, -1.0), "scale must be >= 0, got -1.0"),
        (lambda: symmetric_lomax(-0.5), "tail must be > 0, got -0.5"),
        (lambda: symmetric_lomax(1.0, -1.0), "scale must be >= 0, got -1.0"),
        (lambda: centred_pareto(1.0), "tail must be > 1, got 1.0"),
        (lambda: centred_pareto(1.6, -1.0), "scale must be >= 0, got -1.0"),
        (lambda: centred_exponential(-1.0), "scale must be >= 0, got -1.0"),
        (lambda: mixture(cauchy(), cauchy(), 1.5), r"rho .*\[0, 1\], got 1.5"),
        (lambda: cauchy()(jax.random.key(0), (2,), jnp.int32), "dtype .* int32"),
    ],
)
def test_bad_arguments_are_refused(factory, message):
    with pytest.raises(ValueError, match=message):
        factory()
