"""How the battery is called on ensembles and on policies that switch rarely."""

from jaxopt_suite.bandits.optimism import oful
from jaxopt_suite.problems.linear_bandit import linear_env

# Few arms in few dimensions, so that a refresh happens within the battery's steps.
WORLD = {"environment": linear_env(2, 3, noise=0.1)}
NO_MEMBERS = ({"num_members": 0}, "num_members must be an integer >= 1, got 0")
NEGATIVE_GROWTH = ({"growth": -0.5}, "growth must be >= 0, got -0.5")

ENSEMBLES = {
    "bandits.ensemble_mixture": WORLD
    | {
        "hyperparameters": {"lam": (0.5, 1.0), "scale": (0.5, 1.0)},
        "static": {"d": 2, "num_members": 3},
        "randomized": True,
        "bad": [NO_MEMBERS, ({"lam": 0.0}, "lam must be > 0, got 0.0")],
    },
    "bandits.ensemble_sampling": WORLD
    | {
        "hyperparameters": {"lam": (0.5, 1.0), "scale": (0.5, 1.0)},
        "static": {"d": 2, "num_members": 3, "symmetrized": True},
        "randomized": True,
        "bad": [NO_MEMBERS, ({"scale": 0.0}, "scale must be > 0, got 0.0")],
    },
    "bandits.lazy": WORLD
    | {
        "hyperparameters": {"growth": (0.1, 0.9)},
        "static": {"policy": oful(2), "trigger": "trace"},
        "bad": [
            NEGATIVE_GROWTH,
            ({"trigger": "det"}, "trigger must be one of logdet, trace, spectral"),
        ],
    },
    "bandits.lazy_ensemble_sampling": WORLD
    | {
        "hyperparameters": {
            "lam": (0.5, 1.0),
            "noise": (0.1, 0.2),
            "bound": (0.5, 1.0),
            "conf": (0.01, 0.1),
            "growth": (0.1, 0.9),
        },
        "static": {"d": 2, "num_members": 3, "within_epoch": "frozen"},
        "randomized": True,
        "bad": [
            NO_MEMBERS,
            NEGATIVE_GROWTH,
            ({"scale": "large"}, "scale must be one of theory, finite, got 'large'"),
            ({"scale": "finite"}, "scale='finite' needs num_arms"),
        ],
    },
    "bandits.lazy_ensemble_sampling:implicit": WORLD
    | {
        "hyperparameters": {"scale": (0.1, 0.2), "growth": (0.1, 0.9)},
        "static": {"d": 2, "members": "implicit"},
        "randomized": True,
    },
    "bandits.rare_oful": WORLD
    | {
        "hyperparameters": {"growth": (0.1, 0.9), "noise": (0.1, 0.2)},
        "static": {"d": 2},
        "bad": [NEGATIVE_GROWTH, ({"noise": -1.0}, "noise must be >= 0")],
    },
}
