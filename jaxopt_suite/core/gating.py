"""A rare, costly branch that stays rare under vmap."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

Operand = TypeVar("Operand")


def gated_cond(
    pred: Bool[Array, ""],
    true_fn: Callable[[Operand], Operand],
    operand: Operand,
    *,
    axis_name: str | tuple[str, ...] | None = "lanes",
) -> Operand:
    """``true_fn(operand)`` where ``pred``, else ``operand``; under vmap too.

    A vmapped ``lax.cond`` with a batched predicate computes both branches for every
    lane. Here a real condition asks whether ANY lane of the named axis wants the
    branch, and only then is it computed, and kept by those lanes that want it. The
    numbers are those of ``lax.cond``; the price is paid in the rounds that need it.

    Args:
        pred: a scalar; whether this lane wants ``true_fn``.
        true_fn: maps the operand to one of the same structure, shapes and dtypes.
        operand: a pytree of arrays; returned as it is where ``pred`` is False.
        axis_name: the vmapped axis, or axes, over which to ask;
            :func:`jaxopt_suite.core.sweep` calls its own ``"lanes"``. Where no such
            axis is bound, and for None, this is ``lax.cond``.

    Example:
        >>> def halve_large(x):
        ...     return gated_cond(x > 1, lambda x: x / 2, x)
        >>> jax.vmap(halve_large, axis_name="lanes")(jnp.array([1.0, 4.0]))
        Array([1., 2.], dtype=float32)
    """
    wanted = jnp.asarray(pred, bool)
    anyone = _anyone(wanted, axis_name)
    if anyone is None:
        return jax.lax.cond(wanted, true_fn, lambda operand: operand, operand)

    def branch(operand):
        return jax.tree.map(
            lambda new, old: jnp.where(wanted, new, old), true_fn(operand), operand
        )

    return jax.lax.cond(anyone, branch, lambda operand: operand, operand)


def _anyone(
    wanted: Bool[Array, ""], axis_name: str | tuple[str, ...] | None
) -> Bool[Array, ""] | None:
    """Whether any lane wants it, unbatched; None where the axis is not bound."""
    if axis_name is None:
        return None
    try:
        return jax.lax.pmax(wanted.astype(jnp.int32), axis_name) > 0
    except NameError:  # how JAX says that the name is not bound here
        return None
