"""Sums over millions of rounds in float32, to the error of one rounding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from jaxopt_suite.core.trees import statistics_dtype


class RunningSum(NamedTuple):
    """A compensated sum: its value is ``total + rest``."""

    total: Float[Array, "..."]
    rest: Float[Array, "..."]


def zero_sum(like: jax.ShapeDtypeStruct | Array) -> RunningSum:
    """The empty sum of values like ``like``, in float32 at least."""
    zero = jnp.zeros(like.shape, statistics_dtype(like.dtype))
    return RunningSum(zero, zero)


def add(state: RunningSum, x: Num[Array, "..."]) -> RunningSum:
    """Adds ``x`` and keeps the exact rounding error of the addition in ``rest``.

    Example:
        >>> tenth = add(zero_sum(jnp.ones([])), 1e8)
        >>> for _ in range(3):
        ...     tenth = add(tenth, 1.0)
        >>> float(tenth.total), float(tenth.rest)
        (100000000.0, 3.0)

    Source: Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher
    Summen" (1974), with the two-sum of Knuth.
    """
    x = jnp.asarray(x, state.total.dtype)
    total = state.total + x
    seen = total - state.total
    error = (state.total - (total - seen)) + (x - seen)
    return RunningSum(total, state.rest + error)
