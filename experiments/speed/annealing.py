"""Speed of annealing: against drawing the same normals alone, NumPy and peers."""

import functools
import importlib.util
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.speed.timing import Ratio, compare
from jaxopt_suite import problems, stochastic
from jaxopt_suite.stochastic import schedules

NOISE_STD, STEPS = 10.0, 1000
SIZES = ((128, 16), (512, 64))
# Chains and dimensions of the table of costs.
COSTS = ((1, 1), (1, 1024), (32, 16), (128, 1), (128, 16), (128, 256), (2048, 16))
RATE = 0.0125


def annealed(key):
    """SGD that cools from T = 0.63 to 0.03."""
    return stochastic.annealed_sgd(
        schedules.geometric(RATE, 6e-4, STEPS), NOISE_STD, key
    )


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def chains(key, num_chains: int, dimension: int, optimizer=annealed):
    """Last values of chains on Rastrigin."""
    return stochastic.run_chains(
        problems.rastrigin(dimension, A=1.0),
        optimizer,
        key,
        num_steps=STEPS,
        num_chains=num_chains,
        record_every=STEPS,
    ).value[-1]


@functools.partial(jax.jit, static_argnums=(1, 2))
def normals(key, num_chains: int, dimension: int):
    """The sum of as many normals, drawn with a key of each chain and step."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_chains))

    def draw(key, step):
        return jax.random.normal(jax.random.fold_in(key, step), (dimension,))

    def add(total, step):
        return total + jax.vmap(draw, (0, None))(keys, step), None

    zero = jnp.zeros((num_chains, dimension))
    return jax.lax.scan(add, zero, jnp.arange(STEPS))[0]


def numpy_chains(num_chains: int, dimension: int) -> np.ndarray:
    """The same chains in vectorized NumPy, one Python step at a time."""
    generator = np.random.default_rng(0)
    shape = (num_chains, dimension)
    x = 3 + 0.5 * generator.standard_normal(shape, np.float32)
    rates = (RATE * (6e-4 / RATE) ** (np.arange(STEPS) / STEPS)).astype(np.float32)
    period, std = np.float32(2 * np.pi), np.float32(NOISE_STD)
    for rate in rates:
        slope = 2 * x + period * np.sin(period * x)
        x -= rate * (slope + std * generator.standard_normal(shape, np.float32))
    return np.sum(x**2 + 1 - np.cos(period * x), axis=1)


def python_loop(num_chains: int, dimension: int):
    """The same chains as a Python loop over one jitted Optax step of all of them."""
    landscape = problems.rastrigin(dimension, A=1.0)
    keys = jax.random.split(jax.random.key(0), num_chains)

    def start(key):
        x = landscape.sample_init(key)
        return x, annealed(key).init(x)

    @jax.jit
    @jax.vmap
    def step(key, x, state):
        gradient = jax.grad(landscape.value)(x)
        updates, state = annealed(key).update(gradient, state, x)
        return optax.apply_updates(x, updates), state

    first = jax.jit(jax.vmap(start))

    def run():
        x, state = first(keys)
        for _ in range(STEPS):
            x, state = step(keys, x, state)
        return x

    return run


def langevin(key):
    """Langevin at a fixed temperature, as the peer runs it."""
    return stochastic.langevin(0.3, RATE, key)


def blackjax_chains(num_chains: int, dimension: int):
    """The same Langevin chains with BlackJAX's stochastic gradient Langevin."""
    import blackjax

    landscape = problems.rastrigin(dimension, A=1.0)
    gradient = jax.grad(lambda x: -landscape.value(x))
    kernel: Any = blackjax.sgld.build_kernel()

    def one(key):
        start_key, run_key = jax.random.split(key)

        def step(x, number):
            step_key = jax.random.fold_in(run_key, number)
            return kernel(step_key, x, lambda x, _: gradient(x), None, RATE, 0.3), None

        start = landscape.sample_init(start_key)
        return jax.lax.scan(step, start, jnp.arange(STEPS))[0]

    run = jax.jit(jax.vmap(one))
    keys = jax.random.split(jax.random.key(0), num_chains)
    return lambda: run(keys)


def ratios() -> list[Ratio]:
    """Our chains against each peer."""
    key, found = jax.random.key(0), []
    for size in SIZES:
        what = f"run_chains, {size[0]} chains x d = {size[1]}"
        ours = functools.partial(chains, key, *size)
        found += [
            compare(
                f"{what}, against drawing the same normals alone",
                ours,
                functools.partial(normals, key, *size),
                turns=5,
            ),
            compare(
                f"{what}, against the same chains in vectorized NumPy",
                ours,
                functools.partial(numpy_chains, *size),
                turns=3,
            ),
            compare(
                f"{what}, against a Python loop over a jitted step",
                ours,
                python_loop(*size),
                turns=3,
            ),
        ]
        if importlib.util.find_spec("blackjax"):
            peer = blackjax_chains(*size)
            langevin_chains = functools.partial(chains, key, *size, langevin)
            what = f"{what}, Langevin, against BlackJAX's SGLD"
            found.append(compare(what, langevin_chains, peer, turns=5))
    return found


def costs() -> list[tuple[str, float]]:
    """Coordinate-steps by size, by the CPU time of all threads: per core, that is."""
    found = []
    for num_chains, dimension in (*COSTS, SIZES[1]):
        run = functools.partial(chains, jax.random.key(1), num_chains, dimension)
        jax.block_until_ready(run())
        start = time.process_time()
        jax.block_until_ready(run())
        used = time.process_time() - start
        millions = num_chains * dimension * STEPS / used / 1e6
        found.append(
            (
                f"run_chains, {num_chains} chains x d = {dimension}: million "
                "coordinate-steps per second of CPU time",
                millions,
            )
        )
    return found


def run() -> tuple[list[Ratio], list[tuple[str, float]]]:
    """All ratios, and the cost by size."""
    return ratios(), costs()
