"""Sums over millions of rounds in float32, to the error of one rounding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from jaxopt_suite.core.trees import statistics_dtype


class RunningSum(NamedTuple):
    """A sum in twice the precision: ``total + rest``, with ``total`` its rounding."""

    total: Float[Array, "..."]
    rest: Float[Array, "..."]


def zero_sum(like: jax.ShapeDtypeStruct | Array) -> RunningSum:
    """The empty sum of values like ``like``, in float32 at least."""
    dtype = statistics_dtype(like.dtype)
    # Two arrays, not one twice: a caller may donate them.
    return RunningSum(jnp.zeros(like.shape, dtype), jnp.zeros(like.shape, dtype))


def add(state: RunningSum, x: Num[Array, "..."]) -> RunningSum:
    """Adds ``x``; ``total`` stays the rounded value, and ``rest`` what it rounds off.

    The error of a sum of n terms is of order ``n eps^2``, not ``n eps``.

    Example:
        >>> total = add(zero_sum(jnp.ones([])), 1e8)
        >>> for _ in range(3):
        ...     total = add(total, 1.0)
        >>> float(total.total), float(total.rest)
        (100000000.0, 3.0)

    Source: Dekker, "A floating-point technique for extending the available precision"
    (1971), with the two-sum of Knuth.
    """
    x = jnp.asarray(x, state.total.dtype)
    total = state.total + x
    seen = total - state.total
    rest = state.rest + ((state.total - (total - seen)) + (x - seen))
    # Without this step the rests would themselves need a compensated sum.
    rounded = total + rest
    return RunningSum(rounded, rest - (rounded - total))
