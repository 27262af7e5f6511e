"""An Equinox model whose weights cost no compile."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def small_model():
    """Two layers, 3 to 4 to 2, with an activation function among the leaves."""
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    shapes = eqx.filter_eval_shape(eqx.nn.MLP, 3, 2, 4, 1, key=key)
    rng = np.random.default_rng(0)

    def fill(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        return jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree.map(fill, shapes)
