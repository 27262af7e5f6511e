"""Two values a round, against a simulation and against one value a round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.bco import dars
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.bandits.bco_two_point import (
    dars_two_point,
    two_point_env,
    two_point_schedule,
)
from jaxopt_suite.core import interact
from jaxopt_suite.problems.bco import bco_env
from jaxopt_suite.problems.bco_losses import norm_segments

T, N, D = 60, 2, 3
STARTS = (0, 20)
KEY = jax.random.key(0)


def test_rounds_are_those_of_the_definition():
    losses = norm_segments(T, N, segment_starts=STARTS)
    schedule = two_point_schedule(T, N, segment_starts=STARTS, d_max=D)
    policy = dars_two_point(jnp.zeros(N), schedule)
    run = jax.jit(
        lambda: interact(policy, two_point_env(losses), KEY, T, delays=D, record="full")
    )()
    decision, feedback, _ = jax.tree.map(np.asarray, run.record)
    for j, (start, length) in enumerate(((0, 20), (20, 40))):
        delta = 1 / np.sqrt(length)
        eta = 1 / np.sqrt(length * (N**2 + N * D))
        target = np.array([0.5 - j, 0.0])
        loss = lambda x: np.linalg.norm(x - target) - 0.5  # noqa: E731
        y, terms = np.zeros(N), []
        for t in range(start, start + length):
            u = decision.direction[t].astype(float)
            x, mirror = y + delta * u, y - delta * u
            np.testing.assert_allclose(decision.x[t], x, atol=2e-5)
            np.testing.assert_allclose(decision.mirror[t], mirror, atol=2e-5)
            paid, gap = (loss(x) + loss(mirror)) / 2, loss(x) - loss(mirror)
            np.testing.assert_allclose(feedback.value[t], paid, atol=2e-5)
            np.testing.assert_allclose(feedback.difference[t], gap, atol=2e-5)
            np.testing.assert_allclose(feedback.regret[t], paid + 0.5, atol=2e-5)
            terms.append(N / (2 * delta) * gap * u)
            # No term is longer than n G, however small delta is.
            assert np.linalg.norm(terms[-1]) <= N * (1 + 1e-6)
            # What comes after its segment has ended is in no sum.
            y = -eta * np.sum(terms[: max(t - start + 1 - D, 0)], axis=0)
            y = y * min(1, (1 - delta) / max(np.linalg.norm(y), 1e-30))
        assert np.linalg.norm(y) > 0.1


@pytest.mark.slow
def test_two_values_are_worth_much_more_than_one():
    horizon = 2**16
    losses = norm_segments(horizon, N)
    one = dars(jnp.zeros(N), dars_schedule(horizon, N, k_scale=0.2)), bco_env(losses)
    two = (
        dars_two_point(jnp.zeros(N), two_point_schedule(horizon, N)),
        two_point_env(losses),
    )

    def mean_regret(policy, world):
        keys = jax.random.split(jax.random.key(0), 4)
        return np.mean(
            jax.jit(
                jax.vmap(
                    lambda key: interact(policy, world, key, horizon).record.regret[-1]
                )
            )(keys)
        )

    assert mean_regret(*one) >= 5 * mean_regret(*two)
