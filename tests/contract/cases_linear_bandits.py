"""How the battery is called on linear contextual policies."""

import jax
import jax.numpy as jnp
import optax

from jaxopt_suite.problems.bandit_data import classification_env
from jaxopt_suite.problems.linear_bandit import linear_env
from jaxopt_suite.problems.stochastic import LabelledData

SHARED = {"environment": linear_env(2, 3, noise=0.1), "static": {"d": 2}}
ROWS, LABELS = jnp.array([[0.1, 2.0], [0.5, 1.0], [0.9, 0.0]]), jnp.array([0, 1, 2])
# Two columns and the intercept.
DISJOINT = {
    "environment": classification_env(ROWS, LABELS),
    "static": {"d": 3, "layout": "disjoint", "num_arms": 3},
}
LAM = {"lam": (0.5, 2.0)}
RADIUS = LAM | {"noise": (0.1, 0.5), "bound": (0.5, 1.0), "conf": (0.01, 0.1)}
NO_LAM = ({"lam": 0.0}, "lam must be > 0, got 0.0")
NO_ARMS = ({"num_arms": None}, "layout='disjoint' needs num_arms")
NEGATIVE_NOISE = ({"noise": -0.1}, "noise must be .*got -0.1")
WRONG_WIDTH = ({"d": 3}, r"features must have shape \(num_arms, 3\), got \(3, 2\)")


def one_row(key):
    row_key, label_key = jax.random.split(key)
    return LabelledData(
        jax.random.normal(row_key, (2,), jnp.float32),
        jax.random.randint(label_key, (), 0, 3, jnp.int32),
    )


def encode(params, x):
    return jnp.tanh(params @ x)


LINEAR_BANDITS = {
    "bandits.epsilon_greedy": SHARED
    | {
        "hyperparameters": LAM | {"epsilon": (0.2, 1.0)},
        "randomized": True,
        "bad": [NO_LAM, ({"epsilon": 1.5}, r"epsilon must be in \[0, 1\], got 1.5")],
    },
    "bandits.epsilon_greedy:schedule": DISJOINT
    | {
        "static": DISJOINT["static"] | {"epsilon": optax.linear_schedule(1.0, 0.5, 3)},
        "randomized": True,
    },
    "bandits.eqol": SHARED
    | {
        "hyperparameters": RADIUS
        | {"a": (0.05, 0.2), "cap": (1.0, 2.0), "horizon": (3.0, 9.0)},
        "bad": [NO_LAM, NEGATIVE_NOISE, WRONG_WIDTH],
    },
    "bandits.eqol:balanced": DISJOINT
    | {
        "hyperparameters": RADIUS | {"feature_bound": (0.5, 1.0), "c2": (0.5, 2.0)},
        "static": DISJOINT["static"] | {"a": "balanced"},
        "bad": [NO_ARMS, ({"cap": 1.0}, "cap and c2 are two ways")],
    },
    "bandits.eqol_on_features": SHARED
    | {
        "hyperparameters": RADIUS | {"c1": (0.5, 1.0), "params": (ROWS, -ROWS)},
        "static": {"apply_fn": encode, "example": jnp.zeros(2), "capacity": 2},
        "bad": [NO_LAM, ({"capacity": 0}, "capacity must be an integer >= 1, got 0")],
    },
    "bandits.generalized_eqol": SHARED
    | {
        "hyperparameters": RADIUS | {"feature_bound": (0.5, 1.0), "a": (0.05, 0.2)},
        "static": SHARED["static"] | {"link": "poisson"},
        "bad": [
            NO_LAM,
            ({"link": "probit"}, "link must be one of logistic, poisson"),
            ({"bound": 0.0}, "bound must be > 0, got 0.0"),
        ],
    },
    "bandits.generalized_eqol:disjoint": DISJOINT
    | {
        "hyperparameters": RADIUS,
        "static": DISJOINT["static"] | {"link": "logistic"},
    },
    "bandits.greedy": SHARED | {"hyperparameters": LAM, "bad": [NO_LAM]},
    "bandits.index_policy": SHARED
    | {
        "hyperparameters": LAM,
        "static": {"d": 2, "index": lambda state, means, widths: (means, widths)},
        "bad": [NO_LAM],
    },
    "bandits.lin_imed": SHARED | {"hyperparameters": RADIUS, "bad": [NEGATIVE_NOISE]},
    "bandits.lin_phe": SHARED
    | {
        "hyperparameters": LAM | {"perturb": (0.5, 1.0)},
        "static": {"d": 2, "horizon": 2},
        "randomized": True,
        "bad": [
            ({"perturb": 0.0}, "perturb must be .*> 0, got 0.0"),
            ({"horizon": 0}, "horizon must be an integer >= 1, got 0"),
        ],
    },
    "bandits.lin_phe:disjoint": DISJOINT
    | {
        "hyperparameters": LAM | {"perturb": (0.5, 1.0)},
        "static": DISJOINT["static"] | {"horizon": 2},
        "randomized": True,
    },
    "bandits.lin_ts": SHARED
    | {"hyperparameters": RADIUS, "randomized": True, "bad": [NO_LAM, NEGATIVE_NOISE]},
    "bandits.lin_ts:disjoint": DISJOINT
    | {
        "hyperparameters": LAM | {"scale": (0.5, 1.0)},
        "randomized": True,
        "bad": [NO_ARMS, ({"scale": -1.0}, "scale must be .*got -1.0")],
    },
    "bandits.linucb": SHARED
    | {
        "hyperparameters": LAM | {"alpha": (0.5, 1.0)},
        "bad": [NO_LAM, ({"alpha": -1.0}, "alpha must be .*got -1.0")],
    },
    "bandits.oful": SHARED
    | {
        "hyperparameters": RADIUS | {"multiplier": (0.5, 1.0)},
        "bad": [NEGATIVE_NOISE, ({"multiplier": -1.0}, "multiplier must be .*-1.0")],
    },
    "bandits.random_policy": {
        "environment": SHARED["environment"],
        "static": {"num_arms": 3},
        "randomized": True,
        "bad": [
            ({"num_arms": 0}, "num_arms must be an integer >= 1, got 0"),
            ({"num_arms": 4}, "features must have 4 rows, one per arm"),
        ],
    },
    "bandits.squarecb": SHARED
    | {
        "hyperparameters": LAM | {"gamma": (1.0, 4.0)},
        "randomized": True,
        "bad": [NO_LAM, ({"gamma": 0.0}, "gamma must be .*> 0, got 0.0")],
    },
    "bandits.supervised_ridge": {
        "hyperparameters": LAM,
        "static": {"d": 2, "num_arms": 3},
        "init": lambda key: (jnp.zeros(2),),
        "inputs": one_row,
        "bad": [NO_LAM, ({"d": 3}, r"features must have shape \(3,\), got \(2,\)")],
    },
}
