"""The battery for :class:`jaxopt_suite.core.Transformation`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from jaxopt_suite.core.types import Transformation
from jaxopt_suite.testing._common import (
    Rule,
    Subject,
    as_arrays,
    cast,
    is_float,
    make_pairs,
    require_same_type,
    run_rules,
    shows_nan,
)
from jaxopt_suite.testing._rules import COMMON_RULES, FIRST_RULES


@dataclass(frozen=True, kw_only=True)
class _Iteration(Subject):
    """A transformation: the carry is its state, a step's inputs come from a key."""

    init: Callable[[PRNGKeyArray], tuple[Any, ...]]
    inputs: Callable[[PRNGKeyArray], PyTree]
    extra_args: Callable[[PRNGKeyArray], Mapping[str, Any]] | None
    dtype: Any = None

    def begin(self, method, start):
        return method.init(*self._cast(self.init(start)))

    def step(self, method, carry, inputs):
        extra = self.extra_args(inputs) if self.extra_args else {}
        return method.update(
            self._cast(self.inputs(inputs)), carry, **self._cast(extra)
        )

    def _cast(self, tree):
        return tree if self.dtype is None else cast(tree, self.dtype)


def check_transformation(
    factory: Callable[..., Transformation],
    hyperparameters: Mapping[str, Any] | None = None,
    *,
    init: Callable[[PRNGKeyArray], tuple[Any, ...]],
    inputs: Callable[[PRNGKeyArray], PyTree],
    extra_args: Callable[[PRNGKeyArray], Mapping[str, Any]] | None = None,
    static: Mapping[str, Any] | None = None,
    key: str | None = None,
    bad: Sequence[tuple[Mapping[str, Any], str]] = (),
    skip: Mapping[str, str] | None = None,
    tolerance: float = 1e-5,
) -> dict[str, str]:
    """Runs the contract of transformations on one factory.

    Args:
        factory: ``factory(**static, **hyperparameters)`` returns a ``Transformation``.
        hyperparameters: the numeric ones, which may be traced: a value, or a pair of
            valid values to sweep between. A single value v is swept down to 0.8 v.
        init: ``key -> tuple`` of the arguments of ``init``.
        inputs: ``key -> inputs`` of one ``update``.
        extra_args: ``key -> dict`` of the keyword arguments of ``update``.
        static: all other arguments of the factory.
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
        >>> from typing import NamedTuple
        >>> from jaxopt_suite.core import Transformation
        >>> from jaxopt_suite.testing import check_transformation
        >>> class Average(NamedTuple):
        ...     value: jax.Array
        >>> def moving_average(rate):
        ...     '''>>> moving_average(0.1)  # keeps value + rate (x - value)'''
        ...     def update(x, state):
        ...         value = state.value + rate * (x - state.value)
        ...         return value, Average(value.astype(state.value.dtype))
        ...     return Transformation(lambda x: Average(jnp.zeros_like(x)), update)
        >>> draw = lambda key: jax.random.normal(key, (3,))
        >>> report = check_transformation(
        ...     moving_average, {"rate": 0.1}, init=lambda k: (draw(k),), inputs=draw
        ... )
        >>> report["vmap_equals_loop"]
        'passed'
    """
    subject = _Iteration(
        factory,
        make_pairs(hyperparameters),
        dict(static or {}),
        key,
        bad,
        tolerance,
        init=init,
        inputs=inputs,
        extra_args=extra_args,
    )
    return run_rules(subject, _RULES, skip)


def returns_transformation(subject: _Iteration) -> None:
    """The factory returns a jaxopt_suite.core.Transformation(init, update)."""
    method = subject.build(subject.values(0))
    if not isinstance(method, Transformation):
        kind = type(method).__name__
        raise AssertionError(f"it must return a Transformation, got {kind}")


def keeps_dtype(subject: _Iteration) -> None:
    """With bfloat16, float32 or float64 inputs the state keeps its dtypes.

    Nothing becomes float64 unless the inputs are.
    """
    start, keys = subject.data(0)
    given = subject.init(start), subject.inputs(keys[0])
    # What has keys alone for inputs draws in the default dtype, float64 under x64.
    has_floats = any(is_float(leaf) for leaf in jax.tree.leaves(given))
    for dtype in (jnp.bfloat16, np.float32, np.float64):
        with jax.enable_x64(True):
            case = dataclasses.replace(subject, dtype=dtype)
            outputs, carries = jax.eval_shape(case.probe, case.data(0))
        name = f"with {np.dtype(dtype).name} inputs: "
        require_same_type(f"{name}state", carries[-1], carries[0])
        if dtype == np.float64 or not has_floats:
            continue
        for path, leaf in jax.tree_util.tree_leaves_with_path((outputs[0], carries[0])):
            if leaf.dtype == np.float64:
                where = jax.tree_util.keystr(path)
                raise AssertionError(f"{name}(outputs, state){where} is float64")


def nan_is_visible(subject: _Iteration) -> str | None:
    """A NaN in the inputs is never hidden.

    It passes into the outputs or the state, or an integer or boolean counts it.
    """
    start, keys = subject.data(0)
    method = subject.build(subject.values(0))
    state = subject.begin(method, start)
    inputs = as_arrays(subject.inputs(keys[0]))
    leaves, treedef = jax.tree.flatten(inputs)
    spots = [i for i, leaf in enumerate(leaves) if is_float(leaf) and leaf.size]
    if not spots:
        return "the inputs have no floating leaf"
    i = spots[0]
    leaves[i] = leaves[i].at[(0,) * leaves[i].ndim].set(jnp.nan)
    extra = subject.extra_args(keys[0]) if subject.extra_args else {}
    got = method.update(treedef.unflatten(leaves), state, **extra)
    clean = subject.eager[0][0], subject.eager[1][1]
    if not shows_nan(got, clean):
        raise AssertionError("a NaN input left no trace in the outputs or the state")
    return None


_RULES: tuple[Rule, ...] = (
    *FIRST_RULES,
    returns_transformation,
    *COMMON_RULES,
    keeps_dtype,
    nan_is_visible,
)
