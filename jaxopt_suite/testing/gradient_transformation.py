"""The battery for optax gradient transformations and aggregators."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree
from optax.experimental import aggregating

from jaxopt_suite.testing._common import (
    NUM_STEPS,
    Rule,
    Subject,
    as_arrays,
    at,
    cast,
    has_nan,
    is_float,
    make_pairs,
    require_close,
    require_same_type,
    run_rules,
    shows_nan,
    to_numpy,
)
from jaxopt_suite.testing._rules import (
    bad_arguments,
    checkpoint,
    documented,
    donation,
    explicit_keys,
    jit_equals_eager,
    one_trace,
    pmap_equals_loop,
    pure_update,
    shard_map_equals_loop,
    stable_state,
    state_is_arrays,
    traceable,
    vmap_equals_loop,
)
from jaxopt_suite.testing._wrappers import WRAPPER_RULES


class _Carry(NamedTuple):
    params: PyTree
    state: PyTree


@dataclass(frozen=True, kw_only=True)
class _Gradient(Subject):
    """A gradient transformation on parameters that follow its updates.

    Attributes:
        params: where the walk starts.
        num_samples: size of the leading sample axis of the updates, None for none.
        extra_args: ``(key, params, updates) -> dict`` of what ``update`` takes besides.
    """

    params: PyTree
    num_samples: int | None
    extra_args: Callable[..., Mapping[str, Any]] | None

    def begin(self, method, start):
        return _Carry(start, method.init(start))

    def step(self, method, carry, inputs):
        (params, state), (key, grads) = carry, inputs
        extra = self.extra_args(key, params, grads) if self.extra_args else {}
        updates, state = method.update(grads, state, params, **extra)
        return updates, _Carry(jax.tree.map(_apply, params, updates), state)

    def state(self, carry):
        return carry.state

    def probe(self, data):
        params, (keys, grads) = data
        method, grads = self.build(self.values(0)), at(grads, 0)
        extra = self.extra_args(keys[0], params, grads) if self.extra_args else {}
        state = method.init(params)
        return *method.update(grads, state, params, **extra), state

    def data(self, lane):
        rng = np.random.default_rng(lane)
        batch = (
            (NUM_STEPS,) if self.num_samples is None else (NUM_STEPS, self.num_samples)
        )
        params = jax.tree.map(lambda p: p * np.float32(1 + lane / 8), self.params)
        grads = jax.tree.map(
            lambda p: rng.standard_normal(batch + p.shape, np.float32), self.params
        )
        return params, (jax.random.split(jax.random.key(lane), NUM_STEPS), grads)

    def on(
        self, method, wrap: Callable[[list[Any]], PyTree], steps: int = 1
    ) -> list[PyTree]:
        """Updates of eager steps on the leaves of lane 0, put into ``wrap``."""
        params, (keys, grads) = self.data(0)
        carry = self.begin(method, wrap(jax.tree.leaves(as_arrays(params))))
        seen = []
        for t in range(steps):
            now = wrap(jax.tree.leaves(at(grads, t)))
            updates, carry = self.step(method, carry, (keys[t], now))
            seen.append(updates)
        return seen


def check_gradient_transformation(
    factory: Callable[..., optax.GradientTransformation],
    hyperparameters: Mapping[str, Any] | None = None,
    *,
    static: Mapping[str, Any] | None = None,
    params: PyTree | None = None,
    num_samples: int | None = None,
    extra_args: Callable[[Any, PyTree, PyTree], Mapping[str, Any]] | None = None,
    key: str | None = None,
    bad: Sequence[tuple[Mapping[str, Any], str]] = (),
    skip: Mapping[str, str] | None = None,
    tolerance: float = 1e-5,
) -> dict[str, str]:
    """Runs the contract of gradient transformations on one factory.

    ``factory(**static, **hyperparameters)`` is built with concrete and with traced
    hyperparameters, run eagerly, jitted, vmapped, over devices, in several dtypes and
    containers, and inside the wrappers of optax.

    Args:
        factory: returns a gradient transformation, or an ``Aggregator``.
        hyperparameters: the numeric ones, which may be traced: a value, or a pair of
            valid values to sweep between. A single value v is swept down to 0.8 v.
        static: all other arguments.
        params: parameters to run on; default a dict of a matrix and a scalar.
        num_samples: size of the leading sample axis that the updates must carry (the
            result then has the parameters' shape), None for ordinary updates.
        extra_args: ``(key, params, updates) -> dict`` of extra arguments of ``update``.
        key: name of the factory's argument that takes a PRNG key, if it has one.
        bad: pairs ``(overrides, pattern)`` that must raise a matching ValueError.
        skip: rule name to the reason why this factory is exempt from it.
        tolerance: largest difference, relative to one plus the largest entry.

    Returns:
        Rule name to ``"passed"`` or the reason why it did not run.

    Raises:
        AssertionError: a rule is broken; the message has its name, the factory, what
            was seen and what to do.
        ValueError: ``skip`` has an unknown rule or no reason.

    Example:
        >>> from jaxopt_suite.testing import check_gradient_transformation
        >>> report = check_gradient_transformation(optax.sgd, {"learning_rate": 0.1})
        >>> report["vmap_equals_loop"], report["explicit_keys"]
        ('passed', 'the factory takes no key')
    """
    if params is None:
        rng = np.random.default_rng(0)
        shapes = {"b": (), "w": (2, 3)}
        params = {k: rng.standard_normal(s) for k, s in shapes.items()}
    subject = _Gradient(
        factory,
        make_pairs(hyperparameters),
        dict(static or {}),
        key,
        bad,
        tolerance,
        params=jax.tree.map(lambda p: np.asarray(p, np.float32), params),
        num_samples=num_samples,
        extra_args=extra_args,
    )
    return run_rules(subject, _RULES, skip)


def _apply(param: Any, update: Any) -> Any:
    # Updates that still have a sample axis (masked ones, say) leave their params alone.
    return param + update.astype(param.dtype) if update.shape == param.shape else param


def returns_transformation(subject: _Gradient) -> None:
    """The factory returns an optax GradientTransformation.

    One that reduces a sample axis is an optax.experimental.aggregating.Aggregator, and
    nothing else is.
    """
    method = subject.build(subject.values(0))
    if not isinstance(method, optax.GradientTransformation):
        kind = type(method).__name__
        raise AssertionError(f"it must return a GradientTransformation, got {kind}")
    if isinstance(method, aggregating.Aggregator) and subject.num_samples is None:
        raise AssertionError("it returns an Aggregator: give num_samples")


def update_shape(subject: _Gradient) -> None:
    """Updates have the structure and the shapes of the parameters.

    An Aggregator removes the leading sample axis; whatever else meets it keeps it.
    """
    params, (_, grads) = subject.data(0)
    updates, *_ = jax.eval_shape(subject.probe, subject.data(0))
    method = subject.build(subject.values(0))
    reduces = isinstance(method, aggregating.Aggregator)
    wanted = params if reduces else at(grads, 0)
    shapes = lambda tree: jax.tree.map(lambda x: np.empty(x.shape, bool), tree)  # noqa: E731
    require_same_type("updates", shapes(updates), shapes(wanted))


def keeps_dtype(subject: _Gradient) -> None:
    """Updates keep the parameters' dtype, and the state keeps its own.

    Compute in float32 where it helps, cast to the update's dtype at the end, and take
    no float64 from NumPy or Python into a float32 state.
    """
    for dtype in (jnp.bfloat16, np.float32, np.float64):
        with jax.enable_x64(True):
            data = cast(subject.data(0), dtype)
            updates, new_state, state = jax.eval_shape(subject.probe, data)
        name = f"with {np.dtype(dtype).name} params: "
        wanted = {leaf.dtype for leaf in jax.tree.leaves(data[0])}
        for path, leaf in jax.tree_util.tree_leaves_with_path(updates):
            if leaf.dtype not in wanted:
                where = f"{name}updates{jax.tree_util.keystr(path)}"
                raise AssertionError(f"{where} must not be {leaf.dtype}")
        require_same_type(f"{name}state", new_state, state)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            if dtype != np.float64 and leaf.dtype == np.float64:
                where = f"{name}state{jax.tree_util.keystr(path)}"
                raise AssertionError(f"{where} must not be float64")


def float32_statistics(subject: _Gradient) -> None:
    """For bfloat16 parameters the statistics of the state are float32.

    Only copies of the parameters may be bfloat16.
    """
    params = as_arrays(cast(subject.data(0)[0], jnp.bfloat16))
    state = subject.build(subject.values(0)).init(params)
    copies = [to_numpy(p) for p in jax.tree.leaves(params)]
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if is_float(leaf) and leaf.dtype.itemsize < 4:
            values = to_numpy(leaf)
            if not any(np.array_equal(values, p) for p in copies):
                where = f"state{jax.tree_util.keystr(path)}"
                raise AssertionError(f"{where} must be float32, got {leaf.dtype}")


def any_pytree(subject: _Gradient) -> None:
    """Parameters may be any pytree: bare, nested with None leaves, or empty.

    Use jax.tree.map, never the methods of a dict.
    """
    method = subject.build(subject.values(0))
    expected = [jax.tree.leaves(u) for u in subject.eager[0][:2]]

    def nested(leaves):
        return [None, {"a": leaves[0], "b": (None, {"c": leaves[1:]})}]

    for got, wanted in zip(subject.on(method, nested, 2), expected, strict=True):
        require_same_type("nested updates", got, nested(wanted))
        require_close("nested updates", got, nested(wanted), subject.tolerance)
    smallest = int(np.argmin([leaf.size for leaf in expected[0]]))
    bare = subject.on(method, lambda leaves: leaves[smallest])[0]
    require_same_type("updates of one bare array", bare, expected[0][smallest])
    empty = subject.on(method, lambda leaves: {})[0]
    if jax.tree.leaves(empty):
        raise AssertionError(f"updates of an empty tree must be empty, got {empty}")


class _Module(eqx.Module):
    arrays: list[Any]
    activation: Callable[..., Any] = eqx.field(static=True, default=jax.nn.relu)


def equinox_params(subject: _Gradient) -> None:
    """An Equinox module as parameters gives the updates of the plain pytree.

    Treat params as a pytree, whatever its nodes are.
    """
    method = subject.build(subject.values(0))
    got = subject.on(method, _Module)[0]
    require_close("updates", got, subject.eager[0][0], subject.tolerance)


def flax_params(subject: _Gradient) -> str | None:
    """Parameters of Flax (linen and nnx) give the updates of the plain pytree.

    Treat params as a pytree, whatever its nodes are.
    """
    if importlib.util.find_spec("flax") is None:
        return "Flax is not installed"
    from flax.core import FrozenDict

    method = subject.build(subject.values(0))

    def require_same(wrap):
        got = subject.on(method, wrap)[0]
        require_close("updates", got, subject.eager[0][0], subject.tolerance)

    require_same(
        lambda xs: FrozenDict({f"layer{i:03}": {"w": x} for i, x in enumerate(xs)})
    )
    try:
        from flax import nnx
    except (ImportError, AttributeError):
        # Flax 0.12.8 reaches for a name that JAX 0.11 has moved.
        return "linen passed; flax.nnx does not import with this JAX"
    require_same(
        lambda xs: nnx.State({f"w{i:03}": nnx.Param(x) for i, x in enumerate(xs)})
    )
    return None


def zero_gradients(subject: _Gradient) -> None:
    """Zero gradients give no NaN.

    Guard every division by a norm or a variance.
    """
    method = subject.build(subject.values(0))
    params, (keys, grads) = subject.data(0)
    zeros = jax.tree.map(np.zeros_like, grads)
    outputs, carries = subject.walk(method, (params, (keys, zeros)))
    if has_nan(outputs):
        raise AssertionError("updates are NaN")
    if has_nan(carries[-1].state):
        raise AssertionError("the state holds NaN")


def nan_is_visible(subject: _Gradient) -> None:
    """A NaN in a gradient is never hidden.

    It passes into the updates or the state, or an integer or boolean counts it.
    """
    method = subject.build(subject.values(0))
    params, (keys, grads) = subject.data(0)
    leaves, treedef = jax.tree.flatten(at(grads, 0))
    leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].set(jnp.nan)
    carry = subject.begin(method, as_arrays(params))
    updates, (_, state) = subject.step(
        method, carry, (keys[0], treedef.unflatten(leaves))
    )
    clean = subject.eager[0][0], subject.eager[1][1].state
    if not shows_nan((updates, state), clean):
        raise AssertionError("a NaN gradient left no trace in the updates or the state")


_RULES: tuple[Rule, ...] = (
    documented,
    bad_arguments,
    returns_transformation,
    traceable,
    update_shape,
    state_is_arrays,
    stable_state,
    keeps_dtype,
    float32_statistics,
    pure_update,
    one_trace,
    jit_equals_eager,
    vmap_equals_loop,
    shard_map_equals_loop,
    pmap_equals_loop,
    donation,
    checkpoint,
    explicit_keys,
    zero_gradients,
    nan_is_visible,
    any_pytree,
    equinox_params,
    flax_params,
    *WRAPPER_RULES,
)
