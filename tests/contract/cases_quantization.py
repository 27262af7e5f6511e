"""How the battery is called on the factories of quantization."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxopt_suite import quantization

INT3 = quantization.make_quantizer("int3", quantization.per_block(4))
STRENGTH = ({"strength": -1.0}, "strength must be >= 0, got -1.0")
BATCH_SIZE = ({"batch_size": 0}, "batch_size must be > 0, got 0")
MASK = ({"mask": {"z": True}}, "mask must be a pytree of bools")
# The matrix comes first, so that the wrappers of optax get a leaf that is quantized.
PARAMS = {
    "a": np.random.default_rng(1).standard_normal((2, 6)),
    "b": np.float32(0.4),
}


def squares(w):
    """A positive pytree like ``w``."""
    return jax.tree.map(lambda x: 1.0 + x**2, w)


QUANTIZATION = {
    "quantization.add_dampening_penalty": {
        "hyperparameters": {"strength": (0.1, 1.0)},
        "static": {"quantizer": INT3},
        "params": PARAMS,
        "bad": [STRENGTH, MASK],
    },
    "quantization.add_lotion_penalty": {
        "hyperparameters": {
            "strength": (0.1, 1.0),
            "batch_size": (1.0, 64.0),
            "b2": (0.9, 0.99),
        },
        "static": {"quantizer": INT3},
        "params": PARAMS,
        "bad": [
            STRENGTH,
            BATCH_SIZE,
            MASK,
            ({"b2": 1.0}, r"b2 must be in \[0, 1\), got 1.0"),
            ({"curvature": "gnb"}, "curvature must be 'second_moment' .* got 'gnb'"),
        ],
    },
    "quantization.add_lotion_penalty:given": {
        "hyperparameters": {"strength": (0.1, 1.0)},
        "static": {"quantizer": INT3},
        "params": PARAMS,
        "extra_args": lambda key, params, updates: {"curvature": squares(params)},
    },
    "quantization.average_curvature": {
        "hyperparameters": {"b2": (0.5, 0.9)},
        "static": {"estimate": squares, "every": 2},
        "init": lambda key: (jnp.ones(3),),
        "inputs": lambda key: (jax.random.normal(key, (3,)),),
        "bad": [
            ({"every": 0}, "every must be an integer >= 1, got 0"),
            ({"b2": 1.0}, r"b2 must be in \[0, 1\), got 1.0"),
        ],
    },
    "quantization.lotion_adamw": {
        "hyperparameters": {
            "learning_rate": (0.01, 0.1),
            "strength": (0.1, 1.0),
            "batch_size": (1.0, 64.0),
            "b1": (0.5, 0.9),
            "b2": (0.9, 0.99),
            "eps": 1e-6,
            "weight_decay": (0.0, 1e-2),
        },
        "static": {"quantizer": INT3},
        "params": PARAMS,
        "bad": [STRENGTH, BATCH_SIZE, ({"b1": 0.99}, r"b1\*\*2 < b2")],
    },
    "quantization.scale_by_lotion_adam": {
        "hyperparameters": {"strength": (0.1, 1.0), "max_ratio": (1.0, 2.0)},
        "static": {"quantizer": INT3},
        "params": PARAMS,
        "bad": [
            STRENGTH,
            BATCH_SIZE,
            MASK,
            ({"b1": 1.0}, r"b1 must be in \[0, 1\), got 1.0"),
            ({"b2": -0.1}, r"b2 must be in \[0, 1\), got -0.1"),
            ({"eps": -1.0}, "eps must be >= 0, got -1.0"),
            ({"max_ratio": 0.0}, "max_ratio must be > 0, got 0.0"),
        ],
    },
}
