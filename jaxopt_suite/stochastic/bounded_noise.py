"""Noise with bounded support: the controls for conclusions that hold for any law."""

import math
from typing import Any

import jax

from jaxopt_suite.core.checks import check_interval
from jaxopt_suite.stochastic.noise import Noise, Scalar


def rademacher(scale: Scalar = 1.0) -> Noise:
    r"""A fair sign times :math:`s`, so that the variance is :math:`s^2`.

    :math:`E|X|^q = s^q`.

    Raises:
        ValueError: a concrete ``scale`` is negative.

    Example:
        >>> noise = rademacher(2.0)
        >>> jnp.abs(noise(jax.random.key(0), (3,)))
        Array([2., 2., 2.], dtype=float32)
    """
    check_interval("scale", scale, 0.0)

    def moment(q) -> Any:
        return scale**q if q >= 0 or scale > 0 else math.inf

    return Noise(lambda k, s, d: scale * jax.random.rademacher(k, s, d), moment)


def uniform(scale: Scalar = 1.0) -> Noise:
    r"""Uniform on :math:`[-\sqrt 3 s, \sqrt 3 s)`, so that the variance is :math:`s^2`.

    :math:`E|X|^q = (\sqrt 3 s)^q / (q + 1)` for :math:`q > -1`.

    Raises:
        ValueError: a concrete ``scale`` is negative.

    Example:
        >>> draws = uniform(2.0)(jax.random.key(0), (1000,))
        >>> bool(jnp.max(jnp.abs(draws)) <= 2 * jnp.sqrt(3.0))
        True
    """
    check_interval("scale", scale, 0.0)
    edge = math.sqrt(3.0)

    def sample(key, shape, dtype):
        return scale * jax.random.uniform(key, shape, dtype, -edge, edge)

    def moment(q) -> Any:
        if q <= -1 or (q < 0 and scale == 0):
            return math.inf
        return (edge * scale) ** q / (q + 1)

    return Noise(sample, moment)
