"""What a nonconvex landscape knows of itself, and how it becomes a Problem."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxopt_suite.core.types import Problem


class Landscape(NamedTuple):
    """A function to minimize whose global minimum is known.

    Attributes:
        value: ``value(x) -> f(x)`` for ``x`` of shape ``(d,)``.
        minimizer: the global minimizer, shape ``(d,)``.
        min_value: its value.
        domain: ``(low, high)`` of every coordinate: where one looks for the minimum.
        sample_init: ``sample_init(key) -> x``, where one starts.
        smoothness: a bound on the norm of the Hessian on the domain; None where there
            is none, or none is known.
        in_basin: ``in_basin(x) -> bool``, whether ``x`` is in a box around the
            minimizer inside its well; False where ``x`` is not finite.
        separable: the function h of one variable with ``f(x) = sum_i h(x_i)``, which
            acts on arrays of any shape entry by entry; None where f is no such sum.
    """

    value: Callable[[Float[Array, " d"]], Float[Array, ""]]
    minimizer: Float[Array, " d"]
    min_value: Any
    domain: tuple[float, float]
    sample_init: Callable[[PRNGKeyArray], Float[Array, " d"]]
    smoothness: Any
    in_basin: Callable[[Float[Array, " d"]], Bool[Array, ""]]
    separable: Callable[[Float[Array, "..."]], Float[Array, "..."]] | None


def landscape_problem(landscape: Landscape) -> Problem:
    """The Problem of a landscape with its exact gradient, for a driver of core.

    Noise belongs to the optimizer: chain it in front of the step.

    Args:
        landscape: any :class:`Landscape`.

    Returns:
        A Problem that starts at ``landscape.sample_init(key)``. Its metrics are
        ``value`` and ``in_basin``.

    Example:
        >>> from jaxopt_suite.problems import quadratic
        >>> problem = landscape_problem(quadratic(jnp.array([1.0, 3.0])))
        >>> problem.grad(jax.random.key(0), jnp.ones(2))
        Array([1., 3.], dtype=float32)
    """
    gradient = jax.grad(landscape.value)

    def metrics(params):
        return {
            "value": landscape.value(params),
            "in_basin": landscape.in_basin(params),
        }

    return Problem(landscape.sample_init, lambda key, x: gradient(x), metrics)


def as_floating(x: Array) -> Array:
    """Integer points as floats, so that a constant in their dtype is not cut off."""
    is_real = jnp.issubdtype(x.dtype, jnp.floating)
    return x if is_real else x.astype(jnp.result_type(float))


def start_around(center: Any, d: int) -> Callable[[PRNGKeyArray], Float[Array, " d"]]:
    """Starts at N(center, 0.5^2) in every coordinate."""
    return lambda key: center + 0.5 * jax.random.normal(key, (d,))


def start_in(
    domain: tuple[float, float], d: int
) -> Callable[[PRNGKeyArray], Float[Array, " d"]]:
    """Starts uniformly in the domain."""
    return lambda key: jax.random.uniform(key, (d,), minval=domain[0], maxval=domain[1])


def all_closer(
    center: Any, radius: Any
) -> Callable[[Float[Array, " d"]], Bool[Array, ""]]:
    """Whether every coordinate is closer to ``center`` than ``radius``."""
    return lambda x: jnp.all(jnp.abs(x - center) < radius)
