"""Helpers of the experiment on lazy ensembles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lazy_ensemble.diversity import worst_gain
from experiments.lazy_ensemble.policies import first_members
from experiments.lazy_ensemble.runs import slope
from jaxopt_suite import bandits, problems
from jaxopt_suite.core import interact

MAKE = {
    "standard": functools.partial(bandits.ensemble_sampling, scale=0.5),
    "lazy": functools.partial(
        bandits.lazy_ensemble_sampling, scale=0.5, members="implicit"
    ),
}


@pytest.mark.parametrize("kind", MAKE)
def test_the_first_members_of_an_ensemble_are_an_ensemble_of_that_size(kind):
    environment = problems.linear_env(3, 10, noise=0.5)

    @jax.jit
    def arms(count):
        policies = (first_members(MAKE[kind](3, 7), count), MAKE[kind](3, 2))
        return jnp.stack(
            [
                interact(
                    policy, environment, jax.random.key(4), 200, record="full"
                ).record.decision.arm
                for policy in policies
            ]
        )

    some, others = arms(2)
    assert len(np.unique(some)) > 1
    np.testing.assert_array_equal(some, others)
    assert (arms(7)[0] != others).any()


def test_the_worst_gain_is_that_of_the_best_member_in_the_worst_direction():
    # V = diag(1/4, 1) and members (4, 0) and (0, 1) at unit scale: V^(1/2) D is (2, 0)
    # and (0, 1), so the gains along the axes are 2 and 1, and at most 0 against them.
    V_inv, offsets = jnp.diag(jnp.array([4.0, 1.0])), jnp.diag(jnp.array([4.0, 1.0]))
    axes = jnp.eye(2)
    assert float(worst_gain(V_inv, offsets, 2, axes)) == pytest.approx(1.0)
    assert float(worst_gain(V_inv, offsets, 1, axes)) == pytest.approx(0.0)
    slanted = jnp.array([[-0.6, -0.8]])
    assert float(worst_gain(V_inv, offsets, 2, slanted)) == pytest.approx(-0.8)


def test_the_slope_of_a_power_is_its_exponent():
    x = np.array([1.0, 2.0, 4.0])
    value, interval = slope(x, (3.0 * x**1.5)[:, None] * np.array([1.0, 2.0]))
    assert value == pytest.approx(1.5)
    assert interval.low <= 1.5 <= interval.high
