"""How the battery is called on the worlds and baselines of convex bandits."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxopt_suite.problems.bco import bco_env
from jaxopt_suite.problems.bco_losses import norm_segments
from jaxopt_suite.problems.bco_lower_bounds import rademacher_blocks

LOSSES = norm_segments(8, 2, num_segments=2)
WORLD = {"environment": bco_env(LOSSES), "randomized": True}
CLOCK = {"masked_feedback": "every update is a round: its clock moves without feedback"}


class Point(NamedTuple):
    x: jax.Array


def any_point(context, key):
    """A point of the unit square."""
    del context
    return Point(jax.random.uniform(key, (2,), jnp.float32))


BCO_WORLDS = {
    "bandits.bandit_mild_ogd": WORLD
    | {
        "static": {"example_action": jnp.zeros(2), "horizon": 8, "d_max": 1},
        "skip": CLOCK,
        "bad": [({"d_max": 8}, "d_max must be below the horizon 8, got 8")],
    },
    "bandits.delayed_bgd": WORLD
    | {
        "hyperparameters": {"delta": (0.1, 0.3), "eta": (0.01, 0.1)},
        "static": {"example_action": jnp.zeros(2)},
        "skip": CLOCK,
        "bad": [
            ({"delta": 0.0}, "delta must be > 0, got 0.0"),
            ({"eta": -1.0}, "eta must be >= 0, got -1.0"),
        ],
    },
    "problems.bco_env:random": {
        "static": {"losses": rademacher_blocks(8, 2, 2, 2).losses},
        "decide": any_point,
    },
    "problems.bco_env": {
        "static": {"losses": LOSSES},
        "skip": {"keys_matter": "nothing about these losses is random"},
        "decide": any_point,
        "bad": [({"losses": None}, "losses must be a LossSequence or RandomLosses")],
    },
}
