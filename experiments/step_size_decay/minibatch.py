"""The noise of real minibatches: a small network on handwritten digits.

Decays and fixed rates start from the same grid of rates and see the same batches. The
noise is that of sampling alone, so a run has a temperature, rate * variance / 2, which
is read off the gradients of single images. With all labels right the network fits every
image and the noise dies out by itself; with some of them wrong it does not.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.claims import Claim
from experiments.figures import log_axes, new_figure
from experiments.results import Metric
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.races import (
    best_point,
    fixed_rows,
    ratio_of_best,
    schedule_rows,
)
from jaxopt_suite import problems, stochastic
from jaxopt_suite.core import Problem, optimize
from jaxopt_suite.stochastic import schedules

NUM_TRAIN, PROBES, WIDTH = 1200, 256, 16
WRONG_LABELS = (0.0, 0.2)
COOLING, ROWS = 0.01, 20
KINDS = ("fixed", "geometric decay", "linear decay")


def digits_problem(labels, batch_size: int) -> Problem:
    """Cross-entropy of a 64-16-10 tanh network, seen through batches of images."""
    images = problems.digits().features
    network = eqx.nn.MLP(64, 10, WIDTH, 1, activation=jnp.tanh, key=jax.random.key(0))
    _, static = eqx.partition(network, eqx.is_inexact_array)

    def loss(params, images, labels):
        logits = jax.vmap(eqx.combine(params, static))(images)
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            logits, labels
        ).mean()

    def init(key):
        fresh = eqx.nn.MLP(64, 10, WIDTH, 1, activation=jnp.tanh, key=key)
        return eqx.filter(fresh, eqx.is_inexact_array)

    def grad(key, params):
        rows = jax.random.randint(key, (batch_size,), 0, NUM_TRAIN)
        return jax.grad(loss)(params, images[rows], labels[rows])

    def grad_of_one(params, image, label):
        return jax.grad(loss)(params, image[None], label[None])

    def metrics(params):
        singles = jax.vmap(grad_of_one, (None, 0, 0))(
            params, images[:PROBES], labels[:PROBES]
        )
        return {
            "train": loss(params, images[:NUM_TRAIN], labels[:NUM_TRAIN]),
            "test": loss(params, images[NUM_TRAIN:], labels[NUM_TRAIN:]),
            "noise_std": stochastic.estimate_noise_std(singles) / batch_size**0.5,
        }

    return Problem(init, grad, metrics)


def rates(config: Config) -> np.ndarray:
    """The fixed rates, from which the decays start."""
    return np.geomspace(0.05, 2.0, config.network_rates)


def rate_rows(config: Config):
    """Rates along the run: of every rate of a kind, kind by kind."""
    n, starts = config.network_steps, rates(config)
    return jnp.concatenate(
        [
            fixed_rows(starts, n),
            schedule_rows(lambda r: schedules.geometric(r, COOLING * r, n), starts, n),
            schedule_rows(lambda r: schedules.linear_to_zero(r, n), starts, n),
        ]
    )


@functools.partial(jax.jit, static_argnames=("batch_size",))
def train(keys, wrong, rows, *, batch_size: int):
    """Losses and noise along the run, (seeds, rows of rates, records).

    Training labels are wrong with probability ``wrong``, test labels never.
    """
    given, num_steps = problems.digits().labels, rows.shape[-1]

    def run(key, row):
        label_key, run_key = jax.random.split(key)
        replaced = problems.replace_labels(label_key, given, wrong, 10)
        labels = jnp.where(jnp.arange(len(given)) < NUM_TRAIN, replaced, given)
        return optimize(
            optax.sgd(lambda k: row[k]),
            digits_problem(labels, batch_size),
            run_key,
            num_steps,
            record_every=num_steps // ROWS,
        ).record

    return jax.vmap(jax.vmap(run, (None, 0)), (0, None))(keys, rows)


def run(config: Config, key, wrong: float, batch_size: int):
    """Losses and noise of all runs with a share of wrong labels and a batch size."""
    keys = jax.random.split(key, config.network_seeds)
    return train(keys, wrong, rate_rows(config), batch_size=batch_size)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Losses, noise, temperature: (labels, sizes, kinds, rates, records, seeds)."""

    def arrange(*values):
        values = np.moveaxis(np.stack(values), 1, -1)
        shape = (len(WRONG_LABELS), -1, len(KINDS), config.network_rates)
        return values.reshape(*shape, *values.shape[-2:])

    records = [
        jax.device_get(run(config, key, wrong, size))
        for wrong in WRONG_LABELS
        for size in config.batch_sizes
    ]
    found = jax.tree.map(arrange, *records)
    # The rate of the step before a record; that of the first step for the start.
    steps = np.linspace(0, config.network_steps, ROWS + 1).astype(int)
    now = np.asarray(rate_rows(config))[:, np.maximum(steps - 1, 0)]
    now = now.reshape(len(KINDS), config.network_rates, ROWS + 1, 1)
    return {**found, "temperature": now * found["noise_std"] ** 2 / 2}


def shapes(config: Config) -> None:
    """Traces the runs with every batch size."""
    for size in config.batch_sizes:
        traced = functools.partial(run, config, wrong=0.0, batch_size=size)
        loss = jax.eval_shape(traced, jax.random.key(0))["train"]
        assert loss.shape[::2] == (config.network_seeds, ROWS + 1)


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims: what decay buys where the noise is real."""
    axes = (
        ("wrong_labels", WRONG_LABELS),
        ("batch", config.batch_sizes),
        ("rate_kind", KINDS),
        ("rate", [f"{rate:.3g}" for rate in rates(config)]),
    )
    seeds = ("seed", range(config.network_seeds))
    metrics = {
        f"digits_{name}": Metric(data[name][..., -1, :], (*axes, seeds))
        for name in ("train", "test")
    }
    for when, row in (("early", 1), ("last", -1)):
        metrics[f"digits_temperature_{when}"] = Metric(
            data["temperature"][..., row, :].mean(axis=-1), axes
        )
    return metrics, {"digits": _figure(config, data)}, tuple(_claims(config, data))


def _claims(config, data):
    # The smallest and the largest batches: the most noise and the least.
    for which, wrong in enumerate(WRONG_LABELS):
        for column in dict.fromkeys((0, len(config.batch_sizes) - 1)):
            setting = (
                f"Digits, batches of {config.batch_sizes[column]}, {wrong:.0%} wrong "
                "labels"
            )
            for name, text in (("train", "full training loss"), ("test", "test loss")):
                fixed, geometric, linear = data[name][which, column, :, :, -1]
                other, _ = ratio_of_best(geometric, fixed)
                ratio, interval = ratio_of_best(linear, fixed)
                yield Claim(
                    f"{setting}: {text}, the best linear decay over the best fixed "
                    f"rate (geometric decay: {other:.3g})",
                    ratio,
                    interval=interval,
                )
        size = config.batch_sizes[0]
        best = best_point(data["train"][which, 0, 0, :, -1])
        early, *_, last = data["temperature"][which, 0, 0, best, 1:].mean(axis=-1)
        yield Claim(
            f"Digits, batches of {size}, {wrong:.0%} wrong labels, best fixed rate: "
            f"temperature at the end over that early in the run, {early:.1e}",
            float(last / early),
        )


def _figure(config, data):
    figure, panels = new_figure(
        f"Digits after {config.network_steps:,} steps of SGD: mean over "
        f"{config.network_seeds} seeds",
        rows=2,
        columns=len(config.batch_sizes) + 1,
        panel=(3.0, 2.7),
    )
    steps = np.linspace(0, config.network_steps, ROWS + 1)
    for which, (row, wrong) in enumerate(zip(panels, WRONG_LABELS, strict=True)):
        for column, size in enumerate(config.batch_sizes):
            for kind, name in enumerate(KINDS):
                last = data["train"][which, column, kind, :, -1]
                row[column].plot(rates(config), last.mean(axis=-1), label=name)
            row[column].set(title=f"batch {size}, {wrong:.0%} wrong labels")
            log_axes(row[column])
        row[0].set_ylabel("full training loss")
        for kind in range(len(KINDS)):
            best = best_point(data["train"][which, 0, kind, :, -1])
            temperature = data["temperature"][which, 0, kind, best].mean(axis=-1)
            row[-1].plot(steps[1:], temperature[1:], markevery=4)
        row[-1].set(title=f"temperature of the best, batch {config.batch_sizes[0]}")
        log_axes(row[-1], "y")
    for axes in panels[1, :-1]:
        axes.set_xlabel("fixed or first rate")
    panels[1, -1].set_xlabel("steps")
    panels[0, 0].legend()
    return figure
