"""The rules that hold for all four shapes.

A rule takes a subject, raises AssertionError with what it saw, and returns None or the
reason why it does not apply. Its docstring is the advice that the message ends with.
"""

import functools
import importlib.util
import re
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxopt_suite.core import checkpoint as core_checkpoint
from jaxopt_suite.testing._common import (
    NUM_STEPS,
    Rule,
    Subject,
    as_arrays,
    at,
    is_key,
    require_close,
    require_difference,
    require_same_type,
)


def documented(subject: Subject) -> None:
    """A public factory has a docstring with a runnable example ('>>>' lines)."""
    factory = subject.factory
    while isinstance(factory, functools.partial):
        factory = factory.func
    text = factory.__doc__ or ""
    if ">>>" not in text:
        part = "example in its docstring" if text.strip() else "docstring"
        raise AssertionError(f"it has no {part}")


def bad_arguments(subject: Subject) -> str | None:
    """A bad concrete argument raises ValueError, at the latest when traced.

    Check it in the factory; say the argument's name, the value and what is allowed.
    """
    for override, pattern in subject.bad:
        values = {**subject.static, **subject.values(0), **override}
        try:
            method = subject.factory(**values)
            jax.eval_shape(lambda: subject.walk(method, subject.data(0)))  # noqa: B023
        except ValueError as error:
            if not re.search(pattern, str(error)):
                raise AssertionError(
                    f"{override} must raise a ValueError that matches {pattern!r}, "
                    f"got {str(error)!r}"
                ) from error
        else:
            raise AssertionError(f"{override} must raise ValueError, and was accepted")
    return None if subject.bad else "no bad arguments were given"


def state_is_arrays(subject: Subject) -> None:
    """State is a NamedTuple of jax arrays, or a tuple of such.

    Python numbers, strings and functions belong in the factory's closure, counters in
    an int32 array.
    """
    start = as_arrays(subject.data(0)[0])
    state = subject.state(subject.begin(subject.build(subject.values(0)), start))

    def visit(node, path):
        fields = getattr(node, "_fields", None)
        if isinstance(node, tuple) and fields is not None:
            for name, child in zip(fields, node, strict=True):
                visit(child, f"{path}.{name}")
        elif isinstance(node, (tuple, list)):
            for i, child in enumerate(node):
                visit(child, f"{path}[{i}]")
        elif isinstance(node, dict):
            for name, child in node.items():
                visit(child, f"{path}[{name!r}]")
        elif node is not None and not isinstance(node, jax.Array):
            kind = type(node).__name__
            raise AssertionError(f"{path} must be an array, got {kind} {node!r:.80}")

    if not isinstance(state, tuple):
        raise AssertionError(f"state must be a NamedTuple, got {type(state).__name__}")
    visit(state, "state")


def traceable(subject: Subject) -> None:
    """With concrete hyperparameters everything can be traced.

    No Python branch on an array, no NumPy function on a traced value.
    """
    jax.eval_shape(subject.probe, subject.data(0))


def stable_state(subject: Subject) -> None:
    """State keeps structure, shapes, dtypes and weak types, so that it can be scanned.

    Give every leaf an explicit dtype in init, and cast to it in update.
    """
    for dtype in (None, jnp.float32):
        with jax.enable_x64(dtype is not None):
            data = subject.data(0)
            method = subject.build(subject.values(0))
            walk = functools.partial(subject.walk, method)
            _, carries = jax.eval_shape(walk, data)
            for carry in carries[1:]:
                got, wanted = subject.state(carry), subject.state(carries[0])
                require_same_type("state", got, wanted)


def pure_update(subject: Subject) -> None:
    """A step with the same state and inputs gives the same result, bit for bit.

    Also in a fresh instance: counters and keys belong in the state, randomness comes
    from jax.random.
    """
    method = subject.build(subject.values(0))
    start, inputs = subject.data(0)
    first, last = at(inputs, 0), at(inputs, NUM_STEPS - 1)
    carry = subject.begin(method, as_arrays(start))
    once = subject.step(method, carry, first)
    twice = subject.step(method, carry, first)
    require_close("second call with the same state: result", twice, once, 0)
    outputs, carries = subject.eager
    fresh = subject.step(subject.build(subject.values(0)), carries[-2], last)
    expected = (outputs[-1], carries[-1])
    require_close("fresh instance with the same state: result", fresh, expected, 0)


def one_trace(subject: Subject) -> None:
    """Numeric hyperparameters may be traced: all their values share one compile.

    No Python branch, float(), hash or static_argnames on one; use jnp.where, and checks
    that step aside for tracers.
    """
    jax.eval_shape(subject.scan, *as_arrays((subject.values(0), subject.data(0))))
    sets, traces = len(subject.lanes), len(subject.traces)
    if traces != 1:
        raise AssertionError(f"{sets} sets of values took {traces} traces")


def jit_equals_eager(subject: Subject) -> None:
    """Jitted steps give the numbers of eager ones.

    Their hyperparameters are traced and those of the eager loop are not: look for code
    that treats the two in different ways.
    """
    last = subject.num_lanes - 1
    walks = {0: subject.eager}
    walks[last] = subject.walk(subject.build(subject.values(last)), subject.data(last))
    for lane, (outputs, carries) in walks.items():
        name = f"with {subject.values(lane)}: (outputs, carries)"
        expected = outputs, carries[1:]
        require_close(name, subject.lanes[lane], expected, subject.tolerance)


def vmap_equals_loop(subject: Subject) -> None:
    """Steps vmapped over seeds and hyperparameters give the numbers of a loop.

    Look for shapes that count on a missing batch axis, and for state outside the state.
    """
    # Where the sharded step agrees, its vmap does: one compile serves two rules.
    if jax.local_device_count() > 1 and subject.sharded_problem is None:
        return
    arguments, expected = subject.last_step
    got = jax.jit(jax.vmap(subject.traced_step))(*arguments)
    require_close("vmapped result", got, expected, subject.tolerance)


_ONE_DEVICE = "one device: force more with XLA_FLAGS to run this rule"


def shard_map_equals_loop(subject: Subject) -> str | None:
    """Steps laid over devices by jax.shard_map give the numbers of one device.

    Look for a layout, a mesh or a device that the method chooses itself.
    """
    if jax.local_device_count() == 1:
        return _ONE_DEVICE
    if subject.sharded_problem is not None:
        raise subject.sharded_problem
    return None


def pmap_equals_loop(subject: Subject) -> str | None:
    """Steps laid over devices by jax.pmap give the numbers of one device."""
    if jax.local_device_count() == 1:
        return _ONE_DEVICE
    arguments, expected = subject.last_step
    devices = jax.local_devices()[: subject.num_lanes]
    got = jax.pmap(subject.traced_step, devices=devices)(*arguments)
    require_close("pmapped result", got, expected, subject.tolerance)
    return None


def donation(subject: Subject) -> None:
    """State can be donated from init on, together with the parameters.

    Put no array of params or of the factory's closure into the state without jnp.copy,
    and none twice: donation deletes it.
    """
    method = subject.build(subject.values(0))
    for _ in range(2):  # the second start finds what the first has given away
        start, _ = subject.data(0)
        carry = subject.begin(method, jax.tree.map(jnp.copy, as_arrays(start)))
        _require_own_memory(carry)
        got = subject.compiled(0, carry)
        require_close("result", got, subject.lanes[0], subject.tolerance)


def _require_own_memory(carry: Any) -> None:
    """No leaf is deleted, and no two are one array."""
    paths = [
        (jax.tree_util.keystr(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(carry)
        if leaf.size
    ]
    for path, leaf in paths:
        if leaf.is_deleted():
            raise AssertionError(
                f"{path} of a second init went away with the first state"
            )
    # All at once, so that no address is free to be used again.
    data = [jax.random.key_data(x) if is_key(x) else x for _, x in paths]
    seen: dict[int, str] = {}
    for (path, _), array in zip(paths, data, strict=True):
        other = seen.setdefault(array.unsafe_buffer_pointer(), path)
        if other != path:
            raise AssertionError(f"{other} and {path} are one array")


def checkpoint(subject: Subject) -> None:
    """A saved and restored state goes on to the same numbers.

    Saved by jaxopt_suite.core.checkpoint where Orbax is installed, else by NumPy.
    Keep everything that the next step needs in the state.
    """
    outputs, carries = subject.eager
    if importlib.util.find_spec("orbax") is None:
        restored = jax.tree.map(_through_numpy, carries[-2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            core_checkpoint.save(folder, NUM_STEPS - 1, carries[-2])
            found = core_checkpoint.restore(folder, carries[-2])
        assert found is not None
        restored = found[1]
    now = at(subject.data(0)[1], NUM_STEPS - 1)
    got = subject.step(subject.build(subject.values(0)), restored, now)
    require_close("result after the restart", got, (outputs[-1], carries[-1]), 0)


def _through_numpy(leaf: jax.Array) -> jax.Array:
    if not is_key(leaf):
        return jnp.asarray(np.asarray(leaf))
    data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))


def explicit_keys(subject: Subject) -> str | None:
    """The same key gives the same numbers, another key gives others.

    Use the key, and only that key, for everything random.
    """
    if subject.key is None:
        return "the factory takes no key"
    data = subject.data(0)
    values = subject.values(0)
    same, _ = subject.walk(subject.build(values), data)
    require_close("outputs with the same key", same, subject.eager[0], 0)
    other = subject.build(values | {subject.key: jax.random.key(1)})
    require_difference(subject.walk(other, data)[0], same, "another key")
    return None


FIRST_RULES: tuple[Rule, ...] = (documented, bad_arguments)

COMMON_RULES: tuple[Rule, ...] = (
    traceable,
    state_is_arrays,
    stable_state,
    pure_update,
    one_trace,
    jit_equals_eager,
    vmap_equals_loop,
    shard_map_equals_loop,
    pmap_equals_loop,
    donation,
    checkpoint,
    explicit_keys,
)
