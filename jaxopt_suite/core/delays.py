"""How late feedback comes: models of the delay of every round.

The feedback of round ``t`` is there at the end of round ``t + d_t``; ``d_t = 0`` is at
once. A model draws all ``d_t`` of a run before its first round, so no delay can depend
on a decision (an oblivious adversary).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from jaxopt_suite.core import checks


class DelayModel(NamedTuple):
    """A law of the delays of a run; call it as ``model(key, horizon)``.

    Attributes:
        sample: ``sample(key, horizon) -> (horizon,)`` int32 delays in ``[0, d_max]``.
        d_max: the largest delay that ``sample`` can give.
        max_arrivals: the most feedbacks that can arrive in one round.
    """

    sample: Callable[[PRNGKeyArray, int], Int[Array, " horizon"]]
    d_max: int
    max_arrivals: int

    def __call__(self, key: PRNGKeyArray, horizon: int) -> Int[Array, " horizon"]:
        """Draws the delays of a run of ``horizon`` rounds."""
        return self.sample(key, horizon)


def constant_delay(d: int) -> DelayModel:
    """Every feedback comes ``d`` rounds late.

    Raises:
        ValueError: ``d`` is not a static integer ``>= 0``.

    Example:
        >>> constant_delay(2)(jax.random.key(0), 4)
        Array([2, 2, 2, 2], dtype=int32)
    """
    checks.check_integer("d", d, 0)
    return DelayModel(lambda key, horizon: jnp.full(horizon, d, jnp.int32), d, 1)


def uniform_delay(d_max: int) -> DelayModel:
    """Independent delays, uniform on ``0..d_max``.

    Raises:
        ValueError: ``d_max`` is not a static integer ``>= 0``.

    Example:
        >>> delays = uniform_delay(3)(jax.random.key(0), 1000)
        >>> int(delays.min()), int(delays.max())
        (0, 3)
    """
    checks.check_integer("d_max", d_max, 0)

    def sample(key, horizon):
        return jax.random.randint(key, (horizon,), 0, d_max + 1, jnp.int32)

    return DelayModel(sample, d_max, d_max + 1)


def geometric_delay(p: float | Array, d_max: int) -> DelayModel:
    """The number of failures before a success of probability ``p``, at most ``d_max``.

    Args:
        p: success probability in (0, 1]; may be traced. The mean delay is
            ``(1 - p) / p`` up to the cut.
        d_max: cut of the tail: longer delays become ``d_max``.

    Raises:
        ValueError: a concrete ``p`` is outside (0, 1], ``d_max`` is not a static
            integer ``>= 0``.

    Example:
        >>> int(geometric_delay(0.1, 5)(jax.random.key(0), 1000).max())
        5
    """
    checks.check_interval("p", p, 0.0, 1.0, closed="(]")
    checks.check_integer("d_max", d_max, 0)

    def sample(key, horizon):
        # floor(E / rate) is geometric for a unit exponential E; p = 1 divides by inf.
        waits = jax.random.exponential(key, (horizon,)) / -jnp.log1p(-jnp.asarray(p))
        return jnp.minimum(jnp.floor(waits), d_max).astype(jnp.int32)

    return DelayModel(sample, d_max, d_max + 1)


def burst_delay(d_max: int) -> DelayModel:
    """Windows of ``d_max + 1`` rounds, each delayed as a whole or not at all.

    A fair coin per window decides: either every value of the window comes in the
    window's last round, or every value comes at once.

    Raises:
        ValueError: ``d_max`` is not a static integer ``>= 0``.

    Example:
        >>> delays = burst_delay(2)(jax.random.key(0), 12).reshape(4, 3)
        >>> bool(jnp.all((delays == 0) | (delays == jnp.array([2, 1, 0]))))
        True
    """
    checks.check_integer("d_max", d_max, 0)
    width = d_max + 1

    def sample(key, horizon):
        rounds = jnp.arange(horizon, dtype=jnp.int32)
        held = jax.random.bernoulli(key, shape=(-(-horizon // width),))
        return jnp.where(held[rounds // width], d_max - rounds % width, 0)

    return DelayModel(sample, d_max, width)


def adversarial_block_delay(d: int) -> DelayModel:
    """Blocks of ``d`` rounds that keep every value back until their last round.

    The delay of round ``t`` is ``d - 1 - (t mod d)``, so nothing is learned within a
    block: the delays behind lower bounds of order ``sqrt(d T)``.

    Raises:
        ValueError: ``d`` is not a static integer ``>= 1``.

    Example:
        >>> adversarial_block_delay(3)(jax.random.key(0), 7)
        Array([2, 1, 0, 2, 1, 0, 2], dtype=int32)
    """
    checks.check_integer("d", d)

    def sample(key, horizon):
        return d - 1 - jnp.arange(horizon, dtype=jnp.int32) % d

    return DelayModel(sample, d - 1, d)
