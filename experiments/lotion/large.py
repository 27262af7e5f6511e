"""LOTION on decoders of 150M to 600M parameters, from a file of tokens, over devices.

Losses of the paper on C4 with int4 weights: at 150M LOTION 3.295, QAT 3.315, PTQ 3.864;
at 300M LOTION 3.177, QAT 3.223. What runs here is the same recipe at those shapes::

    config = LARGE["150M"]
    result = train(config, TokenFile("c4.bin"), jax.random.key(0), num_steps=30_000)

Nothing here is run at size by the experiment: shapes are traced, and a tiny shape is
tested.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from experiments.lotion.decoder import Decoder, next_symbol_loss
from jaxopt_suite.core import device_mesh, shard_leading
from jaxopt_suite.core.mesh import place
from jaxopt_suite.quantization import (
    lotion_adamw,
    make_quantizer,
    per_block,
    quantize_tree,
)

AXIS = "data"


@dataclasses.dataclass(frozen=True)
class LargeConfig:
    """Shape of a decoder and of its training.

    Attributes:
        width: numbers per position.
        num_layers: blocks.
        num_heads: heads of attention.
        vocabulary: tokens there are.
        context: tokens that it sees.
        batch: texts a step, over all devices.
        learning_rate: the peak, after warmup and before the cosine.
        weight_decay: of AdamW.
        fmt: what the weights are shipped in.
        block: weights that share a scale, along the inputs.
    """

    width: int
    num_layers: int
    num_heads: int
    vocabulary: int = 32_000
    context: int = 1024
    batch: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    fmt: str = "int4"
    block: int = 32


# By the parameters of the blocks, 12 layers x width^2, as is the custom.
LARGE = {
    "150M": LargeConfig(width=1024, num_layers=12, num_heads=16),
    "300M": LargeConfig(width=1024, num_layers=24, num_heads=16),
    "600M": LargeConfig(width=1408, num_layers=24, num_heads=22),
}


class TokenFile:
    """A text of token numbers in a file, read as it is needed.

    Args:
        path: a ``.npy`` array of one axis, or else the plain bytes of uint16 numbers.

    Attributes:
        tokens: the numbers, on disk.

    Raises:
        ValueError: the array has another shape, or its numbers are no integers.
    """

    def __init__(self, path: str | Path):
        path = Path(path)
        if path.suffix == ".npy":
            self.tokens = np.load(path, mmap_mode="r")
        else:
            self.tokens = np.memmap(path, np.uint16, mode="r")
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            raise ValueError(
                "path must hold integers along one axis, got "
                f"{self.tokens.dtype}{self.tokens.shape} in {path}"
            )

    def batches(
        self, batch: int, context: int, seed: int
    ) -> Iterator[Int[np.ndarray, "batch context+1"]]:
        """Texts from random places without end, each with the token after it.

        Args:
            batch: texts at a time.
            context: tokens of a text.
            seed: of the places.

        Raises:
            ValueError: the file is shorter than one text.
        """
        places = len(self.tokens) - context
        if places < 1:
            raise ValueError(
                f"context must be below the {len(self.tokens)} tokens of the file, got "
                f"{context}"
            )
        generator = np.random.default_rng(seed)
        while True:
            starts = generator.integers(0, places, batch)
            rows = [self.tokens[s : s + context + 1] for s in starts]
            yield np.stack(rows).astype(np.int32)


class Trained(NamedTuple):
    """What :func:`train` returns.

    Attributes:
        model: the weights in full precision, over the devices.
        shipped: the same rounded to nearest.
        losses: of every step in full precision, shape (steps,).
    """

    model: Decoder
    shipped: Decoder
    losses: Float[np.ndarray, " steps"]


def make_model(config: LargeConfig, key: PRNGKeyArray) -> Decoder:
    """The decoder of a config, which recomputes its blocks in the backward pass."""
    return Decoder(
        config.vocabulary,
        config.context,
        config.width,
        config.num_layers,
        config.num_heads,
        checkpoint_blocks=True,
        key=key,
    )


def make_optimizer(
    config: LargeConfig, num_steps: int
) -> optax.GradientTransformationExtraArgs:
    """AdamW with the LOTION penalty, which needs no more memory than AdamW."""
    rate = optax.schedules.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, max(num_steps // 20, 1), num_steps
    )
    return lotion_adamw(
        rate,
        make_quantizer(config.fmt, per_block(config.block)),
        batch_size=config.batch * config.context,
        weight_decay=config.weight_decay,
        max_ratio=1.0,
    )


def train_step(
    model: Decoder, state: PyTree, texts: Array, *, optimizer: Any
) -> tuple[Decoder, PyTree, Float[Array, ""]]:
    """One step, and the loss before it."""

    @eqx.filter_value_and_grad
    def loss(model):
        return next_symbol_loss(jax.vmap(model)(texts[:, :-1]), texts)

    value, grads = loss(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, state = optimizer.update(grads, state, params)
    return eqx.apply_updates(model, updates), state, value


def parameter_sharding(mesh: Mesh) -> Callable[[Any], NamedSharding]:
    """How a leaf is laid out: matrices by rows where they divide, all else copied.

    Blocks that share a scale run along a row, so no scale needs another device.
    """
    count = mesh.shape[AXIS]

    def sharding(leaf):
        by_rows = len(leaf.shape) >= 2 and leaf.shape[-2] % count == 0
        axes = (*([None] * (len(leaf.shape) - 2)), AXIS) if by_rows else ()
        return NamedSharding(mesh, PartitionSpec(*axes))

    return sharding


def train(
    config: LargeConfig,
    tokens: TokenFile,
    key: PRNGKeyArray,
    num_steps: int,
    *,
    mesh: Mesh | None = None,
) -> Trained:
    """Trains a decoder with its weights, its state and its batches over devices.

    Args:
        config: the shape; the number of devices divides ``config.batch``.
        tokens: the training text.
        key: typed key of the first weights and of the order of texts.
        num_steps: steps.
        mesh: devices along the axis ``"data"``; None takes all.
    """
    mesh = device_mesh(AXIS) if mesh is None else mesh
    sharding = parameter_sharding(mesh)
    optimizer = make_optimizer(config, num_steps)

    def lay_out(tree):
        arrays, static = eqx.partition(tree, eqx.is_array)
        laid = jax.tree.map(lambda leaf: place(leaf, sharding(leaf)), arrays)
        return eqx.combine(laid, static)

    order_key, model_key = jax.random.split(key)
    model = lay_out(make_model(config, model_key))
    state = lay_out(optimizer.init(eqx.filter(model, eqx.is_inexact_array)))
    step = eqx.filter_jit(
        functools.partial(train_step, optimizer=optimizer), donate="all"
    )
    seed = int(jax.random.randint(order_key, (), 0, 2**31 - 1))
    batches = tokens.batches(config.batch, config.context, seed)
    losses = []
    for _, texts in zip(range(num_steps), batches, strict=False):
        model, state, loss = step(model, state, shard_leading(texts, mesh, AXIS))
        losses.append(loss)
    quantizer = make_quantizer(config.fmt, per_block(config.block))
    return Trained(model, quantize_tree(quantizer, model), np.array(losses))


def shapes(config: LargeConfig) -> int:
    """Traces a training step without running it.

    Returns:
        The number of parameters.
    """
    model = eqx.filter_eval_shape(make_model, config, jax.random.key(0))
    optimizer = make_optimizer(config, 1000)
    params = eqx.filter(model, _is_floating)
    state = eqx.filter_eval_shape(optimizer.init, params)
    texts = jax.ShapeDtypeStruct((config.batch, config.context + 1), np.int32)
    step = functools.partial(train_step, optimizer=optimizer)
    moved, _, loss = eqx.filter_eval_shape(step, model, state, texts)
    assert loss.shape == ()
    assert jax.tree.map(np.shape, moved) == jax.tree.map(np.shape, model)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and np.issubdtype(leaf.dtype, np.floating)
