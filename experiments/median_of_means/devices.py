"""The aggregator laid over devices against one device, in a process with eight.

``python -m experiments.median_of_means.devices`` prints the largest differences.
"""

import functools
import json
import os
import subprocess
import sys

import numpy as np

from experiments.claims import Claim, at_most
from experiments.results import Metric

COUNTS = (1, 3, 5, 2, 4, 8)
EXACT = 3
FLAG = "--xla_force_host_platform_device_count=8"


def differences() -> list[float]:
    """Largest difference to one device for each of ``COUNTS``, relative to max |G|."""
    import jax
    from jax.sharding import PartitionSpec

    from jaxopt_suite import stochastic
    from jaxopt_suite.core import device_mesh

    def reduce(samples, axis_name=None):
        aggregate = stochastic.aggregate_median_of_means(15, axis_name=axis_name)
        return aggregate.update(samples, aggregate.init(samples[0]))[0]

    draw = jax.jit(stochastic.cauchy().__call__, static_argnums=1)
    found = []
    for count in COUNTS:
        samples = np.asarray(draw(jax.random.key(count), (15 * count, 1000)))
        expected = np.asarray(jax.jit(reduce)(samples))
        mapped = jax.shard_map(
            functools.partial(reduce, axis_name="data"),
            mesh=device_mesh("data", count),
            in_specs=PartitionSpec("data"),
            out_specs=PartitionSpec(),
        )
        off = np.abs(np.asarray(jax.jit(mapped)(samples)) - expected)
        found.append(float(np.max(off / np.max(np.abs(samples), axis=0))))
    return found


def compute() -> dict[str, np.ndarray]:
    """Runs :func:`differences` in a process of its own, with eight host devices."""
    flags = " ".join([os.environ.get("XLA_FLAGS", ""), FLAG])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.median_of_means.devices"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the eight-device process failed:\n{done.stderr}")
    return {"differences": np.array(json.loads(done.stdout))}


def summarize(data: dict[str, np.ndarray]):
    """Metrics and claims from the differences."""
    found = data["differences"]
    metrics = {"device_difference": Metric(found, (("devices", COUNTS),))}
    claims = (
        Claim(
            "Over 1, 3 and 5 devices the median of means equals one device bit for bit "
            "(largest difference)",
            float(found[:EXACT].max()),
            at_most(0.0),
        ),
        Claim(
            "Over 2, 4 and 8 devices, where groups straddle devices, it is equal to "
            "rounding (largest difference relative to the largest sample)",
            float(found[EXACT:].max()),
            at_most(1e-6),
        ),
    )
    return metrics, {}, claims


if __name__ == "__main__":
    json.dump(differences(), sys.stdout)
