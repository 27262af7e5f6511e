"""Rules for gradient transformations inside the wrappers of optax."""

import collections.abc
import inspect
import typing
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.experimental import aggregating

from jaxopt_suite.testing._common import Rule, as_arrays, require_close


def _require_same_updates(subject: Any, method: Any, steps: int = 2) -> None:
    """``method`` gives the updates of the plain one on the plain parameters."""
    treedef = jax.tree.structure(subject.params)
    got = subject.on(method, treedef.unflatten, steps)
    require_close("updates", got, subject.eager[0][:steps], subject.tolerance)


def accepts_extra_args(subject: Any) -> str | None:
    """A GradientTransformationExtraArgs ignores extra arguments meant for others.

    Its signature is update(updates, state, params=None, **extra_args).
    """
    method = subject.build(subject.values(0))
    if not isinstance(method, optax.GradientTransformationExtraArgs):
        return "it is a plain GradientTransformation"

    def update(updates, state, params=None, **extra_args):
        extra_args["meant_for_another_transformation"] = jnp.zeros([])
        return method.update(updates, state, params, **extra_args)

    wrapped = optax.GradientTransformationExtraArgs(method.init, update)
    _require_same_updates(subject, wrapped, 1)
    return None


def chain(subject: Any) -> None:
    """It works inside optax.chain, between other transformations."""
    method = subject.build(subject.values(0))
    _require_same_updates(
        subject, optax.chain(optax.identity(), method, optax.identity())
    )


def inject_hyperparams(subject: Any) -> None:
    """The factory works under optax.inject_hyperparams.

    All but the numeric hyperparameters are named static. Have no **kwargs in the
    signature (they arrive as one dict), and take arrays for the numeric ones.
    """
    parameters = inspect.signature(subject.factory).parameters
    fixed = [name for name in parameters if name not in subject.hyperparameters]
    injected = optax.inject_hyperparams(subject.factory, static_args=fixed)
    method = injected(**subject.static, **subject.values(0))
    state: Any = method.init(as_arrays(subject.params))
    names = set(state.hyperparams)
    if names != set(subject.hyperparameters):
        raise AssertionError(
            f"injected must be {sorted(subject.hyperparameters)}, got {sorted(names)}"
        )
    _require_same_updates(subject, method)


def schedules(subject: Any) -> str | None:
    """What is annotated as a schedule takes one.

    A constant schedule must give the updates of the constant.
    """
    parameters = inspect.signature(subject.factory).parameters
    values = subject.values(0)
    names = [x for x in values if _takes_schedule(parameters[x].annotation)]
    if not names:
        return "no hyperparameter is annotated as a schedule"
    constant = {name: optax.constant_schedule(values[name]) for name in names}
    _require_same_updates(subject, subject.build(values | constant))
    return None


def _takes_schedule(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return "Schedule" in annotation
    options = (annotation, *typing.get_args(annotation))
    return any(typing.get_origin(x) is collections.abc.Callable for x in options)


def masked(subject: Any) -> None:
    """Under optax.masked it sees the mask's parameters and leaves the others alone.

    Tolerate missing leaves; keep nothing per leaf outside the state.
    """
    method = subject.build(subject.values(0))
    mask, kept, expected = _subset(subject, method)
    wrapped = optax.masked(method, mask, mask_compatible_extra_args=True)
    got = _first_updates(subject, wrapped)
    require_close("updates", [got[i] for i in kept], expected, subject.tolerance)
    _, (_, grads) = subject.data(0)
    for i, leaf in enumerate(jax.tree.leaves(grads)):
        if i not in kept:
            require_close("masked update", got[i], leaf[0], 0)


def partition(subject: Any) -> None:
    """In optax.partition (multi_transform) it works on its share of the parameters.

    Tolerate missing leaves; keep nothing per leaf outside the state.
    """
    method = subject.build(subject.values(0))
    mask, kept, expected = _subset(subject, method)
    labels = jax.tree.map(lambda m: "in" if m else "out", mask)
    transforms: dict[Any, Any] = {"in": method, "out": optax.set_to_zero()}
    wrapped = optax.partition(transforms, labels, mask_compatible_extra_args=True)
    got = _first_updates(subject, wrapped)
    require_close("updates", [got[i] for i in kept], expected, subject.tolerance)
    for i, leaf in enumerate(got):
        if i not in kept:
            require_close("update of the others", leaf, jnp.zeros_like(leaf), 0)


def _subset(subject: Any, method: Any) -> tuple[Any, list[int], Any]:
    """A mask of every second leaf, their indices, and their updates on their own."""
    leaves, treedef = jax.tree.flatten(subject.params)
    kept = list(range(0, len(leaves), 2))
    mask = treedef.unflatten([i in kept for i in range(len(leaves))])
    return mask, kept, subject.on(method, lambda x: [x[i] for i in kept])[0]


def _first_updates(subject: Any, method: Any) -> list[Any]:
    treedef = jax.tree.structure(subject.params)
    return jax.tree.leaves(subject.on(method, treedef.unflatten)[0])


def process(subject: Any) -> str | None:
    """An Aggregator works inside optax.experimental.aggregating.process."""
    method = subject.build(subject.values(0))
    if not isinstance(method, aggregating.Aggregator):
        return "it is no Aggregator"
    if subject.extra_args:
        return "process passes no extra arguments to optax.identity"
    whole = aggregating.process(optax.identity(), method, optax.scale(1.0))
    _require_same_updates(subject, whole)
    return None


WRAPPER_RULES: tuple[Rule, ...] = (
    accepts_extra_args,
    chain,
    inject_hyperparams,
    schedules,
    masked,
    partition,
    process,
)
