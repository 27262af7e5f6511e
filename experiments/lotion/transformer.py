"""A transformer on characters, int4 in blocks of 32: the loss along training."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, Interval
from experiments.figures import new_figure
from experiments.lotion import language_methods as methods
from experiments.lotion.config import Config
from experiments.lotion.decoder import Decoder, next_symbol_loss
from experiments.lotion.language_methods import Method, Task
from experiments.results import Metric
from jaxopt_suite import problems
from jaxopt_suite.quantization import make_quantizer, per_block

QUANTIZER = make_quantizer("int4", per_block(32))
# Run with all seeds; the others with fewer, where the budget is small.
MAIN = (methods.PTQ, methods.QAT, methods.LOTION)
PEERS: dict[Method, dict[str, float]] = {
    methods.RAT: {},
    methods.LOTION_ADAMW: {"max_ratio": methods.ADAM_RATIO},
    methods.LSQ: {},
    methods.QUEST: {},
    methods.NOISE: {},
    methods.DAMPENING: {"strength": 1e-3},
    methods.CLIPPED: {"ratio": 0.9},
}


@functools.cache
def task(config: Config) -> Task:
    """The transformer on the packaged text, nine tenths of it for training."""
    text = problems.character_text(problems.help_topics())
    context, batch_size = config.transformer_context, config.transformer_batch
    model = functools.partial(
        Decoder,
        len(text.symbols),
        context,
        config.transformer_width,
        config.transformer_layers,
        config.transformer_heads,
    )
    static = eqx.partition(
        eqx.filter_eval_shape(model, key=jax.random.key(0)), _is_array
    )[1]

    def slices(ids, starts):
        return ids[starts[:, None] + jnp.arange(context + 1)]

    held_out = slices(
        text.validation,
        jnp.linspace(
            0, len(text.validation) - context - 1, config.transformer_windows
        ).astype(jnp.int32),
    )

    def init(key):
        return eqx.filter(model(key=key), eqx.is_array)

    def batch(key):
        last = len(text.train) - context
        return slices(text.train, jax.random.randint(key, (batch_size,), 0, last))

    def loss(params, texts):
        logits = jax.vmap(eqx.combine(params, static))(texts[:, :-1])
        return next_symbol_loss(logits, texts)

    return Task(
        init, batch, batch_size * context, loss, lambda params: loss(params, held_out)
    )


def _is_array(leaf) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def arguments(config: Config, method: Method) -> dict:
    """What :func:`language_methods.train` needs beside keys."""
    point = {"learning_rate": config.transformer_rate, **PEERS.get(method, {})}
    return {
        "points": {name: (value,) for name, value in point.items()},
        "task": task(config),
        "method": method,
        "quantizer": QUANTIZER,
        "num_steps": config.transformer_steps,
        "rows": config.transformer_rows,
    }


def entries(config: Config) -> dict[Method, int]:
    """Seeds of every method."""
    if not config.transformer_steps:
        return {}
    main = dict.fromkeys(MAIN, config.transformer_seeds)
    return main | dict.fromkeys(PEERS, config.transformer_peer_seeds)


def compute(config: Config, key) -> dict[str, dict[str, np.ndarray]]:
    """Losses of every method, all on the same starts and batches."""
    keys = jax.random.split(key, max(entries(config).values(), default=1))
    return {
        method.name: methods.train(keys[:seeds], **arguments(config, method))
        for method, seeds in entries(config).items()
    }


def shapes(config: Config) -> None:
    """Traces three kinds of runs without computing them."""
    keys = jax.random.split(jax.random.key(0), config.transformer_seeds)
    for method in (methods.QAT, methods.LOTION, methods.LSQ):
        if method in entries(config):
            methods.trace(keys, **arguments(config, method))


def summarize(config: Config, data: dict[str, dict[str, np.ndarray]]):
    """Metrics, figure and claims from the losses, (seeds, 1) for every method."""
    if not data:
        return {}, {}, ()
    steps = np.linspace(0, config.transformer_steps, config.transformer_rows + 1)
    metrics = {}
    for name, losses in data.items():
        seeds = ("seed", range(len(losses["full"])))
        label = name.replace(" ", "_").replace("-", "_")
        metrics[f"transformer_{label}"] = Metric(
            np.stack([losses[c][:, 0] for c in ("full", "nearest", "random")]),
            (("cast", ("full", "nearest", "random")), seeds),
        )
        metrics[f"transformer_{label}_along"] = Metric(
            losses["nearest_curve"][:, 0], (seeds, ("step", steps.astype(int)))
        )
    return metrics, {"transformer": _figure(data, steps)}, tuple(_claims(data))


def _claims(data):
    ours = data["LOTION"]
    for name, losses in data.items():
        if name == "LOTION":
            continue
        count = len(losses["nearest"])
        difference = (ours["nearest"][:count] - losses["nearest"])[:, 0]
        interval = Interval(
            float(difference.min()),
            float(difference.max()),
            f"least and largest of {count} seeds",
        )
        yield Claim(
            "Transformer on characters, int4 in blocks of 32, validation loss rounded "
            f"to nearest: LOTION minus {name} (mean)",
            float(difference.mean()),
            interval=interval if count > 1 else None,
        )
    for name in ("LOTION", "QAT"):
        gap = data[name]["random"] - data[name]["nearest"]
        yield Claim(
            f"Transformer on characters: {name} rounded at random minus rounded to "
            "nearest (mean)",
            float(gap.mean()),
        )


def _figure(data, steps):
    figure, panels = new_figure(
        "Transformer on characters, int4 in blocks of 32: validation loss",
        columns=3,
        panel=(4.4, 3.6),
    )
    for axes, cast, title in zip(
        panels[0],
        ("nearest_curve", "random_curve"),
        ("rounded to nearest, mean over seeds", "rounded at random, mean over seeds"),
        strict=False,
    ):
        for name in (method.name for method in MAIN):
            # The start, the same for all, would flatten the rest.
            axes.plot(steps[1:], data[name][cast][:, 0, 1:].mean(0), label=name)
        axes.set(title=title, xlabel="steps", ylabel="loss")
        axes.legend()
    names = sorted(data, key=lambda name: -float(data[name]["nearest"].mean()))
    for cast, marker, colour, label in (
        ("random", "s", "#D55E00", "rounded at random"),
        ("nearest", "o", "#0072B2", "rounded to nearest"),
        ("full", "|", "#666666", "full precision"),
    ):
        for row, name in enumerate(names):
            values = data[name][cast][:, 0]
            panels[0, 2].plot(
                values,
                np.full(len(values), row),
                marker,
                color=colour,
                label="_" if row else label,
            )
    panels[0, 2].set(
        title="at the end, every seed",
        xlabel="loss",
        yticks=range(len(names)),
        yticklabels=names,
    )
    panels[0, 2].legend()
    return figure
