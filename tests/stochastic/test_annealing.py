"""Injected noise, annealed SGD, Langevin and the temperature monitor."""

import functools
import math
import warnings
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from jaxopt_suite.stochastic import (
    aggregate_mean,
    annealed_sgd,
    estimate_noise_std,
    inject_gradient_noise,
    langevin,
    rademacher,
    schedules,
    temperature_monitor,
    uniform,
)

LAWS = ("gaussian", "rademacher", "uniform")
CHAINS = 20_000
KEY = jax.random.key(0)


# --- noise --------------------------------------------------------------------------


@functools.cache
def injected(law):
    """Forty updates of 5,000 entries, as one flat array of the noise alone."""
    transformation: Any = inject_gradient_noise(1.5, jax.random.key(0), law=law)
    zeros = jnp.zeros(5_000)

    @jax.jit
    def run():
        def step(state, _):
            noise, state = transformation.update(zeros, state)
            return state, noise

        return jax.lax.scan(step, transformation.init(zeros), length=40)[1]

    return np.asarray(run(), np.float64).ravel()


@pytest.mark.parametrize(
    ("law", "fourth"), [("gaussian", 3.0), ("rademacher", 1.0), ("uniform", 1.8)]
)
def test_every_law_is_centred_with_the_variance_asked_for(law, fourth):
    # 5.5 standard errors: three alarms in 1e7.
    x = injected(law) / 1.5
    for power, expected in ((1, 0.0), (2, 1.0), (3, 0.0), (4, fourth)):
        sample = x**power
        bound = 5.5 * np.std(sample) / math.sqrt(x.size) + 1e-6
        assert abs(np.mean(sample) - expected) <= bound, power
    # Draws of neighbouring updates and entries do not correlate.
    table = x.reshape(40, -1)
    for pair in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        products = pair[0] * pair[1]
        assert abs(products.mean()) <= 5.5 / math.sqrt(products.size)


def test_the_laws_have_their_support():
    assert set(np.unique(injected("rademacher"))) == {-1.5, 1.5}
    law = scipy.stats.uniform(-1.5 * math.sqrt(3), 3 * math.sqrt(3))
    # Kolmogorov-Smirnov below 1e-6: the rate of false alarms.
    assert scipy.stats.kstest(injected("uniform"), law.cdf).pvalue > 1e-6
    normal = scipy.stats.norm(scale=1.5).cdf
    assert scipy.stats.kstest(injected("gaussian"), normal).pvalue > 1e-6


def test_the_gaussian_law_is_that_of_optax_add_noise():
    peer: Any = optax.add_noise(eta=1.5**2, gamma=0.0, key=jax.random.key(1))
    zeros = jnp.zeros(200_000)
    theirs, _ = peer.update(zeros, peer.init(zeros))
    for power in (1, 2, 4):
        a, b = injected("gaussian") ** power, np.asarray(theirs, np.float64) ** power
        error = math.sqrt((a.var() + b.var()) / a.size)
        assert abs(a.mean() - b.mean()) <= 5.5 * error


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0, 3.0])
def test_bounded_noise_knows_its_moments(q):
    edge = 2.0 * math.sqrt(3)
    even = scipy.stats.uniform(-edge, 2 * edge)
    expected = even.expect(lambda x: abs(x) ** q)
    assert math.isclose(uniform(2.0).beta_moment(q) or 0, expected, rel_tol=1e-6)
    assert rademacher(2.0).beta_moment(q) == 2.0**q


def test_the_draw_is_that_of_the_key_the_count_and_the_leaf():
    key = jax.random.key(3)
    transformation: Any = inject_gradient_noise(0.5, key)
    gradient = {"a": jnp.ones((2, 3)), "b": jnp.zeros([], jnp.bfloat16)}
    state = transformation.init(gradient)
    for count in range(2):
        noisy, state = transformation.update(gradient, state)
        draw_key = jax.random.fold_in(key, count)
        draw = jax.random.normal(jax.random.fold_in(draw_key, 0), (2, 3))
        np.testing.assert_allclose(noisy["a"], 1 + 0.5 * draw, rtol=1e-6)
        draw = jax.random.normal(jax.random.fold_in(draw_key, 1), ())
        assert noisy["b"] == jnp.bfloat16(0.5 * draw)
    assert state.count == 2


def test_the_noise_may_follow_a_schedule():
    levels = jnp.array([0.0, 1.0, 10.0])
    transformation: Any = inject_gradient_noise(
        lambda count: levels[count], jax.random.key(0), law="rademacher"
    )
    zeros = jnp.zeros(4)
    state = transformation.init(zeros)
    for level in levels:
        noise, state = transformation.update(zeros, state)
        np.testing.assert_array_equal(jnp.abs(noise), level)


def test_without_noise_and_decay_it_is_sgd_bit_for_bit():
    params = {"w": jax.random.normal(jax.random.key(0), (3, 50)), "b": jnp.float32(2.0)}
    gradient = jax.grad(lambda p: jnp.sum(jnp.cos(3 * p["w"])) + p["b"] ** 4 / 9)

    def descend(optimizer):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(gradient(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        carry = params, optimizer.init(params)
        return jax.lax.scan(step, carry, length=30)[0][0]

    def first_update(optimizer, gradient):
        return optimizer.update(gradient, optimizer.init(params), params)[0]

    def ours(noise_std):
        return annealed_sgd(schedules.constant(0.037), noise_std, KEY)

    @jax.jit
    def both(noise_std, gradient):
        # A traced 0 is drawn for. A whole run under it would not do: without the sum in
        # between XLA folds the rate into constants of the gradient.
        return (
            (descend(ours(0.0)), first_update(ours(noise_std), gradient)),
            (descend(optax.sgd(0.037)), first_update(optax.sgd(0.037), gradient)),
        )

    pair = both(0.0, params)
    for a, b in zip(*map(jax.tree.leaves, pair), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# --- second moments -----------------------------------------------------------------


def rate_tables():
    """Rates of 1,000 steps: constant, geometric, polynomial."""
    counts = jnp.arange(1000)
    made = (
        schedules.constant(0.3),
        schedules.geometric(0.8, 0.01, 800),
        schedules.polynomial(0.9, 10 / 9, 1.0),
    )
    return jnp.stack([jax.vmap(schedule)(counts) for schedule in made])


@functools.cache
def squares_of_chains():
    """``fn(law, rates)``: mean and standard error of x^2 after every step.

    One entry of the parameters is one chain: entries have independent noise.
    """
    eigenvalues = jnp.array([1.0, 0.4])[:, None]

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def run(law, rates):
        optimizer = annealed_sgd(
            lambda count: rates[count], 1.3, jax.random.key(5), law=law
        )

        def step(carry, _):
            x, state = carry
            updates, state = optimizer.update(eigenvalues * x, state, x)
            x = optax.apply_updates(x, updates)
            errors = jnp.std(x**2, axis=1) / math.sqrt(CHAINS)
            return (x, state), (jnp.mean(x**2, axis=1), errors)

        start = jnp.full((2, CHAINS), 3.0)
        return jax.lax.scan(step, (start, optimizer.init(start)), length=1000)[1]

    return run


@pytest.mark.parametrize(
    "law", ["gaussian", *(pytest.param(x, marks=pytest.mark.slow) for x in LAWS[1:])]
)
def test_second_moments_obey_their_recursion_under_any_law(law):
    # 24 comparisons of 5 standard errors for each law: a false alarm in 1.4e-5.
    rates = np.asarray(rate_tables(), np.float64)
    found = squares_of_chains()(law, rates.astype(np.float32))
    for table, means, errors in zip(rates, *map(np.asarray, found), strict=True):
        moments = np.array([9.0, 9.0])
        for k, rate in enumerate(table, start=1):
            moments = (1 - rate * np.array([1.0, 0.4])) ** 2 * moments
            moments = moments + (1.3 * rate) ** 2
            if k in (1, 10, 100, 1000):
                off = np.abs(means[k - 1] - moments)
                assert np.all(off <= 5 * errors[k - 1]), k
    # The recursion of the fixed rate has come to its limit.
    moments = np.full(2, 9.0)
    for _ in range(1000):
        moments = (1 - 0.3 * np.array([1.0, 0.4])) ** 2 * moments + (1.3 * 0.3) ** 2
    eigenvalues = np.array([1.0, 0.4])
    limit = 0.3 * 1.3**2 / (eigenvalues * (2 - 0.3 * eigenvalues))
    np.testing.assert_allclose(moments, limit, rtol=1e-10)


# --- Langevin -----------------------------------------------------------------------


def test_a_langevin_step_is_that_of_blackjax_on_the_same_noise():
    key, x = jax.random.key(2), jnp.array([0.5, -2.0, 1.0])
    sgld = blackjax.sgld(lambda position, minibatch: -3.0 * position)
    transformation: Any = langevin(0.7, 0.02, key)
    state: Any = transformation.init(x)
    mine = theirs = x
    for count in range(3):
        updates, state = transformation.update(3.0 * mine, state, mine)
        mine = optax.apply_updates(mine, updates)
        noise_key = jax.random.fold_in(jax.random.fold_in(key, count), 0)
        theirs = sgld.step(noise_key, theirs, (), 0.02, 0.7)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_annealed_langevin_obeys_its_recursion_on_a_quadratic():
    # 3 comparisons of 5.5 standard errors: a false alarm in 1e-7.
    temperatures = schedules.geometric(2.0, 0.05, 100)
    transformation: Any = langevin(temperatures, 0.1, jax.random.key(0))

    @jax.jit
    def run():
        def step(carry, _):
            x, state = carry
            updates, state = transformation.update(2.0 * x, state, x)
            return (optax.apply_updates(x, updates), state), jnp.stack(
                [jnp.mean(x**2), jnp.std(x**2)]
            )

        start = jnp.full(CHAINS, 3.0)
        return jax.lax.scan(step, (start, transformation.init(start)), length=101)[1]

    found = np.asarray(run())
    moment = 9.0
    for k in range(100):
        now = 2.0 * (0.05 / 2.0) ** (k / 100)
        moment = (1 - 0.1 * 2.0) ** 2 * moment + 2 * 0.1 * now
        if k + 1 in (5, 30, 100):
            mean, spread = found[k + 1]
            assert abs(mean - moment) <= 5.5 * spread / math.sqrt(CHAINS)


# --- the temperature of a run -------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_the_estimate_is_the_unbiased_variance_averaged_over_entries(dtype):
    rng = np.random.default_rng(0)
    grads = {
        "w": jnp.asarray(rng.normal(2.0, 3.0, (7, 2, 5)), dtype),
        "b": jnp.asarray(rng.normal(0.0, 9.0, 7), dtype),
    }
    flat = np.concatenate(
        [np.asarray(x, np.float64).reshape(7, -1) for x in grads.values()], axis=1
    )
    expected = math.sqrt(np.mean(np.var(flat, axis=0, ddof=1)))
    got = estimate_noise_std(grads)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_the_estimate_neither_overflows_nor_hides_nan():
    grads = jnp.array([[1e30, 0.0], [-1e30, 0.0]])
    np.testing.assert_allclose(estimate_noise_std(grads), 1e30, rtol=1e-6)
    assert estimate_noise_std(jnp.ones((4, 3))) == 0.0
    assert np.isnan(estimate_noise_std(grads.at[0, 0].set(jnp.nan)))


def test_the_monitor_reports_the_noise_of_the_mean_of_the_groups():
    schedule = schedules.stagewise(0.5, 0.1, 1)
    optimizer: Any = optax.chain(
        temperature_monitor(schedule), aggregate_mean(), optax.sgd(schedule)
    )
    size, groups = 4_000, 12
    state = optimizer.init(jnp.zeros(size))
    assert np.isnan(state[0].temperature)
    update = jax.jit(optimizer.update)
    rng = np.random.default_rng(0)
    for rate in (0.5, 0.05):
        grads = rng.normal(5.0, 3.0, (groups, size)).astype(np.float32)
        updates, state = update(grads, state)
        expected = math.sqrt(np.mean(np.var(grads.astype(float), 0, ddof=1)) / groups)
        np.testing.assert_allclose(state[0].noise_std, expected, rtol=1e-5)
        np.testing.assert_allclose(
            state[0].temperature, rate * expected**2 / 2, rtol=1e-5
        )
        # What the step saw: a deviation of 3 / sqrt(12), to 5.5 standard errors.
        seen = np.std(np.asarray(updates) / -rate)
        assert abs(seen / expected - 1) <= 5.5 / math.sqrt(2 * size)
    assert state[0].count == 2


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inject_gradient_noise(-1.0, KEY), "noise_std must be >= 0, got -1.0"),
        (lambda: inject_gradient_noise(1.0, KEY, law="t"), "law .*uniform, got 't'"),
        (lambda: annealed_sgd(0.0, 1.0, KEY), "schedule must be > 0, got 0.0"),
        (lambda: annealed_sgd(0.1, -1.0, KEY), "noise_std must be >= 0, got -1.0"),
        (lambda: annealed_sgd(0.1, 1.0, KEY, smoothness=0.0), "smoothness must be > 0"),
        (lambda: langevin(0.0, 0.1, KEY), "temperature_schedule must be > 0, got 0.0"),
        (lambda: langevin(0.1, 0.0, KEY), "step_size must be > 0, got 0.0"),
        (lambda: temperature_monitor(-0.1), "learning_rate must be > 0, got -0.1"),
        (lambda: estimate_noise_std(jnp.ones((1, 3))), "at least 2 examples, got 1"),
        (lambda: estimate_noise_std(jnp.ones([])), "leading sample axis, got a scalar"),
        (lambda: rademacher(-1.0), "scale must be >= 0, got -1.0"),
        (lambda: uniform(-1.0), "scale must be >= 0, got -1.0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "schedule",
    [
        0.1,
        schedules.geometric(0.1, 0.01, 100),
        # Its largest rate comes after the warmup.
        schedules.wsd(0.1, 300, 1000, 1000),
        schedules.wsd(0.1, 20_000, 30_000, 1000),
    ],
)
def test_an_unstable_schedule_is_warned_of(schedule):
    with pytest.warns(UserWarning, match=r"schedule \* smoothness .* below 2, got 2.5"):
        annealed_sgd(schedule, 1.0, KEY, smoothness=25.0)


def test_a_stable_or_traced_schedule_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        annealed_sgd(0.1, 1.0, KEY, smoothness=19.9)
        annealed_sgd(schedules.cosine(0.1, 50), 1.0, KEY, smoothness=19.9)

        @jax.jit
        def first_update(rate):
            tx: Any = annealed_sgd(
                schedules.cosine(rate, 50), 0.0, KEY, smoothness=25.0
            )
            return tx.update(jnp.ones([]), tx.init(jnp.zeros([])))[0]

        np.testing.assert_allclose(first_update(0.1), -0.1, rtol=1e-6)


KEY_0 = jax.random.key(0)


def test_a_schedule_in_python_is_looked_at_for_the_warning():
    with pytest.warns(UserWarning, match="should stay below 2, got 3"):
        annealed_sgd(lambda k: 0.1 if k < 10 else 0.01, 1.0, KEY_0, smoothness=30.0)
