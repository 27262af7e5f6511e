"""A checkpointed run to be killed; ``python killed_run.py FOLDER``."""

import sys
import time

import jax
import jax.numpy as jnp
import optax

from jaxopt_suite.core import Problem, optimization_loop, run_chunks

NUM_STEPS, CHUNK = 60, 2


def make():
    """The loop and its start, the same in every process."""
    problem = Problem(
        init=lambda key: jax.random.uniform(key, (4,)),
        grad=lambda key, x: x + jax.random.uniform(key, x.shape),
        metrics=jnp.sum,
    )
    loop = optimization_loop(optax.adam(0.05), problem, record_every=3)
    return loop, loop.init(jax.random.key(8))


def never_finish(done, state, rows):
    """Waits for the kill before the last chunk, should it be late."""
    del state, rows
    if done == NUM_STEPS - CHUNK:
        time.sleep(600)


if __name__ == "__main__":
    run_chunks(
        *make(),
        NUM_STEPS,
        chunk=CHUNK,
        directory=sys.argv[1],
        tag="long run",
        on_chunk=never_finish,
    )
