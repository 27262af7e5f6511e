"""Cost of training for low precision: a step of every method against plain Adam's."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.lotion import language_methods as methods
from experiments.lotion.language_methods import Method
from experiments.speed.timing import Ratio, compare
from jaxopt_suite.quantization import Quantizer, make_quantizer, per_block

BATCH = 256
# Millions of parameters: width and number of square matrices.
SIZES = {"1M": (512, 4), "10M": (1024, 10)}
QUANTIZERS = {
    "per tensor": make_quantizer("int4"),
    "blocks of 32": make_quantizer("int4", per_block(32)),
}
METHODS: dict[Method, dict[str, float]] = {
    methods.LOTION: {},
    methods.LOTION_ADAMW: {"max_ratio": 1.0},
    methods.QAT: {},
    methods.RAT: {},
    methods.LSQ: {},
    methods.QUEST: {},
    methods.NOISE: {},
    methods.DAMPENING: {"strength": 1e-3},
    methods.CLIPPED: {"ratio": 0.9},
}
# Timed at the larger size too, where a step takes long.
LARGE = (methods.LOTION, methods.LOTION_ADAMW, methods.QAT)


def _step(
    method: Method, point: dict[str, float], quantizer: Quantizer, size: str
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A jitted training step and its first arguments, which it may overwrite."""
    width, depth = SIZES[size]
    run = methods.Run(quantizer, BATCH, 1000, lambda count: 1e-3)
    weights, optimizer = method.make(run, **point)
    keys = jax.random.split(jax.random.key(0), depth)
    params = [jax.random.normal(key, (width, width)) / width**0.5 for key in keys]
    inputs = jax.random.normal(jax.random.key(1), (BATCH, width))

    def loss(pair, key):
        x = inputs
        for matrix in weights.apply(pair[0], key, pair[1]):
            x = jax.nn.relu(x @ matrix)
        return jnp.mean(x**2)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(pair, state, key):
        grads = jax.grad(loss)(pair, key)
        updates, state = optimizer.update(grads, state, pair)
        return optax.apply_updates(pair, updates), state

    pair = (weights.init(params), params)
    return step, (pair, optimizer.init(pair), jax.random.key(2))


def _repeated(step: Callable[..., Any], arguments: tuple) -> Callable[[], Any]:
    """Calls that go on from where the last one ended."""
    held = {"at": arguments[:2]}

    def call():
        held["at"] = step(*held["at"], arguments[2])
        return held["at"]

    return call


def run() -> tuple[list[Ratio], list[tuple[str, float]]]:
    """All ratios, and memory figures."""
    ratios, memory = [], []
    for size in SIZES:
        chosen = METHODS if size == "1M" else LARGE
        for name, quantizer in QUANTIZERS.items():
            adam, adam_arguments = _step(methods.PTQ, {}, quantizer, size)
            plain = _repeated(adam, adam_arguments)
            used = _bytes(adam, adam_arguments)
            for method in chosen:
                step, arguments = _step(method, METHODS[method], quantizer, size)
                what = f"{method.name}, int4 {name}, {size} parameters"
                copies = (_bytes(step, arguments) - used) / _size(adam_arguments[0][1])
                memory.append(
                    (f"{what}: memory above Adam's, parameter copies", copies)
                )
                ratios.append(
                    compare(
                        f"a step of {what}, batch of {BATCH}, against Adam",
                        _repeated(step, arguments),
                        plain,
                        turns=15 if size == "1M" else 7,
                    )
                )
    return ratios, memory


def _bytes(step: Callable[..., Any], arguments: tuple) -> int:
    """Memory of the state that lasts and of what comes and goes within a step."""
    compiled = step.lower(*arguments).compile()  # pyright: ignore[reportFunctionMemberAccess]
    analysis = compiled.memory_analysis()
    return getattr(analysis, "temp_size_in_bytes", 0) + _size(arguments[:2])


def _size(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
