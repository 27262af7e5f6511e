"""Bounds and exact moments of the median of means, against quadrature and simulation.

An interval of 5.5 standard errors alarms falsely in 4e-8 of the seeds.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats

from jaxopt_suite.stochastic import (
    additive,
    bias_bound,
    cauchy,
    cauchy_median_second_moment,
    centred_exponential,
    centred_pareto,
    default_num_groups,
    exact_median,
    mixture,
    plan_groups,
    second_moment_bound,
    symmetric_pareto,
    symmetric_stable,
)

GROUPS = (7, 9, 15, 31)


def medians(noise, groups, sizes, repetitions, seed=0):
    """Medians of means of the same draws, as a dict (k, n) -> float64 array."""

    @jax.jit
    def run(key):
        x = noise(key, (max(sizes), max(groups), repetitions))
        means = {n: x[:n].mean(axis=0) for n in sizes}
        return {(k, n): exact_median(means[n][:k]) for k in groups for n in sizes}

    found = run(jax.random.key(seed))
    return {cell: np.asarray(x, np.float64) for cell, x in found.items()}


# --- the Cauchy law -----------------------------------------------------------------


@pytest.mark.parametrize("k", range(5, 33, 2))
def test_the_cauchy_moment_equals_the_integral_over_quantiles(k):
    # The middle of k uniforms is Beta(m + 1, m + 1); Cauchy's quantile is a tangent.
    m = (k - 1) // 2
    square = lambda u: (u * (1 - u)) ** m * math.tan(math.pi * (u - 0.5)) ** 2  # noqa: E731
    half = scipy.integrate.quad(square, 0.0, 0.5, epsabs=0, epsrel=1e-11, limit=400)[0]
    expected = 2 * half / scipy.special.beta(m + 1, m + 1)
    assert math.isclose(cauchy_median_second_moment(k), expected, rel_tol=1e-8)


def test_the_cauchy_moment_at_known_values_and_scales():
    known = {5: 1.22125, 7: 0.612082, 9: 0.408659, 15: 0.204798, 31: 0.087944}
    for k, value in known.items():
        assert abs(cauchy_median_second_moment(k) - value) <= 5e-6
    assert math.isclose(
        cauchy_median_second_moment(15, 3.0), 9 * 0.204798, rel_tol=1e-5
    )


def test_simulated_cauchy_medians_have_the_exact_second_moment():
    # Standard errors 0.5 %, 0.3 %, 0.3 %: a false alarm in less than 1e-7 of the seeds.
    found = medians(cauchy(), (9, 15, 31), (1,), 400_000)
    for (k, _), x in found.items():
        exact = cauchy_median_second_moment(k)
        assert abs(np.mean(x**2) / exact - 1) <= 0.03, k


@pytest.mark.slow
def test_the_group_size_does_not_matter_to_cauchy_noise():
    parts = [medians(cauchy(), (15,), (8,), 50_000, seed)[15, 8] for seed in range(8)]
    exact = cauchy_median_second_moment(15)
    assert abs(np.mean(np.square(parts)) / exact - 1) <= 0.03


# --- rates in the group size --------------------------------------------------------

SIZES = (1, 4, 16)


def slope(sizes, values):
    return np.polyfit(np.log(sizes), np.log(values), 1)[0]


def test_the_error_under_stable_noise_goes_with_the_exact_power_of_the_group_size():
    # A median of 20,000 has an error of 1 %, the slope one of 0.005: six of them.
    indices = jnp.array([0.5, 0.75, 1.0, 1.5])

    @jax.jit
    def errors(key):
        x = jax.vmap(lambda a: symmetric_stable(a)(key, (16, 15, 20_000)))(indices)
        means = [x[:, :n].mean(axis=1) for n in SIZES]
        return [jnp.median(jnp.abs(exact_median(m, 1)), axis=-1) for m in means]

    found = np.array(errors(jax.random.key(0)))
    for index, error in zip(np.asarray(indices), found.T, strict=True):
        assert abs(slope(SIZES, error) - (1 / index - 1)) <= 0.03, index


@functools.cache
def pareto_medians():
    return medians(centred_pareto(1.6), (15,), (1, 4, 16, 64), 20_000)


def test_the_bias_under_pareto_noise_falls_at_the_rate_of_the_bound():
    # Errors of 0.5 % or less in each bias move the slope by less than 0.005.
    biases = {n: abs(x.mean()) for (_, n), x in pareto_medians().items()}
    assert -0.42 <= slope(list(biases), list(biases.values())) <= -0.32


def test_the_bias_with_one_sample_a_group_is_exact():
    # E U^(-1/a) of the middle of 15 uniforms, a ratio of two Beta functions.
    x = pareto_medians()[15, 1]
    middle = scipy.special.beta(8 - 1 / 1.6, 8) / scipy.special.beta(8, 8)
    exact = middle - 1.6 / 0.6
    assert abs(exact - -1.07) <= 0.005
    assert abs(x.mean() - exact) <= 5.5 * x.std() / math.sqrt(x.size)


def test_the_bias_of_a_mixture_grows_with_the_share_of_the_skewed_law():
    rhos = np.array([0.0, 0.25, 0.5, 0.75, 1.0])

    def quantile(u, rho):
        def excess(x):
            shifted = max(x + 1.6 / 0.6, 1.0)
            pareto, cauchy = 1 - shifted**-1.6, 0.5 + math.atan(x) / math.pi
            return (1 - rho) * cauchy + rho * pareto - u

        return scipy.optimize.brentq(excess, -1e6, 1e6)

    @jax.jit
    @jax.vmap
    def draw(rho, key):
        noise = mixture(cauchy(), centred_pareto(1.6), rho)
        return exact_median(noise(key, (15, 20_000)))

    found = draw(jnp.asarray(rhos), jax.random.split(jax.random.key(0), 5))
    nodes, weights = np.polynomial.legendre.leggauss(60)
    u = (nodes + 1) / 2
    weights = weights / 2 * scipy.stats.beta.pdf(u, 8, 8)
    biases = []
    for rho, x in zip(rhos, np.asarray(found, np.float64), strict=True):
        exact = sum(w * quantile(p, rho) for p, w in zip(u, weights, strict=True))
        biases.append(x.mean())
        assert abs(x.mean() - exact) <= 5.5 * x.std() / math.sqrt(x.size) + 1e-4
    assert abs(biases[0]) <= 5 * np.std(found[0]) / math.sqrt(20_000)
    assert np.all(np.diff(biases) < 0)


# --- bounds -------------------------------------------------------------------------


def bound_by_hand(k, n, laws):
    """The sum over laws (q, s); with one law the union bound is not needed."""
    m, total = (k - 1) / 2, 0.0
    for q, s in laws:
        c = s * n ** ((1 - q) / q) * (2 ** (1 / q) if q > 1 else 1)
        growth = 16 ** (m / (q * (m + 1))) * c**2
        if len(laws) == 2:
            growth = 64 ** (m / (q * (m + 1))) * (2 * c) ** 2
        total += growth * q * (m + 1) / (q * (m + 1) - 2)
    return total


def bias_by_hand(k, n, alpha, s):
    return (2 * k) ** (1 / alpha) * n ** (1 / alpha - 1) * s


def test_the_bounds_equal_their_formulas():
    for k, n, beta, alpha in [(15, 1, 0.5, 1.5), (9, 4, 0.75, 1.2), (31, 16, 1.0, 2.0)]:
        both = second_moment_bound(
            k, n, beta=beta, s_beta=2.0, alpha=alpha, s_alpha=0.3
        )
        assert math.isclose(both, bound_by_hand(k, n, [(beta, 2.0), (alpha, 0.3)]))
        only_s = second_moment_bound(k, n, beta=beta, s_beta=2.0)
        assert math.isclose(only_s, bound_by_hand(k, n, [(beta, 2.0)]))
        only_a = second_moment_bound(k, n, alpha=alpha, s_alpha=0.3)
        assert math.isclose(only_a, bound_by_hand(k, n, [(alpha, 0.3)]))
        bias = bias_bound(k, n, alpha=alpha, s_alpha=0.3)
        assert math.isclose(bias, bias_by_hand(k, n, alpha, 0.3))


def moment_scale(noise, q):
    return noise.beta_moment(q) ** (1 / q)


def structured(beta, s_beta, alpha, s_alpha, rho):
    """Arguments of the bound for a mixture; a share of 0 leaves its law out."""
    laws = {}
    if rho < 1:
        laws |= {"beta": beta, "s_beta": (1 - rho) ** (1 / beta) * s_beta}
    if rho > 0:
        laws |= {"alpha": alpha, "s_alpha": rho ** (1 / alpha) * s_alpha}
    return laws


CAUCHY, PARETO = moment_scale(cauchy(), 0.75), moment_scale(centred_pareto(1.6), 1.5)
CASES = {
    "exponential": (
        centred_exponential(),
        {"alpha": 2.0, "s_alpha": moment_scale(centred_exponential(), 2.0)},
    ),
    "additive": (
        additive(cauchy(), centred_pareto(1.6)),
        {"beta": 0.75, "s_beta": CAUCHY, "alpha": 1.5, "s_alpha": PARETO},
    ),
    **{
        f"pareto {beta}": (
            symmetric_pareto(1.25 * beta),
            {"beta": beta, "s_beta": 5.0 ** (1 / beta)},
        )
        for beta in (0.5, 0.75, 1.0)
    },
    **{
        f"mixture {rho}": (
            mixture(cauchy(), centred_pareto(1.6), rho),
            structured(0.75, CAUCHY, 1.5, PARETO, rho),
        )
        for rho in (0.0, 0.25, 0.5, 0.75, 1.0)
    },
}


def assert_within_bounds(name, groups, sizes, repetitions, seed=0):
    noise, laws = CASES[name]
    # E X^2 exists for beta (m + 1) > 2 only, m + 1 = (k + 1) / 2.
    groups = [k for k in groups if laws.get("beta", 1.0) * (k + 1) / 2 > 2]
    for (k, n), x in medians(noise, groups, sizes, repetitions, seed).items():
        assert np.mean(x**2) <= second_moment_bound(k, n, **laws), (k, n)
        bias = 0.0
        if "alpha" in laws:
            bias = bias_bound(k, n, alpha=laws["alpha"], s_alpha=laws["s_alpha"])
        assert abs(x.mean()) <= bias + 5.5 * x.std() / math.sqrt(x.size), (k, n)


@pytest.mark.parametrize("name", ["pareto 0.75", "mixture 0.5"])
def test_moments_stay_within_their_bounds(name):
    assert_within_bounds(name, (7, 15), (1, 4), 5_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_moments_stay_within_their_bounds_on_the_whole_grid(name):
    assert_within_bounds(name, GROUPS, SIZES, 20_000)
    assert_within_bounds(name, GROUPS, (64,), 5_000, seed=1)


def test_the_mean_of_the_same_draws_is_a_thousand_times_worse():
    # The mean's second moment is infinite: its empirical one is at least the largest
    # draw squared / 225 / 20,000, and P(largest < 1e6) < 1e-20.
    draw = jax.jit(lambda key: symmetric_pareto(0.625)(key, (15, 20_000)))
    x = np.asarray(draw(jax.random.key(0)), np.float64)
    middle = np.median(x, axis=0)
    assert np.mean(x.mean(axis=0) ** 2) >= 1e3 * np.mean(middle**2)
    assert np.mean(middle**2) <= second_moment_bound(15, 1, beta=0.5, s_beta=25.0)


# --- choosing the groups ------------------------------------------------------------


def test_the_default_is_the_least_number_with_a_factor_of_at_most_two():
    assert [default_num_groups(b) for b in (1.0, 0.5, 0.35)] == [7, 15, 23]
    # 4 / beta = j exactly: m + 1 = j, though the quotient may round up.
    for j in range(4, 400):
        assert default_num_groups(4 / j) == 2 * j - 1
        assert default_num_groups(4 / (j + 0.5)) == 2 * j + 1


def plan_by_brute_force(budget, beta, s_beta, alpha, s_alpha):
    costs = {}
    for k in range(1, budget + 1):
        if k % 2 == 0 or budget % k or beta * (k + 1) / 2 <= 2:
            continue
        laws = [law for law in ((beta, s_beta), (alpha, s_alpha)) if law[1] > 0]
        bias = bias_by_hand(k, budget // k, alpha, s_alpha)
        costs[k] = bound_by_hand(k, budget // k, laws) + bias**2
    best = max(k for k, cost in costs.items() if cost == min(costs.values()))
    return best, budget // best


@pytest.mark.parametrize("budget", [60, 105, 315, 3465])
def test_the_plan_equals_brute_force_over_the_divisors(budget):
    plans = set()
    for beta, alpha in [(0.5, 1.2), (0.75, 1.5), (0.9, 2.0)]:
        for s_beta, s_alpha in [(1, 0), (1, 0.01), (1, 1), (0.1, 10), (0, 1)]:
            arguments = budget, beta, s_beta, alpha, s_alpha
            assert plan_groups(*arguments) == plan_by_brute_force(*arguments)
            plans.add(plan_groups(*arguments))
    assert len(plans) > 1


def test_symmetric_noise_wants_single_samples_and_skewed_noise_large_groups():
    assert plan_groups(1155, 0.5, 1.0, 1.5, 0.0) == (1155, 1)
    k, n = plan_groups(1155, 0.5, 1e-9, 1.5, 1.0)
    assert n > 50
    assert k * n == 1155


def test_without_noise_every_split_ties_and_the_most_groups_win():
    assert plan_groups(45, 1.0, 0.0, 1.5, 0.0) == (45, 1)


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: default_num_groups(0.0), r"beta must be in \(0, 1\], got 0.0"),
        (lambda: default_num_groups(1.1), r"beta must be in \(0, 1\], got 1.1"),
        (lambda: second_moment_bound(15, 1), "beta=.*alpha="),
        (lambda: second_moment_bound(14, 1, beta=1.0), "num_groups .*odd.*got 14"),
        (lambda: second_moment_bound(15, 0, beta=1.0), "group_size .*>= 1, got 0"),
        (lambda: second_moment_bound(15, 1, beta=1.5), r"beta .*\(0, 1\], got 1.5"),
        (lambda: second_moment_bound(15, 1, alpha=1.0), r"alpha .*\(1, 2\], got 1.0"),
        (lambda: second_moment_bound(15, 1, alpha=2.5), r"alpha .*\(1, 2\], got 2.5"),
        (
            lambda: second_moment_bound(15, 1, beta=1.0, s_beta=-1.0),
            "s_beta must be >= 0, got -1.0",
        ),
        (
            lambda: second_moment_bound(15, 1, alpha=2.0, s_alpha=-1.0),
            "s_alpha must be >= 0, got -1.0",
        ),
        (lambda: bias_bound(15, 1, alpha=1.0, s_alpha=1.0), r"alpha .*\(1, 2\]"),
        (lambda: bias_bound(4, 1, alpha=1.5, s_alpha=1.0), "num_groups .*odd.*got 4"),
        (lambda: cauchy_median_second_moment(3), "num_groups .*>= 5, got 3"),
        (lambda: cauchy_median_second_moment(8), "num_groups .*odd.*got 8"),
        (lambda: cauchy_median_second_moment(9, -1.0), "scale must be >= 0, got -1.0"),
        (lambda: plan_groups(0, 1.0, 1.0, 1.5, 1.0), "budget .*>= 1, got 0"),
        (lambda: plan_groups(64, 1.0, 1.0, 1.5, 1.0), "budget .*odd divisor.*got 64"),
        (lambda: plan_groups(15, 2.0, 1.0, 1.5, 1.0), r"beta .*\(0, 1\], got 2.0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("q", [1.0, 0.75, 0.5, 0.4, 0.35, 0.1])
def test_too_few_groups_for_a_second_moment_says_how_many_are_needed(q):
    # The least odd k with q (k + 1) / 2 > 2, in whole hundredths.
    least = next(k for k in range(1, 99, 2) if round(100 * q) * (k + 1) > 400)
    assert math.isfinite(second_moment_bound(least, 1, beta=q, s_beta=1.0))
    message = f"num_groups must be >= {least} .*got {least - 2}"
    with pytest.raises(ValueError, match=message):
        second_moment_bound(least - 2, 1, beta=q, s_beta=1.0)
