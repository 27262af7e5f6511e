"""A random walk, whose steps are a long scan within a stage.

The experiment that the tests of the framework run. Variables of the environment make it
wait to be killed, or raise.
"""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.figures import new_figure, plot_spread
from experiments.results import Metric, Result
from experiments.stages import COMPUTE
from experiments.statistics import quantile_interval
from jaxopt_suite.core.loops import run_chunks
from jaxopt_suite.core.types import Transformation

STAGES = ("start", "walk")


@dataclasses.dataclass(frozen=True)
class Config:
    num_seeds: int = 6
    num_steps: int = 12
    limit: float = 1e3

    def __post_init__(self):
        if self.num_seeds < 2:
            raise ValueError(f"num_seeds must be >= 2, got {self.num_seeds}")


SCALES = {
    "smoke": Config(),
    "default": Config(limit=-1.0),
    "full": Config(num_seeds=64, num_steps=10**9),
}


class Start(NamedTuple):
    position: Any
    half: Any


def start(key, num_seeds):
    position = jax.random.normal(key, (num_seeds,))
    return Start(position, {"half": (position / 2).astype(jnp.bfloat16)})


def walk_loop(key):
    def update(inputs, state, **extra):
        del inputs, extra
        count, position = state
        noise = jax.random.normal(jax.random.fold_in(key, count), position.shape)
        position = 0.9 * position + noise
        return position, (count + 1, position)

    return Transformation(lambda position: (jnp.int32(0), position), update)


def walk(config, key, position, stages):
    loop = walk_loop(key)

    def pause(done, state, rows):
        del state, rows
        if done == 8 and "TOY_PAUSE" in os.environ:
            Path(os.environ["TOY_PAUSE"]).touch()
            time.sleep(600)

    _, path = run_chunks(
        loop,
        loop.init(jnp.asarray(position)),
        config.num_steps,
        chunk=4,
        directory=stages.directory("walk"),
        resume=stages.resume,
        tag=stages.tag,
        on_chunk=pause,
    )
    return path.T


def run(config, key, stages=COMPUTE):
    if "TOY_RAISE" in os.environ:
        raise ValueError("the toy is broken")
    first = stages("start", start, key, config.num_seeds)
    path = stages("walk", walk, config, key, first.position, stages)
    figure, axes = new_figure("Walk")
    plot_spread(axes[0, 0], range(config.num_steps), path.T, "walk")
    size = np.abs(path).max(axis=1)
    seeds = ("seed", range(config.num_seeds))
    metrics = {
        "path": Metric(path, (seeds, ("step", range(config.num_steps)))),
        "half": Metric(first.half["half"], (seeds,)),
        "count": Metric(config.num_steps),
    }
    claims = (
        Claim(
            "the walk | stays *within* its <limit>",
            measured=np.median(size),
            threshold=at_most(config.limit),
            interval=quantile_interval(size),
            paper="1.5",
        ),
        Claim("it moves", measured=size.min(), threshold=at_least(0.0)),
        Claim("how far it gets", measured=size.max()),
    )
    return Result(metrics, {"walk": figure}, claims)


def shapes(config):
    loop = walk_loop(jax.random.key(0))
    first = jax.eval_shape(lambda key: start(key, config.num_seeds), jax.random.key(0))
    state = jax.eval_shape(loop.init, first.position)
    row, after = jax.eval_shape(loop.update, None, state)
    assert row.shape == (config.num_seeds,)
    assert after == state
