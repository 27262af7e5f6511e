"""Masks in all their forms, and what is refused."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_model import small_model

from jaxopt_suite.quantization import (
    default_mask,
    make_quantizer,
    per_channel,
    quantize_tree,
    resolve_mask,
    where_path,
)

PARAMS = {"a": [jnp.ones((2, 3)), jnp.ones(3)], "b": jnp.ones((2, 2), jnp.int32)}


def test_the_default_selects_floating_matrices():
    tree = {
        "kernel": jnp.ones((3, 3, 2), jnp.bfloat16),
        "bias": jnp.ones(2),
        "gain": 1.0,
        "table": np.ones((2, 2)),
        "count": jnp.ones((2, 2), jnp.int32),
        "name": "layer",
        "shape": jax.ShapeDtypeStruct((2, 2), jnp.float32),
        "nothing": None,
        "masked": optax.MaskedNode(),
    }
    selected = default_mask(tree)
    names = [name for name in tree if selected[name] is True]
    assert names == ["kernel", "table", "shape"]
    assert resolve_mask(None, tree) == selected


def test_paths_name_fields_keys_and_positions():
    seen = []
    mask = where_path(lambda path: bool(seen.append(path)))
    mask({"dense": small_model().layers})
    assert seen[:2] == ["dense/0/weight", "dense/0/bias"]
    seen.clear()
    mask(jax.eval_shape(nn.Dense(2).init, jax.random.key(0), jnp.ones((1, 3))))
    assert seen == ["params/bias", "params/kernel"]


def test_a_bool_may_stand_for_a_subtree():
    assert resolve_mask({"a": True, "b": False}, PARAMS) == {
        "a": [True, True],
        "b": False,
    }
    assert resolve_mask(False, PARAMS) == {"a": [False, False], "b": False}
    chosen = resolve_mask({"a": [np.True_, False], "b": False}, PARAMS)
    assert chosen == {"a": [True, False], "b": False}
    assert chosen["a"][0] is True


def test_a_model_of_bools_is_a_tree_although_it_may_be_called():
    model = small_model()
    last = jax.tree.map(lambda _: False, model)
    last = eqx.tree_at(lambda m: m.layers[-1].weight, last, replace=True)
    chosen = resolve_mask(last, model)
    assert chosen.layers[1].weight is True
    assert sum(jax.tree.leaves(chosen)) == 1


def test_leaves_that_are_no_arrays_are_never_selected():
    model = small_model()
    assert resolve_mask(True, model).activation is False
    assert quantize_tree(make_quantizer("int4"), model, True).activation is (
        model.activation
    )


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (True, r"params\['b'\] .*floating dtype, got int32: leave it out of the mask"),
        (lambda params: True, r"params\['b'\] .*floating dtype, got int32"),
        (where_path(lambda path: path == "b"), r"params\['b'\] .*got int32"),
        ({"a": 1, "b": False}, r"mask\['a'\]\[0\] must be a static bool, got 1"),
        ({"a": True}, "mask must be a pytree of bools with the structure of params"),
        ({"a": [True], "b": False}, "mask must be a pytree of bools"),
    ],
)
def test_bad_masks_are_refused(mask, message):
    with pytest.raises(ValueError, match=message):
        resolve_mask(mask, PARAMS)


def test_a_leaf_without_the_axis_is_named():
    quantizer = make_quantizer("int4", per_channel(2))
    params = {"a": [jnp.ones((1, 1, 2)), jnp.ones((2, 2))]}
    for key in (None, jax.random.key(0)):
        with pytest.raises(
            ValueError, match=r"params\['a'\]\[1\] .*per_channel .*got 2"
        ):
            quantize_tree(quantizer, params, key=key)


def test_a_traced_mask_is_refused():
    def select(flag):
        return resolve_mask({"w": flag}, {"w": jnp.ones((2, 2))})

    with pytest.raises(ValueError, match=r"mask\['w'\] must be a static bool"):
        jax.jit(select)(True)
