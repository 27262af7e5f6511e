"""How the battery is called on the environments of contextual bandits."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxopt_suite.problems.click_model import ClickModel
from jaxopt_suite.problems.contextual import LinearDecision

NOISE = ({"noise": -0.1}, "noise must be >= 0, got -0.1")
NUM_ARMS = 3
ROWS = np.array([[0.1, 2.0], [0.5, 1.0], [0.9, 0.0], [0.2, 3.0]], np.float32)
LABELS = np.array([0, 1, 2, 1])
MODEL = ClickModel(
    weights=jnp.array([-0.5, 1.0, 2.0, 0.5, -1.0]),
    user=jnp.array([[0.0], [1.0], [1.0]]),
    affinity=jnp.array([[0.0, 0.7, 0.0], [0.0, 0.0, 0.0], [1.1, 0.0, 0.0]]),
    item=jnp.array([[-1.0], [0.1], [0.6]]),
    scale=jnp.array(2.0),
)


def any_arm(context, key):
    """A uniformly drawn arm, its features all that the environment never reads."""
    arm = jax.random.randint(key, (), 0, NUM_ARMS, jnp.int32)
    nan = jnp.array(jnp.nan, jnp.float32)
    x = context.features.reshape(-1, context.features.shape[-1])[0]
    valid, member = jnp.array(True), jnp.array(-1, jnp.int32)
    return LinearDecision(arm, x, nan, nan, nan, valid, member)


BANDIT_WORLDS = {
    "problems.classification_env": {
        "static": {"X": ROWS, "y": LABELS},
        "decide": any_arm,
        "bad": [
            ({"y": LABELS[:3]}, r"y must be integer labels of shape \(4,\)"),
            ({"y": LABELS - 1}, "labels from -1 to 1"),
            ({"X": ROWS * np.nan}, "features must be finite, got 8 entries"),
            ({"encoding": "joint"}, "encoding must be one of disjoint, shared"),
        ],
    },
    "problems.classification_env:shared": {
        "static": {"X": ROWS, "y": LABELS, "encoding": "shared"},
        "decide": any_arm,
    },
    "problems.gap_env": {
        "hyperparameters": {"gap": (0.1, 0.4), "noise": (0.1, 0.5)},
        "static": {"d": 3, "K": NUM_ARMS},
        "decide": any_arm,
        "bad": [
            NOISE,
            ({"d": 1}, "d must be an integer >= 2, got 1"),
            ({"K": 0}, "K must be an integer >= 1, got 0"),
            ({"gap": 0.0}, r"gap must be in \(0, 1.5\], got 0.0"),
        ],
    },
    "problems.linear_env": {
        "hyperparameters": {"noise": (0.1, 0.5), "theta_norm": (0.5, 2.0)},
        "static": {"d": 2, "K": NUM_ARMS},
        "decide": any_arm,
        "bad": [
            NOISE,
            ({"d": 0}, "d must be an integer >= 1, got 0"),
            ({"K": 2.0}, "K must be an integer >= 1, got 2.0"),
            ({"pool": 0}, "pool must be an integer >= 1, got 0"),
            ({"theta_norm": -1.0}, "theta_norm must be >= 0, got -1.0"),
            ({"arms": "moving"}, "arms must be one of fixed, iid, pool, got 'moving'"),
            ({"features": "cube"}, "features must be one of sphere, gauss, ball"),
        ],
    },
    "problems.linear_env:iid": {
        "hyperparameters": {"noise": (0.1, 0.5)},
        "static": {"d": 2, "K": NUM_ARMS, "arms": "iid", "features": "ball"},
        "decide": any_arm,
    },
    "problems.linear_env:pool": {
        "hyperparameters": {"noise": (0.1, 0.5)},
        "static": {"d": 2, "K": NUM_ARMS, "arms": "pool", "pool": 2},
        "decide": any_arm,
    },
    "problems.obd_env": {
        "hyperparameters": {"logit_shift": (0.0, 2.0)},
        "static": {"model": MODEL},
        "decide": any_arm,
        "bad": [({"logit_shift": np.inf}, "logit_shift must be .*got inf")],
    },
}
