"""A character language model in 4, 3 and floating 4 bits, every method alike."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.claims import Claim, Interval, Threshold, at_least, at_most
from experiments.figures import GREY, log_axes, new_figure
from experiments.lotion import language_methods as methods
from experiments.lotion.config import Config
from experiments.lotion.language_methods import Method, Task
from experiments.results import Metric
from jaxopt_suite import problems
from jaxopt_suite.quantization import make_quantizer

CONTEXT, EMBEDDING, HIDDEN, BATCH = 8, 16, 128, 256
EVALUATE_EVERY = 4
FORMATS = ("int4", "fp4", "int3")
CASTS = ("full", "nearest", "random")
# (strength, batch size): scaled by the batch, and the multipliers without.
STRENGTHS = ((0.3, BATCH), (1.0, BATCH), (3.0, BATCH), (30, 1), (100, 1), (300, 1))
DAMPENING = (1e-4, 1e-3, 1e-2)
CLIP_RATIOS = (0.8, 0.9, 0.95)
RATIOS = {"lotion_adamw": methods.ADAM_RATIO, "lotion_adamw, ratio 1": 1.0}
EVERYTHING = (
    methods.PTQ,
    methods.QAT,
    methods.RAT,
    methods.LOTION,
    methods.LSQ,
    methods.QUEST,
    methods.NOISE,
    methods.DAMPENING,
    methods.CLIPPED,
    methods.FROZEN,
)
MAIN = (methods.PTQ, methods.QAT, methods.LOTION)


class Network(NamedTuple):
    """A network with one hidden layer on the embeddings of a window; three matrices."""

    embedding: jax.Array
    hidden: jax.Array
    hidden_bias: jax.Array
    output: jax.Array
    output_bias: jax.Array


def logits(network: Network, windows) -> jax.Array:
    """Scores of the character after each window."""
    embedded = network.embedding[windows].reshape(len(windows), -1)
    hidden = jax.nn.relu(embedded @ network.hidden + network.hidden_bias)
    return hidden @ network.output + network.output_bias


@functools.cache
def task() -> Task:
    """The network on the packaged text, nine tenths of it for training."""
    text = problems.character_text(problems.help_topics())
    num_symbols = len(text.symbols)
    windows, targets = problems.context_windows(text.train, CONTEXT)
    held_out = problems.context_windows(text.validation, CONTEXT, EVALUATE_EVERY)

    def init(key):
        keys, inputs = jax.random.split(key, 3), CONTEXT * EMBEDDING
        normal = jax.random.normal
        return Network(
            0.3 * normal(keys[0], (num_symbols, EMBEDDING)),
            normal(keys[1], (inputs, HIDDEN)) / np.sqrt(inputs),
            jnp.zeros(HIDDEN),
            normal(keys[2], (HIDDEN, num_symbols)) / np.sqrt(HIDDEN),
            jnp.zeros(num_symbols),
        )

    def batch(key):
        rows = jax.random.randint(key, (BATCH,), 0, len(targets))
        return windows[rows], targets[rows]

    def loss(network, batch):
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            logits(network, batch[0]), batch[1]
        ).mean()

    return Task(init, batch, BATCH, loss, lambda network: loss(network, held_out))


def arguments(config: Config, method: Method, fmt: str) -> dict:
    """What :func:`language_methods.train` needs beside keys and points."""
    return {
        "task": task(),
        "method": method,
        "quantizer": make_quantizer(fmt),
        "num_steps": config.language_steps,
        "rows": config.language_rows,
    }


def entries(config: Config) -> dict[str, tuple[Method, str, dict]]:
    """What is run: name -> method, format, points of its grid."""
    rates = config.language_rates
    grid = {"learning_rate": rates}
    found = {m.name: (m, "int4", grid) for m in MAIN}
    if not config.all_methods:
        return found
    found |= {m.name: (m, "int4", grid) for m in EVERYTHING}
    pairs = [(r, s) for r in rates for s in DAMPENING]
    found["dampening"] = (methods.DAMPENING, "int4", _zipped(pairs, "strength"))
    pairs = [(r, c) for r in rates for c in CLIP_RATIOS]
    found["clipped STE"] = (methods.CLIPPED, "int4", _zipped(pairs, "ratio"))
    ratios = [(r, k) for r in rates for k in RATIOS.values()]
    adamw = (methods.LOTION_ADAMW, "int4", _zipped(ratios, "max_ratio"))
    found["lotion_adamw"] = adamw
    triples = [(max(rates), *pair) for pair in STRENGTHS]
    strengths = _zipped(triples, "strength", "batch_size")
    found["strengths"] = (methods.LOTION, "int4", strengths)
    for fmt in FORMATS[1:]:
        found |= {f"{m.name} {fmt}": (m, fmt, grid) for m in MAIN}
    return found


def _zipped(points, *names: str) -> dict[str, tuple]:
    return dict(zip(("learning_rate", *names), zip(*points, strict=True), strict=True))


def compute(config: Config, key) -> dict[str, dict[str, np.ndarray]]:
    """Final losses and curves of every entry."""
    keys = jax.random.split(key, config.language_seeds)
    return {
        name: methods.train(keys, points, **arguments(config, method, fmt))
        for name, (method, fmt, points) in entries(config).items()
    }


def shapes(config: Config) -> None:
    """Traces the main runs without computing them."""
    keys = jax.random.split(jax.random.key(0), config.language_seeds)
    found = entries(config)
    for method, fmt, points in (found[method.name] for method in MAIN):
        methods.trace(keys, points, **arguments(config, method, fmt))


def best(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The point of the least shipped loss for each seed; NaN is never the least."""
    point = np.argmin(np.where(np.isnan(data["nearest"]), np.inf, data["nearest"]), 1)
    rows = np.arange(len(point))
    return {name: values[rows, point] for name, values in data.items()}


def summarize(config: Config, data: dict[str, dict[str, np.ndarray]]):
    """Metrics, figure and claims from the losses, (seeds, points) for every entry."""
    chosen = _chosen(config, data)
    seeds = ("seed", range(config.language_seeds))
    losses = np.stack([[entry[c] for c in CASTS] for entry in chosen.values()])
    steps = np.linspace(0, config.language_steps, config.language_rows + 1)
    metrics = {
        "language_loss": Metric(
            losses, (("method", list(chosen)), ("cast", CASTS), seeds)
        ),
        "language_loss_along": Metric(
            np.stack([entry["nearest_curve"] for entry in chosen.values()]),
            (("method", list(chosen)), seeds, ("step", steps.astype(int))),
        ),
    }
    if config.all_methods:
        metrics["language_loss_by_strength"] = Metric(
            data["strengths"]["nearest"], (seeds, ("strength", _strength_names()))
        )
    claims = tuple(_claims(config, data, chosen))
    return metrics, {"language": _figure(config, data, chosen)}, claims


def _chosen(config: Config, data) -> dict[str, dict[str, np.ndarray]]:
    """The best point of every method for each seed; one entry per ratio of Adam's."""
    chosen = {
        name: best(entry)
        for name, entry in data.items()
        if name not in ("strengths", "lotion_adamw")
    }
    if config.all_methods:
        # The learning rate of these is fixed: the largest.
        first = len(RATIOS) * int(np.argmax(config.language_rates))
        chosen |= {
            name: {key: values[:, first + i] for key, values in adamw.items()}
            for adamw in (data["lotion_adamw"],)
            for i, name in enumerate(RATIOS)
        }
    return chosen


def _full_precision(data) -> np.ndarray:
    """The least loss in full precision for each seed, over the same grid."""
    return np.nanmin(data["PTQ"]["full"], axis=1)


def _strength_names() -> list[str]:
    return [f"{s:g}" if b > 1 else f"{s:g} unscaled" for s, b in STRENGTHS]


def _worst(text: str, values, threshold: Threshold | None = None, paper=None) -> Claim:
    """The claim of every seed: the seed that is worst for its threshold."""
    values = np.asarray(values, np.float64)
    interval = None
    if len(values) > 1:
        method = f"least and largest of {len(values)} seeds"
        interval = Interval(float(values.min()), float(values.max()), method)
    if threshold is None:
        return Claim(f"{text} (mean)", float(values.mean()), None, interval, paper)
    at_the_end = np.min if np.isfinite(threshold.low) else np.max
    return Claim(
        f"{text}, every seed", float(at_the_end(values)), threshold, interval, paper
    )


# What LOTION loses less than each peer after a full run, and after a short one.
MARGINS = {"QAT": 0.05, "PTQ": 0.1, "RAT": 0.1, "LSQ": 0.02, "QuEST": 0.02}
SHORT_MARGINS = {"QAT": 0.04, "PTQ": 0.06}
PAPER = {"QAT": "-0.020 (C4, 150M)", "PTQ": "-0.569 (C4, 150M)"}


def _claims(config: Config, data, chosen):
    ours, qat = chosen["LOTION"], chosen["QAT"]
    margins = MARGINS if config.all_methods else SHORT_MARGINS
    what = "Characters, int4, validation loss rounded to nearest"
    for name, margin in margins.items():
        difference = ours["nearest"] - chosen[name]["nearest"]
        text = f"{what}: LOTION minus {name}"
        yield _worst(text, difference, at_most(-margin), PAPER.get(name))
    if not config.all_methods:
        return
    for name in (m.name for m in EVERYTHING if m.name not in (*MARGINS, "LOTION")):
        difference = ours["nearest"] - chosen[name]["nearest"]
        yield _worst(f"{what}: LOTION minus {name}", difference)
    yield _worst(
        f"{what}: LOTION minus the loss of training in full precision",
        ours["nearest"] - _full_precision(data),
        at_most(0.07),
    )
    for entry, name, threshold in (
        (ours, "LOTION", at_most(0.05)),
        (qat, "QAT", at_least(0.2)),
    ):
        yield _worst(
            f"Characters, int4: {name} rounded at random minus rounded to nearest",
            entry["random"] - entry["nearest"],
            threshold,
        )
    for fmt, margin in (("fp4", 0.02), ("int3", 0.1)):
        yield _worst(
            f"Characters, {fmt}, rounded to nearest: LOTION minus QAT",
            chosen[f"LOTION {fmt}"]["nearest"] - chosen[f"QAT {fmt}"]["nearest"],
            at_most(-margin),
        )
    for name in RATIOS:
        yield _worst(
            f"{what}: {name} at the larger learning rate minus QAT",
            chosen[name]["nearest"] - qat["nearest"],
            at_most(-0.05),
        )
    by_strength = data["strengths"]["nearest"] - qat["nearest"][:, None]
    for index, name in enumerate(_strength_names()):
        yield _worst(
            f"{what}: LOTION of strength {name} minus QAT",
            by_strength[:, index],
            at_most(-0.05),
        )


def _figure(config: Config, data, chosen):
    columns = 3 if config.all_methods else 1
    figure, panels = new_figure(
        "Character model in low precision: validation loss, every seed",
        columns=columns,
        panel=(4.6, 3.6),
    )
    _draw_methods(panels[0, 0], config, data, chosen)
    if config.all_methods:
        _draw_formats(panels[0, 1], chosen)
        _draw_strengths(panels[0, 2], data, chosen)
    return figure


def _draw_methods(axes, config, data, chosen):
    names = [name for name in chosen if not name.endswith(FORMATS[1:])]
    names.sort(key=lambda name: -np.nanmean(chosen[name]["nearest"]))
    rows = np.arange(len(names))
    for cast, marker, colour, label in (
        ("random", "s", "#D55E00", "rounded at random"),
        ("nearest", "o", "#0072B2", "rounded to nearest"),
    ):
        values = np.stack([chosen[name][cast] for name in names])
        axes.plot(values, rows, marker, color=colour, label="_", markersize=4)
        axes.plot([], [], marker, color=colour, label=label)
    floor = float(np.mean(_full_precision(data)))
    axes.axvline(floor, color=GREY, linestyle="--", linewidth=1, marker="")
    axes.plot([], [], "--", color=GREY, marker="", label="full precision")
    axes.set(title="int4", xlabel="loss", yticks=rows, yticklabels=names)
    axes.legend(loc="upper right" if config.all_methods else "best")


def _draw_formats(axes, chosen):
    positions = np.arange(len(FORMATS))
    for method in MAIN:
        keys = (method.name, *(f"{method.name} {fmt}" for fmt in FORMATS[1:]))
        values = np.stack([chosen[key]["nearest"] for key in keys])
        axes.plot(positions, values.mean(1), label=method.name)
        axes.fill_between(
            positions, values.min(1), values.max(1), alpha=0.15, linewidth=0
        )
    axes.set(
        title="rounded to nearest, by format",
        xticks=positions,
        xticklabels=FORMATS,
        ylabel="loss",
    )
    axes.legend()


def _draw_strengths(axes, data, chosen):
    multipliers = np.array([strength * size for strength, size in STRENGTHS])
    order = np.argsort(multipliers)
    values = data["strengths"]["nearest"][:, order]
    axes.plot(multipliers[order], values.mean(0), label="LOTION")
    axes.fill_between(
        multipliers[order], values.min(0), values.max(0), alpha=0.15, linewidth=0
    )
    for name, colour in (("QAT", "#D55E00"), ("PTQ", "#009E73")):
        level = float(chosen[name]["nearest"].mean())
        axes.axhline(level, color=colour, linestyle="--", marker="", label=name)
    axes.set(
        title="rounded to nearest, by strength of the penalty",
        xlabel=f"strength x batch size (the default is {BATCH})",
        ylabel="loss",
    )
    log_axes(axes, "x", ticks=(30, 100, 300, 1000))
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.92))
