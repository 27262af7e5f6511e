"""A small network on handwritten digits: wrong labels and rare huge gradients."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from experiments.claims import Claim, at_least
from experiments.figures import new_figure
from experiments.median_of_means.config import Config
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from jaxopt_suite import problems, stochastic
from jaxopt_suite.core import Problem, optimize

GROUPS, BATCH, NUM_TRAIN, NUM_VALIDATION = 15, 60, 1200, 197
WRONG_LABELS, HIT_GROUPS = 0.2, 0.05
OURS = "MoM 15x4"
REDUCTIONS = ("mean", "per-group clip", OURS)
ROWS = 10


def digits_problem(data, labels) -> Problem:
    """Cross-entropy of a 64-64-10 tanh network, seen through noisy group gradients."""
    network = eqx.nn.MLP(64, 10, 64, 1, activation=jnp.tanh, key=jax.random.key(0))
    _, static = eqx.partition(network, eqx.is_inexact_array)
    noise = stochastic.symmetric_stable(0.8)

    def logits(params, images):
        return jax.vmap(eqx.combine(params, static))(images)

    def loss(params, batch):
        images, targets = batch
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            logits(params, images), targets
        ).mean()

    def init(key):
        fresh = eqx.nn.MLP(64, 10, 64, 1, activation=jnp.tanh, key=key)
        return eqx.filter(fresh, eqx.is_inexact_array)

    def grad(key, params):
        pick_key, hit_key, noise_key = jax.random.split(key, 3)
        rows = jax.random.randint(pick_key, (BATCH,), 0, NUM_TRAIN)
        batch = (data.features[rows], labels[rows])
        _, grads = stochastic.group_gradients(loss, GROUPS)(params, batch)
        hit = jax.random.bernoulli(hit_key, HIT_GROUPS, (GROUPS, 1))
        # One flat vector a group: one draw to compile, not one for every leaf.
        flat = jax.vmap(lambda g: ravel_pytree(g)[0])(grads)
        noisy = jnp.where(hit, flat + noise(noise_key, flat.shape), flat)
        return jax.vmap(ravel_pytree(params)[1])(noisy)

    def metrics(params):
        right = jnp.argmax(logits(params, data.features), axis=-1) == data.labels
        last = NUM_TRAIN + NUM_VALIDATION
        return {
            "validation": right[NUM_TRAIN:last].mean(),
            "test": right[last:].mean(),
        }

    return Problem(init, grad, metrics)


def methods(config: Config) -> tuple[str, ...]:
    """The reductions that are compared; at the smallest scale only two."""
    return REDUCTIONS if config.all_methods else ("mean", OURS)


def optimizer(method, learning_rate, max_norm) -> optax.GradientTransformation:
    """Adam behind reduction number ``method`` of REDUCTIONS, which may be traced."""
    reductions = {
        "mean": stochastic.aggregate_mean(),
        "per-group clip": stochastic.aggregate_clip_then_mean(max_norm),
        OURS: stochastic.aggregate_median_of_means(GROUPS),
    }

    def branch(reduction):
        return lambda grads, params: reduction.update(grads, reduction.init(params))[0]

    # One compile for all methods: they differ in the reduction alone.
    branches = [branch(reductions[name]) for name in REDUCTIONS]
    reduce = functools.partial(jax.lax.switch, method, branches)
    return optax.chain(optax.stateless(reduce), optax.adam(learning_rate))


def train(key, points, method, *, num_steps: int):
    """Clean validation and test accuracy along a run for each point of a grid.

    All points of a seed see the same labels, batches and noise. ``method`` is a number
    in REDUCTIONS.
    """
    label_key, run_key = jax.random.split(key)
    data = problems.digits()
    labels = problems.replace_labels(label_key, data.labels, WRONG_LABELS, 10)
    problem = digits_problem(data, labels)
    every = max(num_steps // ROWS, 1)

    def one(learning_rate, max_norm):
        transformation = optimizer(method, learning_rate, max_norm)
        return optimize(
            transformation, problem, run_key, every * ROWS, record_every=every
        ).record

    return jax.vmap(one)(*points)


def grid_points(config: Config, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Learning rates and clipping levels, one pair per point."""
    clips = config.network_clips if method == "per-group clip" else (1.0,)
    rates, norms = np.meshgrid(config.network_rates, clips, indexing="ij")
    return rates.ravel().astype(np.float32), norms.ravel().astype(np.float32)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Accuracies of the learning rate and clip that are best on validation images."""
    keys = jax.random.split(key, config.network_seeds)
    run = jax.jit(
        jax.vmap(
            functools.partial(train, num_steps=config.network_steps), (0, None, None)
        )
    )
    found: dict[str, list] = {"test": [], "rate": [], "clip": []}
    for method in methods(config):
        points = grid_points(config, method)
        record = jax.device_get(run(keys, points, REDUCTIONS.index(method)))
        best = int(np.argmax(record["validation"][..., -1].mean(axis=0)))
        found["test"].append(record["test"][:, best])
        found["rate"].append(points[0][best])
        found["clip"].append(points[1][best])
    return {name: np.array(values) for name, values in found.items()}


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the accuracies, (methods, seeds, rows + 1)."""
    seeds, names = range(config.network_seeds), methods(config)
    final = data["test"][..., -1]
    metrics = {
        "network_accuracy": Metric(final, (("method", names), ("seed", seeds))),
        "network_learning_rate": Metric(data["rate"], (("method", names),)),
    }
    claims = []
    for index, peer in enumerate(names[:-1]):
        difference = final[-1] - final[index]
        claims.append(
            Claim(
                "Digits, 20% wrong labels and rare huge group gradients: clean test "
                f"accuracy of MoM + Adam minus that of {peer} + Adam",
                float(difference.mean()),
                at_least(0.0) if peer == "mean" else None,
                bootstrap_interval(difference),
            )
        )
    return metrics, {"network": _figure(config, data["test"])}, tuple(claims)


def _figure(config, test):
    figure, panels = new_figure(
        "Digits: clean test accuracy, mean and range over seeds"
    )
    axes = panels[0, 0]
    steps = np.linspace(0, config.network_steps, test.shape[-1])
    for name, curves in zip(methods(config), test, strict=True):
        (line,) = axes.plot(steps, curves.mean(axis=0), label=f"{name} + Adam")
        axes.fill_between(
            steps,
            curves.min(axis=0),
            curves.max(axis=0),
            color=line.get_color(),
            alpha=0.15,
            linewidth=0,
        )
    axes.set(xlabel="steps", ylabel="accuracy")
    axes.legend()
    return figure
