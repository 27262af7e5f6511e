"""Ways of training a language model for low precision, tuned and measured alike."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxopt_suite import quantization
from jaxopt_suite.core import Problem, optimize
from jaxopt_suite.quantization import Quantizer, WeightTransform

# Draws of randomized rounding that a final loss is the mean of.
DRAWS = 4
WARMUP = 0.05
# What Adam with the usual decay rates cannot exceed: lotion_adamw's own default.
ADAM_RATIO = 0.1 / (0.001 * (1 - 0.9**2 / 0.999)) ** 0.5


class Task(NamedTuple):
    """A language model and its text.

    Attributes:
        init: ``init(key) -> params``.
        batch: ``batch(key) -> batch``, training examples drawn at random.
        batch_size: predictions in a batch.
        loss: ``loss(params, batch) -> scalar``, the mean over predictions.
        evaluate: ``evaluate(params) -> scalar``, the loss on the validation text.
    """

    init: Callable[[PRNGKeyArray], PyTree]
    batch: Callable[[PRNGKeyArray], Any]
    batch_size: int
    loss: Callable[[PyTree, Any], Float[Array, ""]]
    evaluate: Callable[[PyTree], Float[Array, ""]]


class Run(NamedTuple):
    """What an optimizer is made for.

    Attributes:
        quantizer: what the weights are shipped with.
        batch_size: predictions in a batch.
        num_steps: length of the run.
        learning_rate: warmup over 5% of the run, then cosine to 0.
    """

    quantizer: Quantizer
    batch_size: int
    num_steps: int
    learning_rate: Callable[[Any], Any]


class Method(NamedTuple):
    """A way of training; hashable, so it may be static.

    Attributes:
        name: for tables and figures.
        make: ``make(run, **point) -> (weights, optimizer)``, what the forward pass sees
            and what moves the weights by the gradient there.
        own_scale: whether it ships weights on the grid of a scale of its own, to which
            the quantizer's randomized rounding does not apply.
    """

    name: str
    make: Callable[..., tuple[WeightTransform, optax.GradientTransformation]]
    own_scale: bool = False


def _adam_through(weights: Callable[..., WeightTransform]):
    """Adam with another forward pass."""
    return lambda run, **point: (
        weights(run.quantizer, **point),
        optax.adam(run.learning_rate),
    )


def _dampened(run: Run, strength):
    """QAT with a pull to the grid that rises linearly from 0 to ``strength``."""
    pull = quantization.add_dampening_penalty(
        run.quantizer, lambda count: strength * count / run.num_steps
    )
    optimizer = optax.chain(pull, optax.adam(run.learning_rate))
    return quantization.ste(run.quantizer), optimizer


def _penalized(run: Run, strength=1.0, batch_size=None, differentiate_scale=True):
    """Adam behind the LOTION penalty."""
    penalty = quantization.add_lotion_penalty(
        run.quantizer,
        strength=strength,
        batch_size=run.batch_size if batch_size is None else batch_size,
        differentiate_scale=differentiate_scale,
    )
    optimizer = optax.chain(penalty, optax.adam(run.learning_rate))
    return quantization.ptq(run.quantizer), optimizer


def _shared(run: Run, max_ratio):
    """Adam whose second moment is the curvature; like all others without decay."""
    optimizer = quantization.lotion_adamw(
        run.learning_rate,
        run.quantizer,
        batch_size=run.batch_size,
        weight_decay=0.0,
        max_ratio=max_ratio,
    )
    return quantization.ptq(run.quantizer), optimizer


PTQ = Method("PTQ", _adam_through(quantization.ptq))
QAT = Method("QAT", _adam_through(quantization.ste))
RAT = Method("RAT", _adam_through(quantization.rat))
LOTION = Method("LOTION", _penalized)
FROZEN = Method(
    "LOTION, frozen scale", functools.partial(_penalized, differentiate_scale=False)
)
LOTION_ADAMW = Method("lotion_adamw", _shared)
LSQ = Method("LSQ", _adam_through(quantization.lsq), own_scale=True)
QUEST = Method("QuEST", _adam_through(quantization.quest), own_scale=True)
NOISE = Method("pseudo-noise", _adam_through(quantization.pseudo_noise))
DAMPENING = Method("dampening", _dampened)
CLIPPED = Method("clipped STE", _adam_through(quantization.ste_clip), own_scale=True)


def train(
    keys,
    points: dict[str, Any],
    *,
    task: Task,
    method: Method,
    quantizer: Quantizer,
    num_steps: int,
    rows: int,
) -> dict[str, np.ndarray]:
    """Validation losses of runs over seeds and points of a grid.

    All points and methods see the same start and the same batches of a seed.

    Args:
        keys: one per seed.
        points: name -> values, ``"learning_rate"`` and arguments of the method.
        task: the model and its text.
        method: how it is trained.
        quantizer: what it is shipped with.
        num_steps: gradient steps, a multiple of ``rows``.
        rows: how often the curves are recorded after the start.

    Returns:
        ``full``, ``nearest``, ``random``: the final losses in full precision, of the
        shipped weights, and of weights rounded at random, of shape (seeds, points);
        ``nearest_curve``, ``random_curve``: along the run, (seeds, points, rows + 1).
        Losses of random rounding are NaN where a method has a scale of its own.
    """
    start, run_keys, draw_keys = _starts(keys, task=task)
    kept = snapshots(
        run_keys,
        {name: jnp.asarray(values, jnp.float32) for name, values in points.items()},
        start,
        task=task,
        method=method,
        quantizer=quantizer,
        num_steps=num_steps,
        rows=rows,
    )

    # Outside of the run, so that no method compiles it anew.
    def measure(seed, point):
        along = [
            jax.tree.map(lambda leaf, r=r: leaf[seed, point, r], kept)
            for r in range(rows + 1)
        ]
        params = along[-1].params
        losses = {
            "full": _loss(params, task=task),
            "nearest_curve": [_loss(x.shipped, task=task) for x in along],
            "random_curve": [np.nan] * (rows + 1),
            "random": np.nan,
        }
        if not method.own_scale:
            drawn = functools.partial(_random_loss, task=task, quantizer=quantizer)
            keys = jax.random.split(draw_keys[seed], DRAWS)
            losses["random_curve"] = [drawn(x.params, keys[0]) for x in along]
            losses["random"] = np.mean([drawn(params, key) for key in keys])
        return {name: np.asarray(loss) for name, loss in losses.items()}

    shape = (len(keys), len(points["learning_rate"]))
    measured = [measure(*at) for at in np.ndindex(*shape)]
    found = {
        name: np.stack([losses[name] for losses in measured]) for name in measured[0]
    }
    found = {name: x.reshape(*shape, *x.shape[1:]) for name, x in found.items()}
    return found | {"nearest": found["nearest_curve"][..., -1]}


def trace(keys, points, *, task: Task, quantizer: Quantizer, **sizes: Any) -> None:
    """Checks the shapes of :func:`train` without running it; the same arguments."""
    points = {name: jnp.asarray(values, jnp.float32) for name, values in points.items()}
    start, run_keys, _ = jax.eval_shape(functools.partial(_starts, task=task), keys)
    run = functools.partial(snapshots, task=task, quantizer=quantizer, **sizes)
    kept = jax.eval_shape(run, run_keys, points, start)
    last = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[3:], x.dtype), kept)
    drawn = functools.partial(_random_loss, task=task, quantizer=quantizer)
    assert jax.eval_shape(drawn, last.params, jax.random.key(0)).shape == ()
    assert jax.eval_shape(functools.partial(_loss, task=task), last.shipped).shape == ()


class Snapshot(NamedTuple):
    """Weights along a run.

    Attributes:
        params: in full precision.
        shipped: as the method rounds them to ship them.
    """

    params: PyTree
    shipped: PyTree


@functools.partial(
    jax.jit, static_argnames=("task", "method", "quantizer", "num_steps", "rows")
)
def snapshots(
    keys, points, start, *, task, method, quantizer, num_steps, rows
) -> Snapshot:
    """Weights along the runs of :func:`train`, (seeds, points, rows + 1) of each."""

    def one(key, params, point):
        return _run(key, params, dict(point), task, method, quantizer, num_steps, rows)

    over_points = jax.vmap(one, (None, None, 0))
    return jax.vmap(over_points, (0, 0, None))(keys, start, points)


def _run(key, start, point, task, method, quantizer, num_steps, rows):
    peak = point.pop("learning_rate")
    shape = optax.schedules.warmup_cosine_decay_schedule(
        0.0, 1.0, round(WARMUP * num_steps), num_steps
    )
    run = Run(quantizer, task.batch_size, num_steps, lambda t: peak * shape(t))
    weights, optimizer = method.make(run, **point)

    # What is trained is the pair of the method's own state and the parameters.
    def grad(key, pair):
        batch_key, cast_key = jax.random.split(key)
        batch = task.batch(batch_key)

        def loss(pair):
            return task.loss(weights.apply(pair[0], cast_key, pair[1]), batch)

        return jax.grad(loss)(pair)

    return optimize(
        optimizer,
        Problem(task.init, grad, lambda pair: Snapshot(pair[1], weights.deploy(*pair))),
        key,
        num_steps,
        params=(weights.init(start), start),
        record_every=num_steps // rows,
    ).record


@functools.partial(jax.jit, static_argnames="task")
def _starts(keys, *, task):
    """First weights, and keys of batches and of drawn roundings, for every seed."""
    init_keys, run_keys, draw_keys = jax.vmap(
        lambda key: jax.random.split(key, 3), out_axes=1
    )(keys)
    return jax.vmap(task.init)(init_keys), run_keys, draw_keys


@functools.partial(jax.jit, static_argnames="task")
def _loss(params, *, task):
    return task.evaluate(params)


@functools.partial(jax.jit, static_argnames=("task", "quantizer"))
def _random_loss(params, key, *, task, quantizer):
    return task.evaluate(quantization.quantize_tree(quantizer, params, key=key))
