"""What rounding does to the ridge statistics over a million rank-one updates."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim
from experiments.eqol.config import Config
from experiments.eqol.runs import compiled
from experiments.figures import log_axes, new_figure
from experiments.results import Metric
from jaxopt_suite import bandits
from jaxopt_suite.problems.linear_bandit import draw_features

D, NOISE, CHUNKS = 20, 0.5, 10
QUANTITIES = ("theta", "V_inv", "logdet", "asymmetry")
WAYS = ("never refactored", "refactored after each tenth")


@compiled
def _chunk(states, x, rewards):
    """Both ways through the same rows; the second refactors at the end."""

    def step(states, row):
        return jax.vmap(bandits.ridge_update, (0, None, None))(states, *row), None

    states, _ = jax.lax.scan(step, states, (x, rewards))
    fresh = jax.vmap(bandits.ridge_refactor)(states)
    refactor = jnp.arange(len(WAYS)) == 1

    def pick(new, old):
        return jnp.where(refactor.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(pick, fresh, states), states


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Errors before each refactoring, of shape (ways, chunks, quantities)."""
    theta_key, row_key, noise_key = jax.random.split(key, 3)
    theta = np.asarray(draw_features(theta_key, (D,)))
    start = bandits.ridge_init(D, keep_gram=True)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), start)
    gram, b = np.eye(D), np.zeros(D)
    size, errors = config.drift_updates // CHUNKS, []
    for chunk in range(CHUNKS):
        x = draw_features(jax.random.fold_in(row_key, chunk), (size, D))
        noise = jax.random.normal(jax.random.fold_in(noise_key, chunk), (size,))
        rewards = x @ theta + NOISE * noise
        states, before = _chunk(states, x, rewards)
        # The float64 solution of the very same float32 rows.
        rows = np.asarray(x, np.float64)
        gram += rows.T @ rows
        b += np.asarray(rewards, np.float64) @ rows
        errors.append([_errors(before, way, gram, b) for way in range(len(WAYS))])
    return {"errors": np.swapaxes(errors, 0, 1)}


def _errors(states, way, gram, b) -> list[Any]:
    V_inv = np.asarray(states.V_inv[way], np.float64)
    exact, theta = np.linalg.inv(gram), np.linalg.solve(gram, b)
    found = np.asarray(states.theta[way], np.float64)
    return [
        np.linalg.norm(found - theta) / np.linalg.norm(theta),
        np.linalg.norm(V_inv - exact) / np.linalg.norm(exact),
        abs(float(states.logdet[way]) - np.linalg.slogdet(gram)[1]),
        np.abs(V_inv - V_inv.T).max(),
    ]


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims of the drift."""
    counts = updates(config)
    metrics = {
        "drift": Metric(
            data["errors"],
            (("way", WAYS), ("updates", counts), ("quantity", QUANTITIES)),
        )
    }
    names = ("relative error of theta", "relative error of V^-1", "error of logdet")
    claims = [
        Claim(
            f"{config.drift_updates:,} float32 updates at d={D}, {way}: {name}",
            data["errors"][i, -1, j],
        )
        for j, name in enumerate(names)
        for i, way in enumerate(WAYS)
    ]
    return metrics, {"drift": _figure(config, data, names)}, tuple(claims)


def updates(config: Config) -> np.ndarray:
    """How many rows were learned when errors were measured."""
    return np.arange(1, CHUNKS + 1) * (config.drift_updates // CHUNKS)


def _figure(config, data, names):
    figure, panels = new_figure(
        f"Float32 statistics against a float64 solution, d={D}", columns=len(names)
    )
    for j, (axes, name) in enumerate(zip(panels[0], names, strict=True)):
        for way, errors in zip(WAYS, data["errors"], strict=True):
            axes.plot(updates(config), errors[:, j], label=way)
        axes.set(xlabel="rank-one updates", ylabel=name)
        log_axes(axes, "y")
    panels[0, 0].legend()
    return figure
