"""Losses behind the lower bounds of delayed bandit convex optimization.

Their signs are fair coins of the environment's key, and their delays keep every sign
back until it is of no more use. So no policy can do better than the stated regret.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxopt_suite.core import checks
from jaxopt_suite.core.delays import (
    DelayModel,
    adversarial_block_delay,
    constant_delay,
)
from jaxopt_suite.problems.bco import (
    LossSequence,
    RandomLosses,
    Scalar,
    equal_segments,
)
from jaxopt_suite.problems.bco_losses import first_axis


class LowerBound(NamedTuple):
    """A law of losses, its delays, and what it makes every policy pay.

    Attributes:
        losses: the law, for :func:`~jaxopt_suite.problems.bco_env`.
        delays: the delays that go with it.
        regret: the expected regret that no policy can stay below.
    """

    losses: RandomLosses
    delays: DelayModel
    regret: Scalar


def rademacher_blocks(
    horizon: int,
    n: int,
    d: int,
    num_segments: int = 1,
    *,
    lipschitz: Scalar = 1.0,
    radius: Scalar = 1.0,
) -> LowerBound:
    r"""Slopes of a random sign per block of d rounds, on a ball: linear losses.

    .. math:: f_t(x) = \epsilon_b G \langle e_1, x \rangle, \qquad
        \mathbb{E}\,\mathrm{regret} = m\, d\, G D\, \mathbb{E}|W_k|, \quad k = T / (m d)

    with a fair sign per block and :math:`W_k` the sum of k fair signs. All values of a
    block arrive in its last round, so a policy plays it without knowing its sign: this
    is the expected regret of EVERY policy, of order :math:`\sqrt{d m T}`.

    Args:
        horizon: number of rounds T.
        n: dimension.
        d: rounds per block; divides the segments.
        num_segments: number m of equal segments; divides the horizon.
        lipschitz: the slope G > 0; may be traced.
        radius: D > 0 of the ball about 0 that is played on; may be traced.

    Returns:
        The law (it draws the signs, an array (segments, blocks)), the delays, the
        expected regret.

    Raises:
        ValueError: ``d`` or ``num_segments`` does not divide, ``n`` is below 1,
            ``lipschitz`` or ``radius`` is not positive.

    Example:
        >>> rademacher_blocks(8, 2, d=2).regret  # two rounds times E|W_4| = 1.5
        3.0

    Source: the lower bound of order sqrt(dT) for delayed feedback of Weinberger and
    Ordentlich, "On delayed prediction of individual sequences" (2002).
    """
    checks.check_integer("n", n)
    checks.check_interval("lipschitz", lipschitz, 0.0, closed="(]")
    checks.check_interval("radius", radius, 0.0, closed="(]")
    length = _segment_length(horizon, num_segments, d)
    blocks = length // d

    def draw(key):
        return jax.random.rademacher(key, (num_segments, blocks), jnp.int8)

    def losses(signs):
        best = -jnp.sign(jnp.sum(signs, axis=1, dtype=jnp.int32))

        def slope(t):
            return lipschitz * signs.reshape(-1)[t // d].astype(float)

        def along_axis(t):
            return radius * best[t // length].astype(float)

        return LossSequence(
            value=lambda x, t: slope(t).astype(x.dtype) * x[0],
            minimizer=lambda t: first_axis(n, along_axis(t)),
            min_value=lambda t: slope(t) * along_axis(t),
            segment_starts=equal_segments(horizon, num_segments),
            bound=lipschitz * radius,
            lipschitz=lipschitz,
        )

    regret = num_segments * d * lipschitz * radius * _mean_distance(blocks)
    return LowerBound(RandomLosses(draw, losses), adversarial_block_delay(d), regret)


def strong_first_block(
    horizon: int,
    n: int,
    d: int,
    num_segments: int = 1,
    *,
    strong_convexity: Scalar = 1.0,
) -> LowerBound:
    r"""Quadratics whose centre is unknown for the first d rounds of every segment.

    .. math:: f_t(x) = \tfrac{\alpha}{2} \|x - \theta_j e_1\|^2, \qquad
        \mathbb{E}\,\mathrm{regret} \ge m\, d\, \alpha / 8

    with :math:`\theta_j = \pm 1/2` a fair coin per segment. No value of a segment
    arrives before its round d, and each of those d rounds costs any policy at least
    :math:`\alpha / 8` on average; no round has a negative regret.

    Args:
        horizon: number of rounds.
        n: dimension.
        d: the constant delay; divides the segments.
        num_segments: number m of equal segments; divides the horizon.
        strong_convexity: :math:`\alpha > 0`; may be traced.

    Returns:
        The law (it draws the signs of the segments), the delays, the regret of the
        first d rounds of all segments that no policy can stay below.

    Raises:
        ValueError: ``d`` or ``num_segments`` does not divide, ``n`` is below 1,
            ``strong_convexity`` is not positive.

    Example:
        >>> strong_first_block(64, 2, d=8, num_segments=4).regret
        4.0
    """
    checks.check_integer("n", n)
    checks.check_interval("strong_convexity", strong_convexity, 0.0, closed="(]")
    length = _segment_length(horizon, num_segments, d)
    alpha = strong_convexity

    def draw(key):
        return jax.random.rademacher(key, (num_segments,), jnp.int8)

    def losses(signs):
        def centre(t):
            return first_axis(n, 0.5 * signs[t // length].astype(float))

        def value(x, t):
            offset = x - centre(t).astype(x.dtype)
            return alpha / 2 * jnp.sum(jnp.square(offset))

        return LossSequence(
            value,
            centre,
            min_value=lambda t: jnp.zeros(()),
            segment_starts=equal_segments(horizon, num_segments),
            bound=1.125 * alpha,
            lipschitz=1.5 * alpha,
            strong_convexity=alpha,
        )

    regret = num_segments * d * alpha / 8
    return LowerBound(RandomLosses(draw, losses), constant_delay(d), regret)


def _segment_length(horizon: int, num_segments: int, d: int) -> int:
    checks.check_integer("horizon", horizon)
    checks.check_integer("num_segments", num_segments)
    checks.check_integer("d", d)
    if horizon % num_segments:
        raise ValueError(
            f"num_segments must divide the horizon {horizon}, got {num_segments}"
        )
    length = horizon // num_segments
    if length % d:
        raise ValueError(f"d must divide the segment length {length}, got {d}")
    return length


def _mean_distance(steps: int) -> float:
    """``E|W_k|`` of a walk of k fair steps of length 1."""
    # The distances of an odd and the next even number of steps have one mean.
    even = steps + steps % 2
    return even * math.comb(even, even // 2) / 2**even
