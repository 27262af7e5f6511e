"""Samplers against SciPy's laws, characteristic functions and quadrature.

Unless said otherwise an interval is 5.5 standard errors wide on each side (a false
alarm in 4e-8 of the seeds) and a Kolmogorov-Smirnov test alarms below p = 1e-6.
"""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

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
from jaxopt_suite.stochastic.bounded_noise import rademacher, uniform

DRAWS = 200_000


@functools.cache
def drawn(noise, seed=0):
    """Draws in float64, of a float32 sampler."""
    sample = jax.jit(lambda key: noise(key, (DRAWS,)))(jax.random.key(seed))
    assert sample.dtype == jnp.float32
    return np.asarray(sample, np.float64)


def mirrored(law):
    """The cdf of a fair sign times a positive law."""
    return lambda x: 0.5 + 0.5 * np.sign(x) * law.cdf(np.abs(x))


# Laws with their cdf, the pdf of |X|, and the order from which moments are infinite.
PARETO = scipy.stats.pareto(1.6, loc=-0.5 * 1.6 / 0.6, scale=0.5)
LAWS: dict[str, Any] = {
    "gaussian": (gaussian(1.5), scipy.stats.norm(scale=1.5), math.inf),
    "cauchy": (cauchy(2.0), scipy.stats.cauchy(scale=2.0), 1.0),
    "student_t": (student_t(2.5, 0.7), scipy.stats.t(2.5, scale=0.7), 2.5),
    "centred_pareto": (centred_pareto(1.6, 0.5), PARETO, 1.6),
    "centred_exponential": (
        centred_exponential(0.8),
        scipy.stats.expon(loc=-0.8, scale=0.8),
        math.inf,
    ),
}
MIRRORED: dict[str, Any] = {
    "symmetric_pareto": (
        symmetric_pareto(0.9, 3.0),
        scipy.stats.pareto(0.9, scale=3.0),
        0.9,
    ),
    "symmetric_lomax": (
        symmetric_lomax(1.3, 0.4),
        scipy.stats.lomax(1.3, scale=0.4),
        1.3,
    ),
}
STABLE: dict[str, Any] = {
    "index 0.3": (symmetric_stable(0.3, 2.0), 0.3, 0.0, 2.0),
    "index 1": (symmetric_stable(1.0), 1.0, 0.0, 1.0),
    "index 1.5": (symmetric_stable(1.5, 0.5), 1.5, 0.0, 0.5),
    "skew 1": (skewed_stable(1.5, 1.0, 2.0), 1.5, 1.0, 2.0),
    "skew -0.4": (skewed_stable(1.2, -0.4, 0.5), 1.2, -0.4, 0.5),
}


# --- laws ---------------------------------------------------------------------------


# JAX's own sampler of Student's t takes seconds to compile.
T_LATER = pytest.param("student_t", marks=pytest.mark.slow)
SAMPLED = [T_LATER if name == "student_t" else name for name in LAWS]


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_follow_scipys_law(name):
    noise, law, _ = LAWS[name]
    assert scipy.stats.kstest(drawn(noise), law.cdf).pvalue > 1e-6


@pytest.mark.parametrize("name", MIRRORED)
def test_draws_follow_a_signed_positive_law(name):
    noise, law, _ = MIRRORED[name]
    assert scipy.stats.kstest(drawn(noise), mirrored(law)).pvalue > 1e-6


def characteristic(t, index, skew, scale):
    tilt = skew * math.tan(math.pi * index / 2) if skew else 0.0
    return np.exp(-(np.abs(scale * t) ** index) * (1 - 1j * np.sign(t) * tilt))


def assert_characteristic(x, t, expected):
    """|cos|, |sin| <= 1: 4 / sqrt(N) is at least 5.6 standard errors of each part."""
    error = np.mean(np.exp(1j * t * x)) - expected
    assert max(abs(error.real), abs(error.imag)) <= 4 / math.sqrt(x.size), t


def test_symmetric_stable_has_its_characteristic_function_in_one_trace():
    indices = jnp.array([0.3, 0.5, 1.0, 1.1, 1.5, 1.8, 2.0])
    traces = 0

    @jax.jit
    @jax.vmap
    def draw(index, key):
        nonlocal traces
        traces += 1
        return symmetric_stable(index, 0.5)(key, (DRAWS,))

    draws = np.asarray(draw(indices, jax.random.split(jax.random.key(1), 7)))
    assert traces == 1
    for index, x in zip(indices, draws.astype(np.float64), strict=True):
        for t in (0.5, 1.0, 2.0, 4.0):
            expected = characteristic(t, float(index), 0.0, 0.5)
            assert_characteristic(x, t, expected)


@pytest.mark.parametrize("name", ["skew 1", "skew -0.4"])
def test_skewed_stable_has_its_characteristic_function_and_so_mean_zero(name):
    # A mean of m would turn the phase by t m.
    noise, *parameters = STABLE[name]
    for t in (-2.0, 0.1, 0.25, 0.5, 1.0):
        expected = characteristic(t, *parameters)
        assert_characteristic(drawn(noise), t, expected)


def test_float64_draws_have_the_characteristic_function_too():
    laws = [STABLE["index 1.5"], STABLE["skew 1"]]
    with jax.enable_x64(True):
        draw = lambda key: [law[0](key, (DRAWS,), jnp.float64) for law in laws]  # noqa: E731
        draws = jax.jit(draw)(jax.random.key(2))
    for x, (_, *parameters) in zip(draws, laws, strict=True):
        assert x.dtype == jnp.float64
        for t in (-2.0, 0.25, 1.0):
            expected = characteristic(t, *parameters)
            assert_characteristic(np.asarray(x), t, expected)


@pytest.mark.parametrize("name", STABLE)
def test_stable_quantiles_equal_scipys(name):
    noise, index, skew, scale = STABLE[name]
    x = drawn(noise)
    for point in (-30.0, -1.0, 0.5, 10.0):
        expected: Any = scipy.stats.levy_stable.cdf(point, index, skew, scale=scale)
        error = math.sqrt(expected * (1 - expected) / DRAWS) + 1e-6
        assert abs(np.mean(x <= point) - expected) <= 5.5 * error, point


def test_stable_of_index_one_is_cauchy():
    # The median of |X| has a standard error of 0.35 %.
    x = drawn(STABLE["index 1"][0])
    assert abs(np.median(np.abs(x)) - 1.0) <= 0.02
    assert scipy.stats.kstest(x, scipy.stats.cauchy.cdf).pvalue > 1e-6


@pytest.mark.parametrize(
    "noise",
    [
        LAWS["cauchy"][0],
        STABLE["index 0.3"][0],
        STABLE["index 1.5"][0],
        MIRRORED["symmetric_lomax"][0],
    ],
)
def test_symmetric_laws_have_a_fair_sign_that_ignores_the_size(noise):
    x = drawn(noise)
    positive, negative = x[x > 0], -x[x < 0]
    assert abs(positive.size - DRAWS / 2) <= 5.5 * math.sqrt(DRAWS) / 2
    found: Any = scipy.stats.ks_2samp(positive, negative, method="asymp")
    assert found.pvalue > 1e-6


def test_mixture_draws_each_law_with_its_probability():
    draw = lambda rho, key: mixture(cauchy(), centred_pareto(1.6, 0.5), rho)(  # noqa: E731
        key, (DRAWS // 4,)
    )
    rhos, keys = jnp.array([0.0, 0.25, 1.0]), jax.random.split(jax.random.key(4), 3)
    for rho, x in zip(rhos, jax.jit(jax.vmap(draw))(rhos, keys), strict=True):
        cdf = lambda x: (1 - rho) * scipy.stats.cauchy.cdf(x) + rho * PARETO.cdf(x)  # noqa: E731
        assert scipy.stats.kstest(np.asarray(x, np.float64), cdf).pvalue > 1e-6


def test_additive_has_the_product_of_the_characteristic_functions():
    x = drawn(additive(cauchy(0.5), centred_exponential(2.0)))
    for t in (-1.0, 0.25, 0.5, 1.0):
        exponential = np.exp(-2j * t) / (1 - 2j * t)
        assert_characteristic(x, t, np.exp(-0.5 * abs(t)) * exponential)


# --- tails and extremes in float32 --------------------------------------------------


def counted(noises, thresholds, millions, seed=3) -> tuple[Any, Any]:
    """Per law: how many draws are not finite, and how many exceed each threshold."""

    @jax.jit
    def count(key):
        sizes = [jnp.abs(noise(key, (1_000_000,))) for noise in noises]
        bad = [jnp.sum(~jnp.isfinite(x)) for x in sizes]
        above = [
            jnp.stack([jnp.sum(x > level) for level in levels])
            for x, levels in zip(sizes, thresholds, strict=True)
        ]
        return jnp.stack(bad), jnp.stack(above)

    keys = jax.random.split(jax.random.key(seed), millions)
    counts = [jax.tree.map(np.asarray, count(key)) for key in keys]
    return sum(c[0] for c in counts), sum(c[1] for c in counts)


def test_stable_tails_are_not_cut():
    # P(|X| > x) = (2/pi) Gamma(a) sin(pi a/2) (s/x)^a, up to its square, any skew.
    shares = np.array([1e-4, 1e-5])
    thresholds = []
    for _, index, _, scale in STABLE.values():
        constant = 2 / math.pi * math.gamma(index) * math.sin(math.pi * index / 2)
        thresholds.append(scale * (constant / shares) ** (1 / index))
    noises = [noise for noise, *_ in STABLE.values()]
    bad, counts = counted(noises, thresholds, millions=1)
    assert not bad.any()
    # Each count is within the central 1 - 2e-7 of its Poisson law.
    low, high = scipy.stats.poisson.ppf([[1e-7], [1 - 1e-7]], 1e6 * shares)
    assert np.all((low <= counts) & (counts <= high)), counts


@pytest.mark.slow
def test_ten_million_stable_draws_are_finite():
    noises = [symmetric_stable(index) for index in (0.3, 0.9, 1.0, 1.1, 1.5, 2.0)]
    noises += [skewed_stable(1.1, 1.0), skewed_stable(1.9, -0.5)]
    bad, _ = counted(noises, [[0.0]] * len(noises), millions=10)
    assert not bad.any(), bad


@pytest.mark.slow
def test_a_hundred_million_draws_of_index_one_are_finite():
    # A uniform that rounds to 1 would come up three times.
    bad, _ = counted([symmetric_stable(1.0)], [[0.0]], millions=100)
    assert not bad.any(), bad


# --- moments ------------------------------------------------------------------------


def moment_of_density(density, q, edges):
    """Integral of |x|^q density(x), in logarithms of |x| between the given edges."""
    total = 0.0
    for sign in (1, -1):
        inner = lambda s: math.exp(s * (q + 1)) * density(sign * math.exp(s))  # noqa: E731
        for low, high in itertools.pairwise(edges):
            total += scipy.integrate.quad(inner, low, high, limit=400)[0]
    return total


@pytest.mark.parametrize("share", [0.3, 0.9])
@pytest.mark.parametrize("name", [*LAWS, *MIRRORED])
def test_moments_equal_quadrature(name, share):
    noise, law, end = (LAWS | MIRRORED)[name]
    q = share * min(end, 2.5)
    density = law.pdf
    if name in MIRRORED:
        density = lambda x: 0.5 * law.pdf(abs(x))  # noqa: E731
    # The density jumps where its support begins; past the last edge, below 1e-12.
    start = abs(law.support()[0])
    jump = [math.log(start)] if 0 < start < math.inf else []
    last = 3.0 + 30.0 / (end - q) if math.isfinite(end) else 5.0
    edges = sorted([-60.0, 0.5, *jump, last])
    assert math.isclose(
        noise.beta_moment(q), moment_of_density(density, q, edges), rel_tol=1e-6
    )


@pytest.mark.parametrize("share", [0.2, 0.6])
@pytest.mark.parametrize("name", STABLE)
def test_stable_moments_equal_an_integral_of_the_characteristic_function(name, share):
    # Integral over t > 0 of (1 - cos xt) t^(-1-q) is |x|^q pi / (2 G(1+q) sin(pi q/2)).
    noise, index, skew, scale = STABLE[name]
    q = share * index

    def integrand(s):
        t = math.exp(s)
        return (1 - characteristic(t, index, skew, scale).real) * math.exp(-q * s)

    ends = (-40.0 / (index - q), 0.0, 40.0 / q)
    parts = [
        scipy.integrate.quad(integrand, low, high, limit=400)[0]
        for low, high in itertools.pairwise(ends)
    ]
    expected = 2 * math.gamma(1 + q) * math.sin(math.pi * q / 2) / math.pi * sum(parts)
    assert math.isclose(noise.beta_moment(q), expected, rel_tol=1e-6)


@pytest.mark.parametrize("name", [*SAMPLED, *MIRRORED, *STABLE])
def test_moments_equal_empirical_moments(name):
    # A quarter of the last moment: |X|^q itself has a finite fourth moment.
    noise = (LAWS | MIRRORED | STABLE)[name][0]
    end = (LAWS | MIRRORED)[name][2] if name not in STABLE else STABLE[name][1]
    q = 0.24 * min(end, 4.0)
    mean, square = noise.beta_moment(q), noise.beta_moment(2 * q)
    x = drawn(noise)
    error = math.sqrt((square - mean**2) / x.size)
    assert abs(np.mean(np.abs(x) ** q) - mean) <= 5.5 * error


@pytest.mark.parametrize("name", [*LAWS, *MIRRORED, *STABLE])
def test_moments_are_infinite_from_the_tail_index_on(name):
    noise = (LAWS | MIRRORED | STABLE)[name][0]
    end = (LAWS | MIRRORED)[name][2] if name not in STABLE else STABLE[name][1]
    if math.isfinite(end):
        assert noise.beta_moment(end) == math.inf
        assert noise.beta_moment(end + 0.1) == math.inf
    else:
        assert math.isfinite(noise.beta_moment(6.0))


def moment(noise, q) -> Any:
    return noise.beta_moment(q)


def test_known_values_of_moments():
    assert abs(moment(centred_pareto(1.6), 1.5) - 13.8869) <= 5e-5
    assert abs(moment(centred_pareto(1.6), 1.5) ** (1 / 1.5) - 5.7775) <= 5e-5
    # tail / (tail - q); 1 / cos(pi q / 2); the variance of N(0, 2 s^2).
    assert math.isclose(moment(symmetric_pareto(0.9), 0.6), 3.0)
    assert math.isclose(moment(cauchy(), 0.5), math.sqrt(2))
    assert math.isclose(moment(symmetric_stable(2.0, 3.0), 2.0), 18.0)


def test_moments_of_sums_are_unknown_and_of_mixtures_an_average():
    s, a = cauchy(), centred_pareto(1.6)
    assert moment(additive(s, a), 0.5) is None
    expected = 0.75 * moment(s, 0.5) + 0.25 * moment(a, 0.5)
    assert math.isclose(moment(mixture(s, a, 0.25), 0.5), expected)
    assert moment(mixture(s, a, 0.25), 1.2) == math.inf
    assert moment(mixture(s, a, 1.0), 1.2) == moment(a, 1.2)
    assert moment(mixture(additive(s, a), a, 0.5), 0.5) is None


def test_moments_that_do_not_exist_are_infinite():
    for q in (-1, -2.0):
        assert uniform(1.0).beta_moment(q) == math.inf
        assert rademacher(0.0).beta_moment(q) == math.inf
        assert rademacher(2.0).beta_moment(q) == 2.0**q
    np.testing.assert_allclose(uniform(1.0).beta_moment(-0.5), 2 * 3**-0.25)
