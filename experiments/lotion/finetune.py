"""A digits network trained in float32, then for a tenth more steps to be rounded.

Every method starts from the same weights and sees the same batches. Its learning rate,
and its own hyperparameter where it has one, is the best on validation images. LOTION
chooses its strength: the squared gradient of a network that fits its images hardly
tells their curvature.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from experiments.claims import Claim
from experiments.figures import GREY, log_axes, new_figure
from experiments.lotion import language_methods as methods
from experiments.lotion.config import Config
from experiments.lotion.language_methods import Method
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from jaxopt_suite import problems
from jaxopt_suite.core import Problem, optimize
from jaxopt_suite.quantization import make_quantizer

INPUTS, HIDDEN, CLASSES = 64, 64, 10
BATCH, NUM_TRAIN, NUM_VALIDATION = 64, 1200, 197
PRETRAINING_RATE = 3e-3
MAIN = {methods.QAT: {}, methods.LOTION: {"strength": (1.0, 10.0, 100.0)}}
EVERYTHING = {
    methods.PTQ: {},
    **MAIN,
    methods.RAT: {},
    methods.LOTION_ADAMW: {"max_ratio": (1.0, methods.ADAM_RATIO)},
    methods.LSQ: {},
    methods.QUEST: {},
    methods.NOISE: {},
    methods.DAMPENING: {"strength": (1e-3, 1e-2, 1e-1)},
    methods.CLIPPED: {"ratio": (0.5, 0.7, 0.9)},
}


def raced(config: Config) -> dict:
    """The methods, each with the values of its own hyperparameter."""
    return EVERYTHING if config.all_methods else MAIN


class Network(NamedTuple):
    """A network with one hidden layer; its two matrices are rounded."""

    hidden: Float[Array, "64 h"]
    hidden_bias: Float[Array, " h"]
    output: Float[Array, "h 10"]
    output_bias: Float[Array, " 10"]


class Start(NamedTuple):
    """Where fine-tuning starts for one seed.

    Attributes:
        key: of what comes.
        network: trained in float32.
    """

    key: Array
    network: Network


def draw_network(key) -> Network:
    """Normal weights that keep the size of what goes through them."""
    drawn = jax.random.normal(key, (INPUTS + CLASSES, HIDDEN))
    return Network(
        np.sqrt(2 / INPUTS) * drawn[:INPUTS],
        jnp.zeros(HIDDEN),
        np.sqrt(1 / HIDDEN) * drawn[INPUTS:].T,
        jnp.zeros(CLASSES),
    )


def example_scores(network: Network, images, labels):
    """Cross-entropy and whether the answer is right for each image, of shape (2, n)."""
    hidden = jax.nn.relu(images @ network.hidden + network.hidden_bias)
    logits = hidden @ network.output + network.output_bias
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.stack([losses, jnp.argmax(logits, axis=-1) == labels])


def batch_loss(network, key, data):
    """The loss on training images drawn at random."""
    rows = jax.random.randint(key, (BATCH,), 0, NUM_TRAIN)
    return example_scores(network, data.features[rows], data.labels[rows])[0].mean()


def scores(network, data):
    """Mean loss and accuracy on validation and on test images, of shape (2, 2)."""
    each = example_scores(network, data.features[NUM_TRAIN:], data.labels[NUM_TRAIN:])
    validation, test = jnp.split(each, [NUM_VALIDATION], axis=1)
    return jnp.stack([validation.mean(axis=1), test.mean(axis=1)])


def train(optimizer, init, grad, key, num_steps: int):
    """The last parameters of a run."""
    problem = Problem(init, grad, lambda _: ())
    return optimize(optimizer, problem, key, num_steps, record_every=num_steps).params


@functools.partial(jax.jit, static_argnames="num_steps")
def pretrain(keys, data, *, num_steps: int) -> tuple[Start, Array]:
    """Trains in float32 for each key; the starts, and the scores of full precision."""

    def one(key):
        run_key, next_key = jax.random.split(key)
        network = train(
            optax.adam(optax.cosine_decay_schedule(PRETRAINING_RATE, num_steps)),
            draw_network,
            lambda key, network: jax.grad(batch_loss)(network, key, data),
            run_key,
            num_steps,
        )
        return Start(next_key, network), scores(network, data)

    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnames=("method", "fmt", "num_steps"))
def tune(starts: Start, points, data, *, method: Method, fmt: str, num_steps: int):
    """Scores of the shipped weights, of shape (seeds, points, 2, 2)."""
    quantizer = make_quantizer(fmt)

    def one(start, point):
        point = dict(point)
        rate = optax.cosine_decay_schedule(point.pop("learning_rate"), num_steps)
        run = methods.Run(quantizer, BATCH, num_steps, rate)
        weights, optimizer = method.make(run, **point)

        # What is trained is the pair of the method's own state and the parameters.
        def grad(key, pair):
            batch_key, cast_key = jax.random.split(key)
            return jax.grad(
                lambda p: batch_loss(
                    weights.apply(p[0], cast_key, p[1]), batch_key, data
                )
            )(pair)

        init = lambda _: (weights.init(start.network), start.network)  # noqa: E731
        pair = train(optimizer, init, grad, start.key, num_steps)
        return scores(weights.deploy(*pair), data)

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(starts, points)


def grid(config: Config, own: dict) -> dict[str, np.ndarray]:
    """The points of a method: learning rates times values of its own."""
    names = ("learning_rate", *own)
    points = itertools.product(config.finetune_rates, *own.values())
    return {
        name: np.array(values, np.float32)
        for name, values in zip(names, zip(*points, strict=True), strict=True)
    }


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Scores of every method in every format at the point of least validation loss."""
    data, extra = problems.digits(), config.pretraining_steps // 10
    keys = jax.random.split(key, config.num_seeds)
    starts, full = pretrain(keys, data, num_steps=config.pretraining_steps)
    found: dict[str, list] = {"scores": [], "rate": []}
    for fmt, (method, own) in itertools.product(config.formats, raced(config).items()):
        points = grid(config, own)
        rows = jax.device_get(
            tune(starts, points, data, method=method, fmt=fmt, num_steps=extra)
        )
        losses = np.nan_to_num(rows[:, :, 0, 0].mean(axis=0), nan=np.inf)
        best = int(np.argmin(losses))
        found["scores"].append(rows[:, best])
        found["rate"].append(points["learning_rate"][best])
    return {"full": jax.device_get(full)} | {
        name: np.stack(values).reshape(
            len(config.formats), len(raced(config)), *np.shape(values[0])
        )
        for name, values in found.items()
    }


def shapes(config: Config) -> None:
    """Traces the training in float32, and QAT and LOTION after it."""
    data, seeds = problems.digits(), config.num_seeds
    keys = jax.random.split(jax.random.key(0), seeds)
    start = functools.partial(pretrain, num_steps=config.pretraining_steps)
    starts, _ = jax.eval_shape(start, keys, data)
    for method, own in MAIN.items():
        points = grid(config, own)
        run = functools.partial(
            tune, method=method, fmt=config.formats[0], num_steps=100
        )
        traced = jax.eval_shape(run, starts, points, data)
        assert traced.shape[:2] == (seeds, len(points["learning_rate"]))


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims; scores are (formats, methods, seeds, 2, 2)."""
    names = [method.name for method in raced(config)]
    axes = (
        ("format", config.formats),
        ("method", names),
        ("seed", range(config.num_seeds)),
        ("split", ("validation", "test")),
        ("score", ("loss", "accuracy")),
    )
    metrics = {
        "finetune_scores": Metric(data["scores"], axes),
        "finetune_learning_rate": Metric(data["rate"], axes[:2]),
        "finetune_full_precision": Metric(data["full"], axes[2:]),
    }
    loss, accuracy = np.moveaxis(data["scores"][:, :, :, 1], -1, 0)
    ours = names.index(methods.LOTION.name)
    claims = []
    for i, fmt in enumerate(config.formats):
        for peer in (p.name for p in (methods.PTQ, methods.QAT) if p.name in names):
            other = names.index(peer)
            for what, values in (("loss", loss), ("accuracy", accuracy)):
                difference = values[i, ours] - values[i, other]
                claims.append(
                    Claim(
                        f"Digits fine-tuned to {fmt}: RTN test {what} of LOTION minus "
                        f"{peer}",
                        float(difference.mean()),
                        interval=bootstrap_interval(difference),
                    )
                )
    return metrics, {"finetune": _figure(config, names, data)}, tuple(claims)


def _figure(config, names, data):
    figure, panels = new_figure(
        "Digits after fine-tuning, shipped weights: seeds (bars) and their mean; "
        "dashed: full precision",
        rows=2,
        columns=len(config.formats),
        panel=(3.4, 0.2 * len(names) + 1.0),
        sharey=True,
    )
    places = np.arange(len(names))[::-1]
    for score, row in enumerate(panels):
        full = data["full"][:, 1, score].mean()
        for i, axes in enumerate(row):
            values = data["scores"][i, :, :, 1, score]
            axes.plot(values, places, "|", color="#56B4E9")
            axes.plot(values.mean(axis=-1), places, "o", color="#D55E00")
            axes.axvline(full, color=GREY, linestyle="--", linewidth=1, marker="")
            axes.set(yticks=places, yticklabels=names)
            axes.set(xlabel=("test loss", "test accuracy")[score])
            if score == 0:
                axes.set_title(config.formats[i])
                log_axes(axes, "x")
            else:
                axes.locator_params(axis="x", nbins=4)
    return figure
