"""Argument checks that say which argument, which value and what is allowed.

A numeric hyperparameter may be a traced array or a schedule. Its check runs where the
value is concrete and steps aside otherwise, so that a sweep over it stays one compile.
"""

import numbers
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def is_concrete(value: Any) -> bool:
    """Whether ``value`` is a number or array whose entries can be looked at now."""
    if isinstance(value, jax.core.Tracer) or callable(value):
        return False
    return isinstance(value, (numbers.Number, np.ndarray, np.generic, jax.Array))


def check_interval(
    name: str,
    value: Any,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    closed: str = "[]",
) -> None:
    """Requires every entry of a concrete ``value`` to lie between ``low`` and ``high``.

    Args:
        name: the argument's name, for the message.
        value: number, array, or list of numbers. Tracers, schedules and other callables
            pass unchecked, and so does None, which stands for a default.
        low: lower end.
        high: upper end.
        closed: which ends belong to the interval: ``"[]"``, ``"(]"``, ``"[)"``,
            ``"()"``.

    Raises:
        ValueError: an entry is outside, or NaN; or ``value`` is no real number.

    Example:
        >>> check_interval("beta", 0.5, 0.0, 1.0, closed="(]")
        >>> check_interval("beta", 2.0, 0.0, 1.0, closed="(]")
        Traceback (most recent call last):
        ...
        ValueError: beta must be in (0, 1], got 2.0
    """
    if isinstance(value, (list, tuple)) and all(map(is_concrete, value)):
        value = np.asarray(value)
    if not is_concrete(value) and not isinstance(value, (str, bytes)):
        return
    entries = np.asarray(value)
    if entries.dtype.kind not in "biufV":  # V: the small floats of ml_dtypes
        raise ValueError(f"{name} must be a real number, got {value!r}")
    above = entries >= low if closed[0] == "[" else entries > low
    below = entries <= high if closed[1] == "]" else entries < high
    if np.all(above & below):
        return
    if np.isinf(high):
        allowed = f"{'>=' if closed[0] == '[' else '>'} {low:g}"
        if closed[1] == ")" and np.any(np.isposinf(entries)):
            allowed = f"finite and {allowed}"
    else:
        allowed = f"in {closed[0]}{low:g}, {high:g}{closed[1]}"
    raise ValueError(f"{name} must be {allowed}, got {value}")


def check_integer(name: str, value: Any, low: int = 1, *, odd: bool = False) -> None:
    """Requires a static (Python or NumPy) integer ``>= low``, odd if asked.

    Raises:
        ValueError: not an integer, traced, too small, or even where odd is required.

    Example:
        >>> check_integer("num_groups", 4, odd=True)
        Traceback (most recent call last):
        ...
        ValueError: num_groups must be an odd integer >= 1, got 4
    """
    static = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if static and value >= low and not (odd and value % 2 == 0):
        return
    kind = "an odd integer" if odd else "an integer"
    hint = ", which is traced: it fixes a shape, so it must be static"
    traced = hint if isinstance(value, jax.core.Tracer) else ""
    raise ValueError(f"{name} must be {kind} >= {low}, got {value}{traced}")


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Requires ``value`` to be one of ``allowed``.

    Raises:
        ValueError: it is not; the message lists what is allowed.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def is_key_array(leaf: Any) -> bool:
    """Whether ``leaf`` is an array of typed PRNG keys, concrete or abstract."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def check_key(name: str, key: Any) -> None:
    """Requires a typed PRNG key, traced or not.

    Raises:
        ValueError: it is a raw key, None or anything else.

    Example:
        >>> check_key("key", 0)
        Traceback (most recent call last):
        ...
        ValueError: key must be a typed key, as jax.random.key(0) makes it, got 0
    """
    if not is_key_array(key):
        raise ValueError(
            f"{name} must be a typed key, as jax.random.key(0) makes it, got {key!r}"
        )


def check_floating(name: str, tree: PyTree) -> None:
    """Requires every leaf of ``tree`` to have a real floating dtype.

    Raises:
        ValueError: a leaf is integer, boolean or complex; the message has its path.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} must have a floating dtype, got {dtype}")


def leading_size(name: str, tree: PyTree) -> int:
    """The common size of the leading axis of all leaves; 0 for an empty tree.

    Raises:
        ValueError: a leaf is a scalar, or two leaves disagree; both paths are named.
    """
    first: tuple[str, int] | None = None
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        where, shape = f"{name}{jax.tree_util.keystr(path)}", jnp.shape(leaf)
        if not shape:
            raise ValueError(f"{where} must have a leading sample axis, got a scalar")
        if first is not None and shape[0] != first[1]:
            raise ValueError(
                f"{name} must have one leading size, got {first[1]} at {first[0]} "
                f"and {shape[0]} at {where}"
            )
        first = first or (where, shape[0])
    return first[1] if first else 0
