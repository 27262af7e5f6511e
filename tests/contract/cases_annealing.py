"""How the battery is called on the factories of annealing."""

NEGATIVE_NOISE = ({"noise_std": -1.0}, "noise_std must be >= 0, got -1.0")

ANNEALING = {
    "stochastic.annealed_sgd": {
        "hyperparameters": {"schedule": 0.1, "noise_std": (0.5, 1.0)},
        "key": "key",
        "bad": [NEGATIVE_NOISE, ({"schedule": 0.0}, "schedule must be > 0, got 0.0")],
    },
    "stochastic.inject_gradient_noise": {
        "hyperparameters": {"noise_std": (0.5, 1.0)},
        "key": "key",
        "bad": [NEGATIVE_NOISE, ({"law": "cauchy"}, "law must be one of gaussian")],
    },
    "stochastic.langevin": {
        "hyperparameters": {"temperature_schedule": (0.1, 1.0), "step_size": 0.1},
        "key": "key",
        "bad": [
            ({"temperature_schedule": 0.0}, "temperature_schedule must be > 0"),
            ({"step_size": -0.1}, "step_size must be > 0, got -0.1"),
        ],
    },
    "stochastic.temperature_monitor": {
        "hyperparameters": {"learning_rate": 0.1},
        "num_samples": 9,
        "bad": [({"learning_rate": 0.0}, "learning_rate must be > 0, got 0.0")],
    },
}
