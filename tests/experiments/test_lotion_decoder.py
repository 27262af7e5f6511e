"""The transformer of the LOTION experiment: its Flax twin, its file, its devices."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lotion import decoder, decoder_flax, large
from jaxopt_suite.core import device_mesh
from jaxopt_suite.quantization import (
    make_quantizer,
    per_block,
    quantize_tree,
    where_path,
)

SHAPE = {
    "num_symbols": 11,
    "context": 6,
    "width": 8,
    "num_layers": 2,
    "num_heads": 2,
}
TINY = large.LargeConfig(
    width=8, num_layers=2, num_heads=2, vocabulary=16, context=6, batch=8, block=4
)


@functools.cache
def tiny_model():
    return decoder.Decoder(**SHAPE, key=jax.random.key(0))


def texts():
    return jax.random.randint(jax.random.key(1), (3, SHAPE["context"] + 1), 0, 11)


def test_the_flax_twin_is_the_same_function():
    model, twin = tiny_model(), decoder_flax.Decoder(**SHAPE)
    variables = decoder_flax.from_equinox(model)
    made = jax.eval_shape(twin.init, jax.random.key(0), texts()[:, :-1])
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, made)

    @eqx.filter_jit
    def losses(model, variables):
        inputs = texts()[:, :-1]
        ours = decoder.next_symbol_loss(jax.vmap(model)(inputs), texts())
        theirs = decoder.next_symbol_loss(twin.apply(variables, inputs), texts())
        return ours, theirs

    np.testing.assert_allclose(*losses(model, variables), rtol=1e-5)
    # Blocks of inputs: the last axis of a weight here, the last but one there.
    matrices = where_path(lambda path: path.endswith("weight"))
    kernels = where_path(lambda path: path.endswith("kernel"))
    rounded = (
        quantize_tree(make_quantizer("int3", per_block(4)), model, matrices),
        quantize_tree(make_quantizer("int3", per_block(4, -2)), variables, kernels),
    )
    ours, theirs = losses(*rounded)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert abs(ours - losses(model, variables)[0]) > 1e-4


def test_a_position_sees_no_later_symbol():
    model, text = tiny_model(), texts()[0, :-1]
    changed = text.at[3].set((text[3] + 1) % 11)
    scores = eqx.filter_jit(lambda model, texts: jax.vmap(model)(texts))
    before, after = scores(model, jnp.stack([text, changed]))
    np.testing.assert_array_equal(before[:3], after[:3])
    assert jnp.all(jnp.any(before[3:] != after[3:], axis=-1))


def token_file(path, count=200):
    np.random.default_rng(0).integers(0, 16, count).astype(np.uint16).tofile(path)
    return large.TokenFile(path)


def test_batches_are_slices_of_the_file(tmp_path):
    tokens = token_file(tmp_path / "text.bin")
    saved = tmp_path / "text.npy"
    np.save(saved, tokens.tokens)
    batch = next(tokens.batches(5, 6, seed=3))
    assert batch.shape == (5, 7)
    every = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens.tokens), 7)
    assert {tuple(row) for row in batch} <= {tuple(row) for row in every}
    again = next(large.TokenFile(saved).batches(5, 6, seed=3))
    np.testing.assert_array_equal(batch, again)
    with pytest.raises(ValueError, match="context must be below the 200 tokens"):
        next(tokens.batches(5, 200, seed=3))


def test_a_file_of_anything_else_is_refused(tmp_path):
    path = tmp_path / "bad.npy"
    np.save(path, np.ones((2, 3)))
    with pytest.raises(ValueError, match="integers along one axis"):
        large.TokenFile(path)


@pytest.mark.slow
def test_training_over_devices_equals_one_device(tmp_path):
    tokens = token_file(tmp_path / "text.bin")
    one, many = (
        large.train(TINY, tokens, jax.random.key(0), 3, mesh=device_mesh("data", n))
        for n in (1, 4)
    )
    np.testing.assert_allclose(one.losses, many.losses, rtol=1e-4)
    rows = many.model.blocks.hidden.weight
    assert rows.addressable_shards[0].data.shape == (2, 8, 8)
    quantizer = make_quantizer(TINY.fmt, per_block(TINY.block))
    weight = many.shipped.blocks.hidden.weight
    np.testing.assert_array_equal(weight, quantizer.round_nearest(rows))


def test_the_shapes_have_the_parameters_of_their_names():
    assert large.shapes(TINY) == 2 * 12 * 8**2 + 2 * 16 * 8 + 6 * 8
    for name, config in large.LARGE.items():
        millions = 12 * config.num_layers * config.width**2 / 1e6
        assert abs(millions / float(name.removesuffix("M")) - 1) < 0.06
        assert config.width % config.num_heads == config.width % config.block == 0
