"""The methods that race: robust means and their baselines, tuned alike."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxopt_suite import stochastic
from jaxopt_suite.core import Problem, optimize

STEP_SIZES = (0.01, 0.03, 0.1, 0.3)
CLIPS = (1.0, 3.0, 10.0, np.inf)
# The accelerated method's last step size (its steps grow linearly) and clipping level.
LAST_STEPS = (1.0, 3.0, 10.0, 30.0)
CLIP_BS = (0.3, 1.0, 3.0, np.inf)
ROWS = 20


class Method(NamedTuple):
    """A named optimizer with the grid it is tuned on.

    Attributes:
        name: for tables and figures.
        batch: gradient samples per step.
        make: ``make(key, num_steps, **point) -> optimizer`` on per-example gradients.
        grid: name -> values; tuned over their product.
        accelerated: whether the solution is the averaged iterate of clipped SSTM.
    """

    name: str
    batch: int
    make: Callable[..., optax.GradientTransformation]
    grid: tuple[tuple[str, tuple[float, ...]], ...]
    accelerated: bool = False

    def points(self) -> dict[str, np.ndarray]:
        """All points of the grid, one array per name."""
        mesh = np.meshgrid(*(values for _, values in self.grid), indexing="ij")
        names = (name for name, _ in self.grid)
        return {
            n: m.ravel().astype(np.float32) for n, m in zip(names, mesh, strict=True)
        }


SGD_GRID = (("step_size", STEP_SIZES), ("max_norm", CLIPS))
SSTM_GRID = (("last_step", LAST_STEPS), ("clip_b", CLIP_BS))
SMOOTHING = (("smoothing", (0.1, 0.3, 1.0)),)


def _sgd(name, batch, aggregator) -> Method:
    def make(key, num_steps, step_size, max_norm):
        del key, num_steps
        return optax.chain(aggregator(), stochastic.clipped_sgd(step_size, max_norm))

    return Method(name, batch, make, SGD_GRID)


def _sstm(name, batch, aggregator) -> Method:
    def make(key, num_steps, last_step, clip_b):
        del key
        a = jnp.maximum(num_steps / (2 * last_step), 1.0)
        return optax.chain(
            aggregator(), stochastic.clipped_sstm(1.0, a=a, clip_b=clip_b)
        )

    return Method(f"{name}, accelerated", batch, make, SSTM_GRID, accelerated=True)


def _smoothed(batch, num_groups) -> Method:
    def make(key, num_steps, step_size, max_norm, smoothing):
        del num_steps
        return stochastic.mom_clipped_sgd(
            step_size, max_norm, num_groups, smoothing=smoothing, key=key
        )

    name = f"smoothed MoM {num_groups}x{batch // num_groups}"
    return Method(name, batch, make, SGD_GRID + SMOOTHING)


def _per_sample(batch) -> Method:
    def make(key, num_steps, step_size, max_norm):
        del key, num_steps
        return optax.chain(
            stochastic.aggregate_clip_then_mean(max_norm),
            optax.scale_by_learning_rate(step_size),
        )

    return Method("per-sample clip", batch, make, SGD_GRID)


def _sign(name, batch, aggregator) -> Method:
    def make(key, num_steps, step_size):
        del key, num_steps
        return optax.chain(aggregator(), optax.sign_sgd(step_size))

    return Method(f"{name}, sign", batch, make, SGD_GRID[:1])


def _mom(k):
    return functools.partial(stochastic.aggregate_median_of_means, k)


# Made once: the methods are static arguments, and a new one is a new compile.
@functools.cache
def sgd_methods(everything: bool) -> tuple[Method, ...]:
    """Clipped SGD on each estimate of the gradient."""
    core = (
        _sgd("mean + clip", 60, stochastic.aggregate_mean),
        _per_sample(60),
        _sgd("MoM 15x1", 15, _mom(15)),
        _sgd("MoM 7x8", 56, _mom(7)),
    )
    if not everything:
        return core
    medoid, geometric = (
        stochastic.aggregate_medoid,
        stochastic.aggregate_geometric_median,
    )
    trimmed = stochastic.aggregate_trimmed_mean
    return (
        *core,
        _sgd("MoM 15x4", 60, _mom(15)),
        _smoothed(15, 15),
        _sgd("medoid 15x1", 15, functools.partial(medoid, 15)),
        _sgd("medoid 15x4", 60, functools.partial(medoid, 15)),
        _sgd("geometric median 15x1", 15, functools.partial(geometric, 15)),
        _sgd("geometric median 15x4", 60, functools.partial(geometric, 15)),
        _sgd("trimmed mean 15", 15, functools.partial(trimmed, 5)),
        _sgd("trimmed mean 60", 60, functools.partial(trimmed, 20)),
        _sign("mean", 60, stochastic.aggregate_mean),
        _sign("MoM 15x1", 15, _mom(15)),
    )


@functools.cache
def accelerated_methods() -> tuple[Method, ...]:
    """Clipped SSTM on each estimate of the gradient."""
    medoid, geometric = (
        stochastic.aggregate_medoid,
        stochastic.aggregate_geometric_median,
    )
    trimmed = stochastic.aggregate_trimmed_mean
    return (
        _sstm("mean + clip", 60, stochastic.aggregate_mean),
        _sstm("MoM 15x1", 15, _mom(15)),
        _sstm("MoM 15x4", 60, _mom(15)),
        _sstm("MoM 7x8", 56, _mom(7)),
        _sstm("medoid 15x4", 60, functools.partial(medoid, 15)),
        _sstm("geometric median 15x4", 60, functools.partial(geometric, 15)),
        _sstm("trimmed mean 60", 60, functools.partial(trimmed, 20)),
    )


class Task(NamedTuple):
    """What the methods race on.

    Attributes:
        make_problem: ``make_problem(law, batch) -> Problem``; ``law`` may be traced.
        metric: name of the metric that counts, the smaller the better.
        oracle_calls: gradient samples that every method may use.
    """

    make_problem: Callable[[Any, int], Problem]
    metric: str
    oracle_calls: int

    def num_steps(self, method: Method) -> int:
        """Steps within the budget, a multiple of the number of recorded rows."""
        return max(self.oracle_calls // (method.batch * ROWS), 1) * ROWS


@functools.partial(jax.jit, static_argnames=("method", "task", "rows"))
def errors(method: Method, task: Task, law, keys, points, *, rows: int):
    """The metric along runs, of shape (seeds, points, rows + 1).

    All points of a seed see the same noise: their differences are the method's.
    """
    num_steps = task.num_steps(method)
    problem = task.make_problem(law, method.batch)

    def metric(params, state):
        if method.accelerated:
            params = stochastic.sstm_eval_params(state, params)
        return problem.metrics(params)[task.metric]

    def run(key, point):
        smoothing_key, key = jax.random.split(key)
        optimizer = method.make(smoothing_key, num_steps, **point)
        return optimize(
            optimizer,
            problem,
            key,
            num_steps,
            record=metric,
            record_every=num_steps // rows,
        ).record

    return jax.vmap(jax.vmap(run, (None, 0)), (0, None))(keys, points)


def upper_quantile(samples, axis=-1) -> np.ndarray:
    """The 95% quantile, with a run that left the floats counted as infinitely bad."""
    finite = np.nan_to_num(np.asarray(samples, np.float64), nan=1e300, posinf=1e300)
    return np.quantile(finite, 0.95, axis=axis)


def race(
    methods: tuple[Method, ...],
    task: Task,
    law: int,
    key,
    tuning_seeds: int,
    seeds: int,
) -> dict[str, np.ndarray]:
    """Tunes every method on some seeds and runs its best point on fresh ones.

    Returns:
        ``tuned``: the 95% quantile over tuning seeds at the best point, per method;
        ``best``: the number of that point; ``curves``: shape (methods, rows + 1, seeds)
        on fresh seeds, ``final``: their last row.
    """
    tuning_key, fresh_key = jax.random.split(key)
    tuning_keys = jax.random.split(tuning_key, tuning_seeds)
    fresh_keys = jax.random.split(fresh_key, seeds)
    tuned, best, curves = [], [], []
    for method in methods:
        points = method.points()
        last = errors(method, task, law, tuning_keys, points, rows=1)[:, :, -1]
        quantiles = upper_quantile(last, axis=0)
        choice = int(np.argmin(quantiles))
        chosen = {name: values[choice : choice + 1] for name, values in points.items()}
        fresh = errors(method, task, law, fresh_keys, chosen, rows=ROWS)[:, 0]
        tuned.append(quantiles[choice])
        best.append(choice)
        curves.append(np.asarray(fresh).T)
    return {
        "tuned": np.array(tuned),
        "best": np.array(best),
        "curves": np.stack(curves),
        "final": np.stack(curves)[:, -1],
    }


def chosen_point(method: Method, index: int) -> str:
    """The tuned hyperparameters as text."""
    points = method.points()
    return ", ".join(f"{name}={values[index]:g}" for name, values in points.items())
