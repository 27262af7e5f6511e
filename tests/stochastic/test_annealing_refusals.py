"""Laws, starts, keys and noise that do not fit are refused with a clear message."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.problems import quadratic, rastrigin
from jaxopt_suite.stochastic import (
    ChainRecord,
    annealed_sgd,
    inject_gradient_noise,
    langevin,
    queries_to_target,
    replica_summary,
    run_chains,
    temperature_monitor,
)
from jaxopt_suite.stochastic import annealing_oracle as oracle
from jaxopt_suite.stochastic.diffusion_oracle import gibbs

KEY_0 = jax.random.key(0)
GRID = np.linspace(-4.4, 4.4, 177)
START = gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, GRID)


def waves(x):
    return x**2 + 1 - np.cos(2 * np.pi * x)


def waves_slope(x):
    return 2 * x + 2 * np.pi * np.sin(2 * np.pi * x)


LAW = jnp.asarray(START, jnp.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: oracle.transition_matrix(waves_slope, GRID, GRID, 10.0),
            "lr must be a single number, got shape",
        ),
        (
            lambda: oracle.propagate(waves_slope, GRID, 0.006, GRID, START, 1),
            "noise_std must be a single number",
        ),
        (
            lambda: oracle.propagate_stages(
                waves_slope, GRID, np.ones(2), np.ones(3), START, 2
            ),
            r"noise_std must be a number or have the shape \(2,\) of rates",
        ),
        (
            lambda: oracle.propagate_stages(waves_slope, GRID, [1e-4], 1.0, START, 2),
            "grid must have steps",
        ),
        (
            lambda: oracle.fixed_rate_queries(
                waves, waves_slope, GRID, 10.0, START, [np.nan], [0.006]
            ),
            "targets must be numbers, got",
        ),
        (lambda: oracle.expected_value(LAW, jnp.sum, GRID), "h must act entry by ent"),
        (
            lambda: oracle.propagate(jnp.sum, GRID, 0.006, 10.0, LAW, 1),
            "h_grad must act entry by entry",
        ),
        (
            lambda: oracle.expected_value(list(2 * START), waves, GRID),
            "the law must have masses",
        ),
        (lambda: oracle.total_variation(START, np.ones(1)), "q must have the shape"),
    ],
)
def test_what_a_law_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init": jnp.ones((2, 3))}, r"minimizer's shape \(2,\), got \(3,\)"),
        ({"init": jnp.ones(2)}, r"minimizer's shape \(2,\), got \(\)"),
        ({"init": lambda key: jnp.ones(3)}, r"minimizer's shape \(2,\), got \(3,\)"),
        ({"init": jnp.ones((2, 2), int)}, "init must have a floating dtype, got int"),
        ({"optimizer": "sgd"}, "optimizer must be a function of a key or a transf"),
    ],
)
def test_starts_and_optimizers_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        run_chains(
            quadratic(jnp.ones(2)),
            key=KEY_0,
            num_steps=2,
            num_chains=2,
            record_every=1,
            **{"optimizer": optax.sgd(0.5), **settings},
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: inject_gradient_noise(1.0, jax.random.PRNGKey(0)),
            "key must be a typ",
        ),
        (lambda: annealed_sgd(0.1, 1.0, jax.random.PRNGKey(0)), "key must be a typed"),
        (lambda: langevin(0.1, 1.0, jax.random.PRNGKey(0)), "key must be a typed key"),
        (lambda: inject_gradient_noise(jnp.ones(3), KEY_0), "noise_std must be a sing"),
        (
            lambda: inject_gradient_noise(lambda count: -1.0, KEY_0).update(
                jnp.ones(2), inject_gradient_noise(1.0, KEY_0).init(jnp.ones(2))
            ),
            "noise_std must be >= 0, got -1",
        ),
        (
            lambda: temperature_monitor(0.1).update(
                jnp.ones((1, 3)), temperature_monitor(0.1).init(jnp.ones(3))
            ),
            "updates must have a leading axis of at least 2 groups, got 1",
        ),
    ],
)
def test_keys_noise_and_groups_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- chains and their records -------------------------------------------------------

RECORD = ChainRecord(*8 * (jnp.ones((1, 1)),))


def bad_run(**changes):
    options: dict[str, Any] = {
        "num_steps": 4,
        "num_chains": 2,
        "record_every": 2,
        "optimizer": optax.sgd(0.1),
    }
    options |= changes
    jax.eval_shape(
        lambda: run_chains(
            rastrigin(3, A=1.0), options.pop("optimizer"), KEY_0, **options
        )
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bad_run(num_chains=0), "num_chains must be an integer >= 1, got 0"),
        (lambda: bad_run(num_steps=0), "num_steps must be an integer >= 1, got 0"),
        (lambda: bad_run(record_every=0), "record_every must be .* >= 1, got 0"),
        (lambda: bad_run(num_steps=5), "multiple of record_every.*num_steps=5"),
        (lambda: bad_run(target=-1.0), "target must be >= 0, got -1.0"),
        (lambda: bad_run(init=jnp.ones((3, 3))), "init .*num_chains=2, got 3"),
        (
            lambda: bad_run(optimizer=annealed_sgd(0.01, 1.0, KEY_0)),
            "must be a function of a key",
        ),
        (
            lambda: bad_run(optimizer=optax.chain(optax.add_noise(1.0, 0.0, KEY_0))),
            "every chain would see the same noise",
        ),
        (lambda: queries_to_target(RECORD, -1.0), "target must be >= 0"),
        (
            lambda: queries_to_target(RECORD, 1.0, 0.0),
            r"quantile must be in \(0, 1\], got 0.0",
        ),
        (
            lambda: replica_summary(RECORD, quantiles=(1.5,)),
            r"quantiles must be in \[0, 1\]",
        ),
        (
            lambda: replica_summary(RECORD, confidence=1.0),
            r"confidence must be in \(0, 1\), got 1.0",
        ),
    ],
)
def test_bad_arguments_of_chains_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
