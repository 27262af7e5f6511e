"""The decoder as a Flax module: the same function of the same weights.

Flax keeps a matrix with the inputs first, so blocks of 32 inputs that share a scale
are ``per_block(32, axis=0)`` there and ``per_block(32)`` in Equinox.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from experiments.lotion import decoder


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each after a norm and with a skip."""

    num_heads: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch time width"]
    ) -> Float[Array, "batch time width"]:
        """Adds what the two layers find to every position."""
        width = x.shape[-1]
        mixed = _dense(3 * width, "queries_keys_values")(_norm()(x))
        heads = mixed.reshape(*x.shape[:2], 3, self.num_heads, -1)
        attended = jax.nn.dot_product_attention(
            *jnp.moveaxis(heads, 2, 0), is_causal=True
        )
        x = x + _dense(width, "projection")(attended.reshape(x.shape))
        hidden = nn.gelu(_dense(4 * width, "hidden")(_norm()(x)))
        return x + _dense(width, "output")(hidden)


class Decoder(nn.Module):
    """Next-symbol scores at every position of each text."""

    num_symbols: int
    context: int
    width: int
    num_layers: int
    num_heads: int

    @nn.compact
    def __call__(
        self, texts: Int[Array, "batch time"]
    ) -> Float[Array, "batch time symbols"]:
        """Scores of the symbol after each position, from those up to it."""
        small = nn.initializers.normal(0.02)
        symbols = self.param("symbols", small, (self.num_symbols, self.width))
        positions = self.param("positions", small, (self.context, self.width))
        x = symbols[texts] + positions[: texts.shape[1]]
        for index in range(self.num_layers):
            x = Block(self.num_heads, name=f"block_{index}")(x)
        return _dense(self.num_symbols, "scores")(_norm()(x))


def from_equinox(model: decoder.Decoder) -> dict[str, Any]:
    """The Flax variables with the weights of an Equinox model."""

    def dense(weight):
        return {"kernel": jnp.swapaxes(weight, -2, -1)}

    layers = {
        "queries_keys_values": dense(model.blocks.queries_keys_values.weight),
        "projection": dense(model.blocks.projection.weight),
        "hidden": dense(model.blocks.hidden.weight),
        "output": dense(model.blocks.output.weight),
    }
    num_layers = len(layers["projection"]["kernel"])
    return {
        "params": {
            "symbols": model.symbols,
            "positions": model.positions,
            "scores": dense(model.scores.weight),
            **{
                f"block_{i}": jax.tree.map(lambda leaf, i=i: leaf[i], layers)
                for i in range(num_layers)
            },
        }
    }


def _dense(features: int, name: str) -> nn.Dense:
    return nn.Dense(features, use_bias=False, name=name)


def _norm() -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=1e-5, use_scale=False, use_bias=False)
