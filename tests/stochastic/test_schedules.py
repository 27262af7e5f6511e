"""Schedules against their formulas in float64 NumPy, traced and concrete."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.stochastic import schedules

LANES = 64


def half_cosine(share):
    return (1 + np.cos(np.pi * share)) / 2


def wsd_formula(k, eta0, warmup, stable, decay, floor):
    if k < warmup:
        return eta0 * (k + 1) / warmup
    share = min(max(k - warmup - stable, 0) / decay, 1)
    return eta0 + (floor - eta0) * share


# Parameters, the formula, and N: where the schedule ends or turns.
CASES: dict[str, tuple[tuple[str, ...], Any, Any]] = {
    "constant": (("eta",), lambda k, eta: eta, lambda p: 10),
    "geometric": (
        ("eta0", "etaN", "N"),
        lambda k, eta0, etaN, N: eta0 * (etaN / eta0) ** min(k / N, 1),
        lambda p: p["N"],
    ),
    "stagewise": (
        ("eta0", "factor", "stage_length"),
        lambda k, eta0, factor, s: eta0 * factor ** (k // s),
        lambda p: p["stage_length"],
    ),
    "polynomial": (
        ("eta0", "tau", "power"),
        lambda k, eta0, tau, power: eta0 / (1 + k / tau) ** power,
        lambda p: 500,
    ),
    "inverse_log": (
        ("c", "k0"),
        lambda k, c, k0: c / math.log(k + k0),
        lambda p: 500,
    ),
    "linear_to_zero": (
        ("eta0", "N"),
        lambda k, eta0, N: eta0 * max(0, 1 - k / N),
        lambda p: p["N"],
    ),
    "cosine": (
        ("eta0", "N", "floor"),
        lambda k, eta0, N, f: f + (eta0 - f) * half_cosine(min(k / N, 1)),
        lambda p: p["N"],
    ),
    "wsd": (
        ("eta0", "warmup", "stable", "decay", "floor"),
        wsd_formula,
        lambda p: p["warmup"] + p["stable"] + p["decay"],
    ),
    "cyclic": (
        ("eta_hi", "eta_lo", "period"),
        lambda k, hi, lo, P: lo + (hi - lo) * half_cosine((k % P) / P),
        lambda p: p["period"],
    ),
    "from_temperature": (
        ("T_schedule", "sigma"),
        lambda k, T, sigma: 2 * T / sigma**2,
        lambda p: 10,
    ),
    "anneal_recipe": (
        ("L", "sigma", "T0", "N", "T_end"),
        lambda k, L, sigma, T0, N, T_end: (
            min(2 * T0 / sigma**2, 0.7 / L)
            * (2 * T_end / sigma**2 / min(2 * T0 / sigma**2, 0.7 / L)) ** min(k / N, 1)
        ),
        lambda p: p["N"],
    ),
}
SIZES = ("N", "stage_length", "warmup", "stable", "decay", "period")


def drawn_parameters(names):
    """64 values of every parameter: sizes in integers, low rates below high ones."""
    rng = np.random.default_rng(sum(map(ord, "".join(names))))
    values = {}
    for name in names:
        if name in SIZES:
            values[name] = rng.integers(2, 3000, LANES, dtype=np.int32)
        elif name == "k0":
            values[name] = rng.uniform(2, 50, LANES)
        elif name in ("etaN", "floor", "eta_lo", "T_end"):
            values[name] = rng.uniform(1e-4, 1e-3, LANES)
        elif name == "factor":
            values[name] = rng.uniform(0.3, 0.99, LANES)
        else:
            values[name] = rng.uniform(0.1, 3.0, LANES)
    return {
        name: value if name in SIZES else value.astype(np.float32)
        for name, value in values.items()
    }


def at_turns(values, turn):
    last = np.broadcast_to(turn(values), (LANES,)).astype(np.int32)
    return np.stack([0 * last, 0 * last + 1, last - 1, last, 2 * last], axis=1)


@pytest.mark.parametrize("name", CASES)
def test_64_traced_parameters_give_the_formula_in_one_compile(name):
    names, formula, turn = CASES[name]
    values = drawn_parameters(names)
    counts, traces = at_turns(values, turn), 0

    @jax.jit
    @jax.vmap
    def rates(parameters, counts):
        nonlocal traces
        traces += 1
        return jax.vmap(getattr(schedules, name)(**parameters))(counts)

    got = rates(values, counts)
    assert traces == 1
    assert got.dtype == jnp.float32
    for lane in range(LANES):
        one = [v[lane].item() for v in values.values()]
        expected = [formula(int(k), *one) for k in counts[lane]]
        # Float32: a few roundings of the rate, absolute where the rate ends at 0.
        np.testing.assert_allclose(got[lane], expected, rtol=4e-6, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_concrete_parameters_and_python_counts_give_the_formula(name):
    names, formula, turn = CASES[name]
    values = drawn_parameters(names)
    one = {n: v[0].item() for n, v in values.items()}
    with jax.enable_x64(True):
        schedule = getattr(schedules, name)(**one)
        for k in at_turns(values, turn)[0].tolist():
            rate = schedule(k)
            assert rate.dtype == jnp.float64
            expected = formula(k, *one.values())
            np.testing.assert_allclose(rate, expected, rtol=1e-12, atol=1e-15)


def test_a_billion_steps_keep_their_stages_and_their_end():
    # In float32 these counts are 64 apart.
    N = 10**9
    stages = schedules.stagewise(1.0, 0.999, 10**6)
    for k in (N - 1, N):
        expected = 0.999 ** (k // 10**6)
        np.testing.assert_allclose(stages(k), expected, rtol=1e-4)
    assert stages(N - 1) > stages(N)
    np.testing.assert_allclose(schedules.linear_to_zero(1.0, N)(N - 1), 1 / N, 1e-6)
    end = schedules.cosine(1.0, N)(N - 1)
    np.testing.assert_allclose(end, (np.pi / 2 / N) ** 2, rtol=1e-5)
    cycle = schedules.cyclic(1.0, 0.0, 1000)
    np.testing.assert_allclose(cycle(N + 500), 0.5, rtol=1e-6)
    late = schedules.wsd(1.0, 10, 2 * N, 100, 0.0)
    np.testing.assert_allclose(late(2 * N + 35), 0.75, rtol=1e-6)
    both = schedules.wsd(1.0, 2 * 10**9, 2 * 10**9, 100, 0.5)
    np.testing.assert_allclose(both(2**31 - 1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(schedules.geometric(1.0, 1e-3, N)(N), 1e-3, rtol=1e-6)


def test_sizes_that_a_wrapper_has_made_floats_still_count_in_integers():
    schedule = schedules.stagewise(1.0, 0.5, jnp.float32(10.0))
    counts = jnp.array([9, 10, 20])
    np.testing.assert_array_equal(jax.vmap(schedule)(counts), [1.0, 0.5, 0.25])


OPTIMIZERS: dict[str, Any] = {
    "adam": optax.adam,
    "adamw": optax.adamw,
    "lion": optax.lion,
    "rmsprop": optax.rmsprop,
    "sgd": functools.partial(optax.sgd, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_is_the_learning_rate_of_any_optimizer(name):
    make, schedule = OPTIMIZERS[name], schedules.stagewise(0.5, 0.25, 2)
    params = jnp.array([1.0, -2.0])

    @jax.jit
    def third_update(plain_rate):
        updates = []
        for optimizer in (make(schedule), make(plain_rate)):
            state = optimizer.init(params)
            for _ in range(3):
                update, state = optimizer.update(params, state, params)
            updates.append(update)
        return updates

    # The third step has the rate of the second stage, 1/8, the other one 1.
    scheduled, plain = third_update(1.0)
    np.testing.assert_allclose(scheduled, plain / 8, rtol=1e-6)


def test_inject_hyperparams_reads_a_schedule_and_the_parameters_of_one():
    schedule = schedules.geometric(1.0, 0.01, 4)
    injected: Any = optax.inject_hyperparams(optax.adam)(learning_rate=schedule)
    params = jnp.ones(2)
    state, seen = injected.init(params), []
    for _ in range(3):
        _, state = injected.update(params, state, params)
        seen.append(float(state.hyperparams["learning_rate"]))
    np.testing.assert_allclose(seen, [1.0, 10**-0.5, 0.1], rtol=1e-5)

    def annealed(eta0, etaN, N):
        return optax.sgd(schedules.geometric(eta0, etaN, N))

    injected = optax.inject_hyperparams(annealed)(eta0=1.0, etaN=0.01, N=4)
    state = injected.init(params)
    state.hyperparams["eta0"] = jnp.float32(2.0)
    updates, _ = injected.update(params, state, params)
    np.testing.assert_allclose(updates, -2.0, rtol=1e-6)


# --- temperature --------------------------------------------------------------------


def test_temperature_and_rate_are_inverse():
    rates = np.array([1e-4, 0.3])
    temperatures: Any = schedules.temperature(rates, 7.0)
    np.testing.assert_allclose(temperatures, rates * 49 / 2)
    np.testing.assert_allclose(
        schedules.rate_for_temperature(temperatures, 7.0), rates, rtol=1e-12
    )


def test_from_temperature_takes_a_schedule():
    cooling = schedules.from_temperature(schedules.cosine(0.6, 100, 0.1), 10.0)
    np.testing.assert_allclose(cooling(50), 2 * 0.35 / 100, rtol=1e-6)


def test_the_recipe_caps_the_start_below_instability():
    schedule = schedules.anneal_recipe(L=50.0, sigma=2.0, T0=10.0, N=100, T_end=0.01)
    np.testing.assert_allclose(schedule(0), 0.7 / 50, rtol=1e-6)
    np.testing.assert_allclose(schedule(100), 2 * 0.01 / 4, rtol=1e-6)


def second_moments(rates, first=9.0):
    """E x^2 of SGD on x^2/2 with unit noise, step by step."""
    moments = [first]
    for rate in rates:
        moments.append((1 - rate) ** 2 * moments[-1] + rate**2)
    return np.array(moments)


def test_the_best_schedule_of_a_quadratic_gains_a_logarithm_only():
    # Minimizing each step's v gives the rate v / (v + 1): polynomial(.9, 10/9, 1).
    schedule = schedules.polynomial(0.9, 10 / 9, 1.0)
    rates = np.asarray(jax.vmap(schedule)(jnp.arange(5001)), np.float64)
    moments = second_moments(rates)
    np.testing.assert_allclose(rates, (moments / (moments + 1))[:-1], rtol=1e-5)
    np.testing.assert_allclose(moments, 1 / (np.arange(5002) + 1 / 9), rtol=1e-5)

    errors = [1e-1, 1e-2, 1e-3, 1e-4]
    decay = [int(np.argmax(moments / 2 <= eps)) for eps in errors]
    assert decay == [5, 50, 500, 5000]

    # A fixed rate: v_k - v* shrinks by (1 - rate)^2 a step, v* = rate / (2 - rate).
    rates = np.geomspace(1e-6, 1.0, 4000, endpoint=False)
    limits = rates / (2 - rates)
    fixed = []
    for eps in errors:
        reachable = limits < 2 * eps
        share = (2 * eps - limits[reachable]) / (9 - limits[reachable])
        steps = np.log(share) / (2 * np.log1p(-rates[reachable]))
        fixed.append(np.ceil(steps).min())
    np.testing.assert_allclose(fixed, [9, 117, 1486, 17976], rtol=0.01)
    ratio = np.array(fixed) / decay
    assert np.all(np.diff(ratio) > 0.3)
    assert np.all(np.diff(ratio) < 0.8)


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedules.constant(0.0), "eta must be > 0, got 0.0"),
        (lambda: schedules.constant(np.nan), "eta must be > 0, got nan"),
        (lambda: schedules.geometric(0.0, 0.1, 9), "eta0 must be > 0, got 0.0"),
        (lambda: schedules.geometric(0.1, -1.0, 9), "etaN must be > 0, got -1.0"),
        (lambda: schedules.geometric(0.1, 0.2, 9), "etaN must be <= eta0 = 0.1.*0.2"),
        (lambda: schedules.geometric(0.2, 0.1, 0), r"N must .*\[1, 2\^31\), got 0"),
        (lambda: schedules.geometric(0.2, 0.1, 2**31), "N must .* got 2147483648"),
        (lambda: schedules.stagewise(1.0, 1.0, 5), r"factor .*\(0, 1\), got 1.0"),
        (lambda: schedules.stagewise(1.0, 0.0, 5), r"factor .*\(0, 1\), got 0.0"),
        (lambda: schedules.stagewise(1.0, 0.5, -2), "stage_length must .* got -2"),
        (lambda: schedules.stagewise(1.0, 0.5, 2.5), "stage_length must .* got 2.5"),
        (lambda: schedules.polynomial(0.1, 0.0, 1.0), "tau must be > 0, got 0.0"),
        (lambda: schedules.polynomial(0.1, 1.0, -1.0), "power must be >= 0, got -1"),
        (lambda: schedules.inverse_log(0.0), "c must be > 0, got 0.0"),
        (lambda: schedules.inverse_log(1.0, 1.5), "k0 must be >= 2, got 1.5"),
        (lambda: schedules.linear_to_zero(-1.0, 9), "eta0 must be > 0, got -1.0"),
        (lambda: schedules.cosine(0.1, 9, -0.1), "floor must be >= 0, got -0.1"),
        (lambda: schedules.cosine(0.1, 9, 0.2), "floor must be <= eta0 = 0.1, got 0.2"),
        (lambda: schedules.wsd(0.1, -1, 5, 5), "warmup must .* got -1"),
        (lambda: schedules.wsd(0.1, 1, -5, 5), "stable must .* got -5"),
        (lambda: schedules.wsd(0.1, 1, 5, 0), "decay must .* got 0"),
        (lambda: schedules.wsd(0.1, 1, 5, 5, 1.0), "floor must be <= eta0"),
        (lambda: schedules.cyclic(0.0, 0.0, 5), "eta_hi must be > 0, got 0.0"),
        (lambda: schedules.cyclic(0.1, 0.2, 5), "eta_lo must be <= eta_hi"),
        (lambda: schedules.cyclic(0.1, 0.01, 0), "period must .* got 0"),
        (lambda: schedules.from_temperature(0.0, 1.0), "T_schedule must be > 0"),
        (lambda: schedules.from_temperature(1.0, 0.0), "sigma must be > 0, got 0.0"),
        (lambda: schedules.temperature(0.1, -1.0), "noise_std must be >= 0, got -1"),
        (lambda: schedules.temperature(-0.1, 1.0), "lr must be >= 0, got -0.1"),
        (lambda: schedules.rate_for_temperature(0.0, 1.0), "T must be > 0, got 0.0"),
        (lambda: schedules.rate_for_temperature(1.0, 0.0), "noise_std must be > 0"),
        (lambda: schedules.anneal_recipe(0.0, 1.0, 1.0, 9, 0.1), "L must be > 0"),
        (
            lambda: schedules.anneal_recipe(None, 1.0, 1.0, 9, 0.1),
            "L must be > 0, got None: give a bound",
        ),
        (lambda: schedules.anneal_recipe(1.0, 1.0, 0.0, 9, 0.1), "T0 must be > 0"),
        (lambda: schedules.anneal_recipe(1.0, 1.0, 0.2, 9, 0.0), "T_end must be > 0"),
        (lambda: schedules.anneal_recipe(1.0, 1.0, 0.2, 0, 0.1), "N must .* got 0"),
        (
            # The rate 2 T_end / sigma^2 is 2 / L: it would diverge.
            lambda: schedules.anneal_recipe(1.0, 1.0, 9.0, 9, 1.0),
            r"T_end must be at most min\(T0, 0.35 sigma\^2 / L\) = 0.35.*got 1.0",
        ),
        (
            lambda: schedules.anneal_recipe(1.0, 1.0, 0.1, 9, 0.2),
            "T_end must be at most .* = 0.1.*got 0.2",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_integer_noise_std_does_not_overflow():
    for std in (np.int32(100_000), jnp.int32(100_000)):
        np.testing.assert_allclose(schedules.temperature(1, std), 5e9, rtol=1e-6)
        rate = schedules.rate_for_temperature(1, std)
        np.testing.assert_allclose(rate, 2e-10, rtol=1e-6)
