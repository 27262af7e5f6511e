"""How the battery is called on the policies of bandit convex optimization."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxopt_suite.bandits.bco_schedule import BCOSchedule
from jaxopt_suite.bandits.bco_two_point import (
    TwoPointDecision,
    two_point_env,
    two_point_schedule,
)
from jaxopt_suite.problems.bco import bco_env
from jaxopt_suite.problems.bco_losses import norm_segments

LOSSES = norm_segments(8, 2, segment_starts=(0, 4))
# Blocks of 2 rounds in segments of 4 end and restart within the battery's few steps.
SCHEDULE = BCOSchedule(
    starts=np.array([0, 3]),
    lengths=np.array([3, 5]),
    K=np.array([2, 2]),
    delta=np.array([0.3, 0.2]),
    eta=np.array([0.1, 0.2]),
    feasible=np.array([True, True]),
)
CLOCK = {"masked_feedback": "every update is a round: its clock moves without feedback"}
SHORT = {"d_max": 1, "bound": 0.1}


def play_both(context, key):
    """Any two points, as a two-point policy plays them."""
    del context
    u = jax.random.uniform(key, (2,))
    zero = jnp.zeros([], jnp.int32)
    return TwoPointDecision(u, -u, u, jnp.ones([]), zero, zero)


BCO = {
    "bandits.dars": {
        "hyperparameters": {"strong_convexity": (0.5, 1.0)},
        "static": {"schedule": SCHEDULE, "baseline": "mean"}
        | {"example_action": jnp.zeros(2)},
        "environment": bco_env(LOSSES),
        "randomized": True,
        "skip": CLOCK,
        "bad": [
            ({"strong_convexity": -1.0}, "strong_convexity must be >= 0, got -1.0"),
            ({"baseline": "median"}, "baseline must be None or 'mean', got 'median'"),
            ({"y0": jnp.zeros(3)}, "y0 must have the shapes"),
            ({"example_action": jnp.zeros(2, int)}, "must have a floating dtype"),
        ],
    },
    "bandits.dftbl": {
        "static": {"example_action": jnp.zeros(2), "horizon": 8} | SHORT,
        "environment": bco_env(LOSSES),
        "randomized": True,
        "skip": CLOCK,
        "bad": [({"d_max": 8}, "d_max must be below the horizon 8, got 8")],
    },
    "bandits.periodic_restart": {
        "static": {"example_action": jnp.zeros(2), "horizon": 8, "period": 2} | SHORT,
        "environment": bco_env(LOSSES),
        "randomized": True,
        "skip": CLOCK,
        "bad": [({"period": 0}, "period must be an integer >= 1, got 0")],
    },
    "bandits.static_oracle": {
        "static": {"minimizer": LOSSES.minimizer},
        "environment": bco_env(LOSSES),
        "skip": CLOCK,
        "bad": [({"minimizer": jnp.zeros(2)}, "minimizer must be a function")],
    },
    "bandits.dars_detect": {
        "hyperparameters": {"threshold": (0.01, 0.25)},
        "static": {"example_action": jnp.zeros(2), "horizon": 8, "expected_length": 4}
        | {"window": 1}
        | SHORT,
        "environment": bco_env(LOSSES),
        "randomized": True,
        "skip": CLOCK,
        "bad": [
            ({"threshold": 0.0}, "threshold must be > 0, got 0.0"),
            ({"window": 0}, "window must be an integer >= 1, got 0"),
            ({"expected_length": 9}, "expected_length must be at most the horizon 8"),
        ],
    },
    "bandits.dars_two_point": {
        "static": {
            "example_action": jnp.zeros(2),
            "schedule": two_point_schedule(8, 2, segment_starts=(0, 2)),
        },
        "environment": two_point_env(LOSSES),
        "randomized": True,
        "skip": CLOCK,
        "bad": [({"y0": jnp.zeros(3)}, "y0 must have the shapes")],
    },
    "bandits.two_point_env": {
        "static": {"losses": LOSSES},
        "decide": play_both,
        "skip": {"keys_matter": "nothing about these losses is random"},
        "bad": [({"losses": None}, "losses must be a LossSequence or RandomLosses")],
    },
}
