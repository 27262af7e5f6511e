"""Gradient transformations that each break one rule, in a way that happens."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.experimental import aggregating

from jaxopt_suite.core.checks import is_concrete


class State(NamedTuple):
    """One value, whatever it is."""

    value: Any


def zero(params):
    """The state of those that need none."""
    del params
    return jnp.zeros([], jnp.float32)


def stateless(init_value, update_fn):
    """A transformation whose state is ``State`` of ``init_value(params)``."""

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        updates, value = update_fn(updates, state.value)
        return updates, State(value)

    return optax.GradientTransformationExtraArgs(
        lambda params: State(init_value(params)), update
    )


def scaled(tree, factor):
    return jax.tree.map(lambda u: (factor * u).astype(u.dtype), tree)


def no_example(rate):
    """Scales."""
    return stateless(zero, lambda u, v: (scaled(u, rate), v))


def growing_state(rate):
    """Keeps every gradient. >>> growing_state(0.1)"""
    return stateless(lambda p: (), lambda u, v: (scaled(u, rate), (*v, u)))


def drifting_dtype(rate):
    """Counts in int32, then in float32. >>> drifting_dtype(0.1)"""
    return stateless(
        lambda p: jnp.zeros([], jnp.int32), lambda u, v: (scaled(u, rate), v + 0.5)
    )


def weak_state(rate):
    """Starts weakly typed. >>> weak_state(0.1)"""
    start = lambda p: jnp.asarray(0.0)  # noqa: E731
    return stateless(start, lambda u, v: (scaled(u, rate), v + jnp.float32(1)))


def branches_on_rate(rate):
    """Has a Python branch on its argument. >>> branches_on_rate(0.1)"""

    def update(updates, value):
        return (scaled(updates, rate) if rate > 0 else updates), value

    return stateless(zero, update)


def compiles_per_rate(rate):
    """Its rate is static in its own jit. >>> compiles_per_rate(0.1)"""
    step = functools.partial(jax.jit, static_argnames="factor")(scaled)
    return stateless(zero, lambda u, v: (step(u, factor=rate), v))


def guesses_traced_rate(rate):
    """Falls back to a default where it cannot see. >>> guesses_traced_rate(0.3)"""
    return no_example(rate if is_concrete(rate) else 0.1)


def hidden_counter(rate):
    """Counts in its closure. >>> hidden_counter(0.1)"""
    count = 0

    def update(updates, value):
        nonlocal count
        count += 1
        return scaled(updates, rate / count), value

    return stateless(zero, update)


def hidden_random(rate):
    """Draws from NumPy. >>> hidden_random(0.1)"""
    return stateless(
        zero,
        lambda u, v: (scaled(u, rate * np.random.uniform()), v),  # noqa: NPY002
    )


def calls_the_host(rate):
    """Calls back to Python in its inner loop. >>> calls_the_host(0.1)"""

    def update(updates, value):
        norm = optax.tree.norm(updates)
        norm = jax.pure_callback(lambda x: x, jax.typeof(norm), norm)
        return scaled(updates, rate * norm), value

    return stateless(zero, update)


def pins_its_device(rate):
    """Lays its updates out over the devices itself. >>> pins_its_device(0.1)"""
    mesh = jax.make_mesh((1,), ("x",), (jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.P())

    def update(updates, value):
        updates = jax.lax.with_sharding_constraint(updates, everywhere)
        return scaled(updates, rate), value

    return stateless(zero, update)


MEMORY = []


def remembers_arrays(rate):
    """Knows the arrays that it returned. >>> remembers_arrays(0.1)"""

    def update(updates, value):
        known = any(value is array for array in MEMORY)
        MEMORY.append(value + 0)
        return scaled(updates, rate if known else 2 * rate), MEMORY[-1]

    return stateless(zero, update)


def numpy_on_updates(rate):
    """Computes with NumPy. >>> numpy_on_updates(0.1)"""
    return stateless(
        zero,
        lambda u, v: (jax.tree.map(lambda x: jnp.asarray(np.array(x) * rate), u), v),
    )


def upcasts(rate):
    """Turns bfloat16 updates into float32. >>> upcasts(0.1)"""
    return stateless(
        zero,
        lambda u, v: (jax.tree.map(lambda x: x * jnp.float32(rate), u), v),
    )


def narrow_statistics(decay):
    """Averages in the gradients' dtype. >>> narrow_statistics(0.9)"""

    def update(updates, value):
        value = jax.tree.map(
            lambda v, u: (decay * v + (1 - decay) * u).astype(v.dtype), value, updates
        )
        return value, value

    return stateless(lambda p: jax.tree.map(jnp.zeros_like, p), update)


def python_state(rate):
    """Keeps a Python number. >>> python_state(0.1)"""
    return stateless(lambda p: 0, lambda u, v: (scaled(u, rate), v + 1))


def keeps_params(rate):
    """Puts params into its state without a copy. >>> keeps_params(0.1)"""
    return stateless(lambda p: p, lambda u, v: (scaled(u, rate), v))


def unit_norm(rate):
    """Divides by a norm that may be zero. >>> unit_norm(0.1)"""

    def update(updates, value):
        return scaled(updates, rate / optax.tree.norm(updates)), value

    return stateless(zero, update)


def hides_nan(rate):
    """Replaces NaN by 0 and tells nobody. >>> hides_nan(0.1)"""
    return stateless(
        zero,
        lambda u, v: (scaled(jax.tree.map(jnp.nan_to_num, u), rate), v),
    )


def assumes_dict(rate):
    """Works on a dict of arrays only. >>> assumes_dict(0.1)"""
    return stateless(
        zero,
        lambda u, v: ({name: rate * x for name, x in u.items()}, v),
    )


def assumes_builtin_containers(rate):
    """Rebuilds containers by their type. >>> assumes_builtin_containers(0.1)"""

    def rebuild(tree):
        if isinstance(tree, dict):
            return {name: rebuild(child) for name, child in tree.items()}
        if isinstance(tree, (list, tuple)):
            return type(tree)(rebuild(child) for child in tree)
        return None if tree is None else tree * rate

    return stateless(zero, lambda u, v: (rebuild(u), v))


def closed_signature(rate):
    """Takes no extra arguments. >>> closed_signature(0.1)"""
    good = no_example(rate)

    def update(updates, state, params=None):
        return good.update(updates, state, params)

    return optax.GradientTransformationExtraArgs(good.init, update)


def open_signature(**options):
    """Takes its options as **kwargs. >>> open_signature(rate=0.1)"""
    return stateless(zero, lambda u, v: (scaled(u, options["rate"]), v))


def ignores_key(rate, key):
    """Takes a key and draws from another. >>> ignores_key(0.1, jax.random.key(0))"""
    noise = jax.random.uniform(jax.random.key(0))
    del key
    return stateless(zero, lambda u, v: (scaled(u, rate * noise), v))


def accepts_anything(rate):
    """Checks nothing. >>> accepts_anything(-1.0)"""
    return stateless(zero, lambda u, v: (scaled(u, rate), v))


def refuses_schedules(rate: optax.ScalarOrSchedule):
    """Annotates a schedule, takes a number. >>> refuses_schedules(0.1)"""
    return stateless(zero, lambda u, v: (scaled(u, rate), v))


def rebuilds_tuples(rate):
    """Knows no NamedTuple among the nodes. >>> rebuilds_tuples(0.1)"""

    def rebuild(tree):
        if isinstance(tree, dict):
            return {name: rebuild(child) for name, child in tree.items()}
        if isinstance(tree, (list, tuple)):
            return type(tree)([rebuild(child) for child in tree])
        return jax.tree.map(lambda x: x * rate, tree)

    return stateless(zero, lambda u, v: (rebuild(u), v))


def keeps_samples():
    """An aggregator that aggregates nothing. >>> keeps_samples()"""
    return aggregating.Aggregator(*stateless(zero, lambda u, v: (u, v)))


def reduces_untold():
    """Reduces samples and is no Aggregator. >>> reduces_untold()"""
    return stateless(
        zero,
        lambda u, v: (jax.tree.map(lambda x: x.mean(axis=0), u), v),
    )
