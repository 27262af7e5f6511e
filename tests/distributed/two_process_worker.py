"""One process of two; ``python two_process_worker.py PORT RANK FOLDER``.

Process 0 leaves what the run computed in FOLDER/result.npz.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxopt_suite.core import (
    Problem,
    checkpoint,
    device_mesh,
    fetch,
    optimization_loop,
    optimize,
    run_chunks,
    shard_leading,
    sweep,
)

PROBLEM = Problem(
    init=lambda key: jax.random.uniform(key, (3,)),
    grad=lambda key, x: x + jax.random.uniform(key, x.shape),
    metrics=lambda x: jnp.sum(x**2) / 2,
)


def descend(key, rate):
    """Last parameters, recorded losses and the key itself, for one lane."""
    result = optimize(optax.sgd(rate), PROBLEM, key, 20, record_every=5)
    return result.params, result.record, key


def swept(mesh):
    """Fifteen lanes over four devices."""
    keys = jax.random.split(jax.random.key(3), 5)
    rates = np.array([0.1, 0.5, 0.9])
    params, record, lane_keys = sweep(descend, keys, {"rate": rates}, mesh=mesh)
    # Whole on every host: readable without a fetch.
    return {
        "params": np.asarray(params),
        "record": np.asarray(record),
        "keys": np.asarray(jax.random.key_data(lane_keys)),
    }


def chunked(mesh, folder):
    """Eight lanes laid over the devices of all processes, stopped and resumed."""
    loop = optimization_loop(optax.adam(0.1), PROBLEM, record_every=2)
    lanes = loop._replace(update=jax.vmap(loop.update, in_axes=(None, 0)))
    start = jax.vmap(loop.init)(jax.random.split(jax.random.key(4), 8))
    start = shard_leading(start, mesh, "lanes")
    run_chunks(lanes, start, 4, chunk=2, directory=folder)
    state, rows = run_chunks(lanes, start, 7, chunk=3, directory=folder, resume=True)
    found = checkpoint.restore(folder, {"state": state, "outputs": rows})
    assert found is not None
    step, again = found
    assert step == 7
    assert again["state"].params.sharding == start.params.sharding
    return {
        "rows": rows,
        "state": fetch(again["state"].params),
        "state_keys": np.asarray(jax.random.key_data(fetch(again["state"].key))),
    }


def everything(folder):
    """Both parts on four devices, however many processes hold them."""
    mesh = device_mesh("lanes", 4)
    return swept(mesh) | chunked(mesh, folder / "steps")


def main(port, rank, folder):
    """Joins the other process, then runs with it."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    assert jax.process_count() == 2
    results = everything(folder)
    if rank == 0:
        np.savez(folder / "result.npz", **results)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
