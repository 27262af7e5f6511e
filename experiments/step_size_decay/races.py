"""Many optimizers of one kind on a landscape, which share their starts and noise.

A point of a race is what sets an optimizer apart from the others: mostly its row of
learning rates, one per step, so that fixed rates and decays of every shape run in one
compile and every difference between them is the schedule's.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from experiments.statistics import bootstrap_interval
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.landscapes import RASTRIGIN
from jaxopt_suite import problems, stochastic
from jaxopt_suite.stochastic import schedules

SIGMA = RASTRIGIN.noise_std
# Our decay on the reference landscape, by its temperatures.
HOT, COLD = 0.6265, 0.03
# Where the schedules start that are compared; each family is judged at its best.
STARTS = (0.3, 0.42, HOT, 0.84)
ROWS = 32
OURS = "geometric"


def fixed_rows(values: Any, num_steps: int) -> Float[Array, "n steps"]:
    """One row for each value, which it keeps."""
    return jnp.broadcast_to(
        jnp.asarray(values, jnp.float32)[:, None], (len(values), num_steps)
    )


def schedule_rows(
    family: Callable[..., optax.Schedule], values: Any, num_steps: int
) -> Float[Array, "n steps"]:
    """One row for each schedule ``family(value)``."""
    counts = jnp.arange(num_steps)

    def row(value):
        return jnp.asarray(jax.vmap(family(value))(counts))

    return jax.vmap(row)(jnp.asarray(values, jnp.float32))


def fixed_temperatures(config: Config) -> np.ndarray:
    """Temperatures of the fixed rates; the hottest is stable, at rate * L = 0.66."""
    return np.geomspace(0.8, 0.05, config.simulated_rates)


def families(num_steps: int):
    """Schedules of the temperature by name, as functions of where they start."""
    n = num_steps
    return {
        OURS: lambda hot: schedules.geometric(hot, COLD, n),
        "14 stages": lambda hot: schedules.stagewise(
            hot, (COLD / hot) ** (1 / 13), -(-n // 14)
        ),
        "1/k": lambda hot: schedules.polynomial(hot, n / (hot / COLD - 1), 1.0),
        "1/log k": lambda hot: schedules.inverse_log(hot * np.log(100.0), 100.0),
        "linear to zero": lambda hot: schedules.linear_to_zero(hot, n),
        "cosine": lambda hot: schedules.cosine(hot, n, COLD),
        "warmup, stable, decay": lambda hot: schedules.wsd(
            hot, n // 20, n // 2, n - n // 2 - n // 20, COLD
        ),
        "4 cycles": lambda hot: schedules.cyclic(hot, COLD, n // 4),
    }


def sgd(noise_std, law: str = "gaussian"):
    """``make(key, rates)``: SGD with a row of rates on noisy gradients."""

    def make(key, rates):
        return stochastic.annealed_sgd(lambda k: rates[k], noise_std, key, law=law)

    return make


noisy_sgd = sgd(SIGMA)


@functools.cache
def rastrigin(dimension: int) -> Callable[[], problems.Landscape]:
    """The reference landscape; made once, as the landscape of a race is static."""
    return functools.partial(problems.rastrigin, dimension, A=1.0)


@functools.partial(
    jax.jit,
    static_argnames=("make", "landscape", "num_steps", "num_chains", "rows", "init"),
)
def race(
    key,
    points: PyTree,
    *,
    make: Callable[..., optax.GradientTransformation],
    landscape: Callable[[], problems.Landscape],
    num_steps: int,
    num_chains: int,
    rows: int = ROWS,
    init: Callable | None = None,
) -> Float[Array, "points rows+1 chains"]:
    """Exact values along the runs of ``make(key, point)`` for every point."""

    def run(point):
        return stochastic.run_chains(
            landscape(),
            lambda chain_key: make(chain_key, point),
            key,
            num_steps=num_steps,
            num_chains=num_chains,
            record_every=num_steps // rows,
            init=init,
        ).value

    return jax.vmap(run)(points)


def best_point(finals: np.ndarray) -> int:
    """The point of least mean over seeds; one that diverged is never it."""
    means = np.mean(finals, axis=-1)
    return int(np.argmin(np.where(np.isfinite(means), means, np.inf)))


def ratio_of_best(above: np.ndarray, below: np.ndarray):
    """Least mean of the points of ``above`` over that of ``below``, and its spread.

    Seeds are drawn together, and the best point is chosen anew for every draw.

    Args:
        above: shape (points, seeds).
        below: shape (points, seeds), the same seeds.
    """
    count = len(above)

    def ratio(*samples, axis=-1):
        means = np.mean(np.stack(samples), axis=axis)
        return means[:count].min(axis=0) / means[count:].min(axis=0)

    finite = [rows[np.isfinite(rows).all(axis=-1)] for rows in (above, below)]
    count = len(finite[0])
    samples = [*finite[0], *finite[1]]
    interval = bootstrap_interval(samples, ratio, paired=True, method="percentile")
    return float(ratio(*samples)), interval
