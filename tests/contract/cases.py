"""How the battery is called on every public factory of jaxopt_suite.

``CASES["package.factory"]`` holds the keyword arguments of the battery of its shape.
A second case of the same factory has a name after a colon.
"""

import jax
import jax.numpy as jnp
import optax
import sound
from cases_annealing import ANNEALING
from cases_bandit_worlds import BANDIT_WORLDS
from cases_bco import BCO
from cases_bco_worlds import BCO_WORLDS
from cases_ensembles import ENSEMBLES
from cases_linear_bandits import LINEAR_BANDITS
from cases_quantization import QUANTIZATION

from jaxopt_suite import stochastic
from jaxopt_suite.core import Problem

ODD_GROUPS = ({"num_groups": 2}, "num_groups must be an odd integer >= 1, got 2")
RAW_GRADIENTS = {
    "float32_statistics": "its window holds gradients as they came, no statistics"
}


def previous_gradient(key, params, updates):
    del key, params
    return {"updates_prev": jax.tree.map(lambda u: 0.5 * u, updates)}


def quadratic():
    """Noisy gradients of half the squared norm."""
    return Problem(
        init=lambda key: jax.random.normal(key, (3,)),
        grad=lambda key, x: x + jax.random.normal(key, x.shape),
        metrics=lambda x: {"loss": 0.5 * jnp.sum(x**2)},
    )


CORE = {
    "core.interaction_loop": {
        "static": {
            "policy": sound.optimistic(0.5),
            "environment": sound.noisy_arms(0.1),
            "horizon": 3,
            "delays": 1,
        },
        "init": lambda key: (key,),
        "inputs": lambda key: None,
        "bad": [({"horizon": 0}, "horizon must be an integer >= 1, got 0")],
    },
    "core.optimization_loop": {
        "static": {"optimizer": optax.sgd(0.1, momentum=0.9), "problem": quadratic()},
        "init": lambda key: (key,),
        "inputs": lambda key: None,
        "bad": [({"record_every": 0}, "record_every must be an integer >= 1, got 0")],
    },
}

STOCHASTIC = {
    "stochastic.accumulate_median_of_means": {
        "static": {"num_groups": 3},
        "bad": [ODD_GROUPS],
        "skip": RAW_GRADIENTS,
    },
    "stochastic.adaptive_median_of_means": {
        "static": {"group_size": lambda count: 1 + 2 * (count > 0)},
        "num_samples": 9,
        "bad": [({"group_size": 3}, "group_size must be a schedule")],
    },
    "stochastic.add_noise_to_gradient": {
        "static": {"noise": stochastic.gaussian(0.1)},
        "key": "key",
    },
    "stochastic.aggregate_clip_then_mean": {
        "hyperparameters": {"max_norm": (1.0, 2.0)},
        "num_samples": 9,
        "bad": [({"max_norm": 0.0}, "max_norm must be > 0, got 0.0")],
    },
    "stochastic.aggregate_geometric_median": {
        "hyperparameters": {"eps": (1e-4, 1e-2)},
        "static": {"num_groups": 3, "num_iters": 4},
        "num_samples": 9,
        "bad": [ODD_GROUPS, ({"eps": 0.0}, "eps must be > 0, got 0.0")],
    },
    "stochastic.aggregate_mean": {"num_samples": 9},
    "stochastic.aggregate_median_of_means": {
        "static": {"num_groups": 3},
        "num_samples": 9,
        "bad": [
            ODD_GROUPS,
            ({"num_groups": 5}, "num_groups 5"),
            ({"smoothing": -1.0}, "smoothing must be >= 0, got -1.0"),
            ({"smoothing": 0.1}, "needs a key"),
        ],
    },
    "stochastic.aggregate_median_of_means:smoothed": {
        "hyperparameters": {"smoothing": (0.1, 0.5)},
        "static": {"num_groups": 3},
        "num_samples": 9,
        "key": "key",
    },
    "stochastic.aggregate_medoid": {
        "static": {"num_groups": 3},
        "num_samples": 9,
        "bad": [ODD_GROUPS],
    },
    "stochastic.aggregate_trimmed_mean": {
        "static": {"trim": 1},
        "num_samples": 9,
        "bad": [({"trim": 5}, "trim"), ({"trim": -1}, "trim must be an integer >= 0")],
    },
    "stochastic.clip_by_scheduled_norm": {
        "hyperparameters": {"max_norm": (1.0, 2.0)},
        "bad": [({"max_norm": -1.0}, "max_norm must be > 0, got -1.0")],
    },
    "stochastic.clipped_sgd": {
        "hyperparameters": {"learning_rate": 0.1, "max_norm": (1.0, 2.0)},
        "bad": [({"max_norm": 0.0}, "max_norm must be > 0, got 0.0")],
    },
    "stochastic.clipped_sstm": {
        "hyperparameters": {
            "smoothness": (1.0, 2.0),
            "a": (1.0, 3.0),
            "clip_b": (0.5, 1.0),
        },
        "bad": [
            ({"smoothness": 0.0}, "smoothness must be > 0, got 0.0"),
            ({"a": 0.5}, "a must be >= 1, got 0.5"),
            ({"clip_b": 0.0}, "clip_b must be > 0, got 0.0"),
        ],
    },
    "stochastic.median_of_means_steps": {
        "static": {"inner": optax.sgd(0.1), "num_groups": 3},
        "bad": [ODD_GROUPS],
        "skip": RAW_GRADIENTS,
    },
    "stochastic.mom_clipped_sgd": {
        "hyperparameters": {"learning_rate": 0.1, "max_norm": (1.0, 2.0)},
        "static": {"num_groups": 3},
        "num_samples": 9,
        "bad": [ODD_GROUPS, ({"max_norm": 0.0}, "max_norm must be > 0, got 0.0")],
    },
    "stochastic.mom_clipped_sstm": {
        "hyperparameters": {"smoothness": (1.0, 2.0), "clip_b": (0.5, 1.0)},
        "static": {"num_groups": 3},
        "num_samples": 9,
        "bad": [ODD_GROUPS, ({"smoothness": 0.0}, "smoothness must be > 0, got 0.0")],
    },
    "stochastic.normalize": {
        "hyperparameters": {"eps": (1e-12, 1e-6)},
        "bad": [({"eps": -1.0}, "eps must be >= 0, got -1.0")],
    },
    "stochastic.normalized_sgd_momentum": {
        "hyperparameters": {"learning_rate": 0.1, "b1": 0.9},
        "bad": [({"b1": 1.0}, r"b1 must be in \[0, 1\), got 1.0")],
    },
    "stochastic.restarted_clipped_sstm": {
        "hyperparameters": {"smoothness": (1.0, 2.0), "clip_b": (0.5, 1.0)},
        "static": {"period": 2},
        "bad": [
            ({"period": 0}, "period must be an integer >= 1, got 0"),
            ({"smoothness": 0.0}, "smoothness must be > 0, got 0.0"),
        ],
    },
    "stochastic.robustify": {
        "static": {"optimizer": optax.sgd(0.1), "num_groups": 3},
        "num_samples": 9,
        "bad": [ODD_GROUPS],
    },
    "stochastic.storm": {
        "hyperparameters": {"beta": (0.5, 0.9)},
        "extra_args": previous_gradient,
        "bad": [({"beta": 0.0}, r"beta must be in \(0, 1\], got 0.0")],
    },
    "stochastic.tail_index_monitor": {
        "static": {"k": 2, "window": 6},
        "skip": {"zero_gradients": "NaN says that there is no estimate"},
        "num_samples": 9,
        "bad": [({"k": 0}, "k must be an integer >= 1, got 0")],
    },
}

CASES = (
    CORE
    | STOCHASTIC
    | ANNEALING
    | QUANTIZATION
    | BANDIT_WORLDS
    | BCO
    | BCO_WORLDS
    | ENSEMBLES
    | LINEAR_BANDITS
)
