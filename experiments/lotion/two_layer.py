"""A two-layer network that learns an int4 teacher: LOTION against QAT by its width.

The network is ``f(x) = a . relu(W x) / sqrt(k)`` with k hidden units; W and a are both
rounded to int4. Data are fresh at every step.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from scipy import stats

from experiments.claims import Claim
from experiments.figures import GREY, log_axes, new_figure, plot_spread
from experiments.lotion.config import Config
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from jaxopt_suite import quantization
from jaxopt_suite.core import Problem, optimize, sweep

METHODS = ("QAT", "LOTION")
INPUTS, BATCH, TEST = 64, 256, 4096
# Below this test loss a student is its teacher to rounding.
EXACT = 1e-6


class Weights(NamedTuple):
    """W and a."""

    hidden: Float[Array, "k 64"]
    output: Float[Array, " k"]


def draw_weights(key, width: int) -> Weights:
    """Normal weights, W scaled by 1/8 so that hidden units are of size 1."""
    drawn = jax.random.normal(key, (width, INPUTS + 1))
    return Weights(drawn[:, :-1] / np.sqrt(INPUTS), drawn[:, -1])


def network(weights: Weights, inputs: Float[Array, "n 64"]) -> Float[Array, " n"]:
    """Its values."""
    hidden = jax.nn.relu(inputs @ weights.hidden.T)
    return hidden @ weights.output / np.sqrt(weights.output.size)


def gauss_newton_diagonal(weights: Weights) -> Weights:
    """E (df/dw)^2 over normal inputs, weight by weight: a unit is active half the time.

    It is the curvature of the loss for a student that is right. The squared gradient is
    none: it vanishes with the error.
    """
    half = 0.5 / weights.output.size
    hidden = jnp.broadcast_to(weights.output[:, None] ** 2, weights.hidden.shape)
    return Weights(half * hidden, half * jnp.sum(weights.hidden**2, axis=1))


def penalize(
    quantizer: quantization.Quantizer,
) -> optax.GradientTransformationExtraArgs:
    """The LOTION penalty with that curvature."""
    penalty = quantization.add_lotion_penalty(quantizer, mask=True)

    def update(updates, state, params=None, **extra):
        assert params is not None
        curvature = gauss_newton_diagonal(params)
        return penalty.update(updates, state, params, curvature=curvature, **extra)

    return optax.GradientTransformationExtraArgs(penalty.init, update)


def train(key, *, method: str, width: int, config: Config):
    """Test loss of the RTN cast at the end for each learning rate."""
    teacher_key, student_key, test_key, run_key = jax.random.split(key, 4)
    quantizer = quantization.make_quantizer("int4")
    cast = functools.partial(quantization.quantize_tree, quantizer, mask=True)
    teacher = cast(draw_weights(teacher_key, width))
    student = draw_weights(student_key, width)
    forward = (quantization.ste if method == "QAT" else quantization.ptq)(
        quantizer, mask=True
    )
    state = forward.init(student)
    steps = config.two_layer_steps

    def loss(weights, inputs):
        error = network(weights, inputs) - network(teacher, inputs)
        return 0.5 * jnp.mean(error**2)

    def grad(key, weights):
        inputs = jax.random.normal(key, (BATCH, INPUTS))
        return jax.grad(lambda w: loss(forward.apply(state, None, w), inputs))(weights)

    test = jax.random.normal(test_key, (TEST, INPUTS))
    problem = Problem(lambda _: student, grad, lambda _: ())

    def one(rate):
        optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))
        if method == "LOTION":
            optimizer = optax.chain(penalize(quantizer), optimizer)
        found = optimize(optimizer, problem, run_key, steps, record_every=steps)
        return loss(cast(found.params), test)

    return jax.vmap(one)(jnp.asarray(config.two_layer_rates))


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Test losses, of shape (methods, widths, seeds, rates)."""
    keys = jax.random.split(key, config.num_seeds)
    found = [
        [
            jax.device_get(
                sweep(
                    functools.partial(train, method=m, width=k, config=config), keys, {}
                )
            )
            for k in config.widths
        ]
        for m in METHODS
    ]
    return {"loss": np.array(found)}


def shapes(config: Config) -> None:
    """Traces both methods at the largest width, if there is one."""
    keys = jax.random.split(jax.random.key(0), config.num_seeds)
    for method in METHODS if config.widths else ():
        run = functools.partial(
            train, method=method, width=max(config.widths), config=config
        )
        traced = jax.eval_shape(jax.vmap(run), keys)
        assert traced.shape == (config.num_seeds, len(config.two_layer_rates))


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the test losses; nothing without widths."""
    if not config.widths:
        return {}, {}, ()
    axes = (
        ("method", METHODS),
        ("width", config.widths),
        ("seed", range(config.num_seeds)),
        ("learning_rate", config.two_layer_rates),
    )
    metrics = {"two_layer_loss": Metric(data["loss"], axes)}
    # A run that diverged is no choice.
    qat, ours = np.where(np.isnan(data["loss"]), np.inf, data["loss"]).min(axis=-1)
    claims = tuple(
        _claim(width, *losses)
        for width, *losses in zip(config.widths, qat, ours, strict=True)
    )
    return metrics, {"two_layer": _figure(config, qat, ours)}, claims


def _is_solved(qat, ours):
    """Whether both losses are rounding errors, whose ratio would say nothing."""
    return max(qat.max(), ours.max()) < EXACT


def _claim(width, qat, ours):
    about = (
        f"Two-layer network of {width} hidden units, int4 teacher: RTN test loss of "
    )
    if _is_solved(qat, ours):
        return Claim(
            f"{about}QAT and LOTION, which both find it (largest)",
            float(max(qat.max(), ours.max())),
        )
    return Claim(
        f"{about}LOTION over QAT (geometric mean over seeds)",
        float(stats.gmean(ours / qat)),
        interval=bootstrap_interval(ours / qat, stats.gmean),
    )


def _figure(config, qat, ours):
    figure, panels = new_figure(
        "Two-layer network, int4 teacher and student: median and range over seeds",
        columns=2,
    )
    left, right = panels[0]
    for label, samples in (("QAT", qat), ("LOTION", ours)):
        plot_spread(left, config.widths, samples, label, quantiles=(0, 0.5, 1))
    pairs = enumerate(zip(qat, ours, strict=True))
    compared = [i for i, pair in pairs if not _is_solved(*pair)]
    plot_spread(
        right,
        np.array(config.widths)[compared],
        ours[compared] / qat[compared],
        "LOTION / QAT",
        quantiles=(0, 0.5, 1),
    )
    left.set(ylabel="test loss of the RTN cast", xlabel="hidden units k")
    right.set(ylabel="ratio of the losses", xlabel="hidden units k")
    right.axhline(1.0, color=GREY, linestyle="--", linewidth=1, marker="")
    for axes in (left, right):
        log_axes(axes, ticks=config.widths)
        axes.legend()
    return figure
