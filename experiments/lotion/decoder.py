"""A decoder-only transformer in Equinox; a Flax twin is in ``decoder_flax.py``."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Block(eqx.Module):
    """Causal attention and a feed-forward layer, each after a norm and with a skip.

    The norms have no weights, so that every weight is one that is quantized.
    """

    queries_keys_values: eqx.nn.Linear
    projection: eqx.nn.Linear
    hidden: eqx.nn.Linear
    output: eqx.nn.Linear
    num_heads: int = eqx.field(static=True)

    def __init__(self, width: int, num_heads: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 4)
        self.queries_keys_values = _linear(width, 3 * width, keys[0])
        self.projection = _linear(width, width, keys[1])
        self.hidden = _linear(width, 4 * width, keys[2])
        self.output = _linear(4 * width, width, keys[3])
        self.num_heads = num_heads

    def __call__(self, x: Float[Array, "time width"]) -> Float[Array, "time width"]:
        """Adds what the two layers find to every position."""
        mixed = jax.vmap(self.queries_keys_values)(normalized(x))
        heads = mixed.reshape(len(x), 3, self.num_heads, -1)
        attended = jax.nn.dot_product_attention(
            *jnp.moveaxis(heads, 1, 0), is_causal=True
        )
        x = x + jax.vmap(self.projection)(attended.reshape(x.shape))
        hidden = jax.nn.gelu(jax.vmap(self.hidden)(normalized(x)))
        return x + jax.vmap(self.output)(hidden)


class Decoder(eqx.Module):
    """Next-symbol scores at every position of a text.

    Args:
        num_symbols: size of the vocabulary.
        context: the longest text.
        width: numbers per position; a multiple of ``num_heads``.
        num_layers: blocks.
        num_heads: heads of attention in each.
        checkpoint_blocks: recompute each block in the backward pass, which saves the
            memory of its activations.
        key: typed key of the first weights.

    Attributes:
        symbols: a vector for every symbol.
        positions: a vector for every position.
        blocks: all blocks as one, every weight with a leading axis of layers.
        scores: from the last vector of a position to scores.
    """

    symbols: Float[Array, "symbols width"]
    positions: Float[Array, "context width"]
    blocks: Block
    scores: eqx.nn.Linear
    checkpoint_blocks: bool = eqx.field(static=True)

    def __init__(
        self,
        num_symbols: int,
        context: int,
        width: int,
        num_layers: int,
        num_heads: int,
        *,
        checkpoint_blocks: bool = False,
        key: PRNGKeyArray,
    ):
        symbol_key, position_key, score_key, block_key = jax.random.split(key, 4)
        self.symbols = 0.5 * jax.random.normal(symbol_key, (num_symbols, width))
        self.positions = 0.1 * jax.random.normal(position_key, (context, width))
        self.blocks = eqx.filter_vmap(lambda key: Block(width, num_heads, key=key))(
            jax.random.split(block_key, num_layers)
        )
        self.scores = _linear(width, num_symbols, score_key)
        self.checkpoint_blocks = checkpoint_blocks

    def __call__(self, text: Int[Array, " time"]) -> Float[Array, "time symbols"]:
        """Scores of the symbol after each position, from those up to it."""
        x = self.symbols[text] + self.positions[: len(text)]
        layers, static = eqx.partition(self.blocks, eqx.is_array)

        def apply(x, layer):
            return eqx.combine(layer, static)(x), None

        if self.checkpoint_blocks:
            apply = jax.checkpoint(apply)
        x, _ = jax.lax.scan(apply, x, layers)
        return jax.vmap(self.scores)(normalized(x))


def normalized(x: Float[Array, "... width"]) -> Float[Array, "... width"]:
    """Every position with mean 0 and variance 1."""
    return jax.nn.standardize(x, epsilon=1e-5)


def next_symbol_loss(
    logits: Float[Array, "batch time symbols"], texts: Int[Array, "batch time+1"]
) -> Float[Array, ""]:
    """Mean cross-entropy of every symbol but the first, in nats."""
    return optax.losses.softmax_cross_entropy_with_integer_labels(
        logits, texts[:, 1:]
    ).mean()


def _linear(inputs: int, outputs: int, key: PRNGKeyArray) -> eqx.nn.Linear:
    return eqx.nn.Linear(inputs, outputs, use_bias=False, key=key)
