"""How long the blocks are and how far to explore, segment by segment.

The length K of a block and the smoothing radius delta are tied by
``K delta^2 = k_scale (n M / G)^2``. What is left to choose is delta, which trades the
price of smoothing, of order ``G delta`` a round, against the regret of learning with
blocks of that length. All of it is arithmetic of the host, in float64.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxopt_suite.bandits.bco_primitives import smoothing_radius
from jaxopt_suite.core import checks
from jaxopt_suite.problems.bco import equal_segments


class BCOSchedule(NamedTuple):
    """One row per segment; NumPy arrays, of which delta and eta may be replaced.

    Attributes:
        starts: first rounds, the first of them 0.
        lengths: numbers of rounds.
        K: rounds per block.
        delta: smoothing radius, the distance of what is played from the centre; may be
            replaced by a traced array.
        eta: learning rate of convex losses; may be replaced by a traced array.
        feasible: False where the segment is too short to learn in: it is one block.
    """

    starts: Int[np.ndarray, " segments"]
    lengths: Int[np.ndarray, " segments"]
    K: Int[np.ndarray, " segments"]
    delta: Float[np.ndarray, " segments"] | Float[Array, " segments"]
    eta: Float[np.ndarray, " segments"] | Float[Array, " segments"]
    feasible: Bool[np.ndarray, " segments"]


def dars_schedule(
    horizon: int,
    n: int,
    *,
    segment_starts: Sequence[int] | Int[np.ndarray, " segments"] = (0,),
    d_max: int = 0,
    radius: float = 1.0,
    inner_radius: float | None = None,
    bound: float = 1.0,
    lipschitz: float = 1.0,
    strong_convexity: float = 0.0,
    k_scale: float = 1.0,
    bias: float = 3.0,
) -> BCOSchedule:
    r"""Blocks, smoothing radii and learning rates of :func:`dars`.

    With :math:`\kappa = \sqrt{k_s}\, n M / G`, a segment of L rounds starts from

    .. math::
        \delta = \sqrt{\frac{2 \sqrt{1.5}\, D \kappa}{b \sqrt L}}
        \quad \text{(convex)}, \qquad
        \delta^3 = \frac{4 G \kappa^2 \ln(e B)}{\alpha b L}, \;
        B = \max(2, L \delta^2 / \kappa^2)
        \quad \text{(strongly convex)}

    (the second from :math:`B = L / \kappa^2`, then five fixed-point steps); then
    :math:`\delta \le r / 2`, :math:`K = \lceil (\kappa / \delta)^2 \rceil \le L`,
    :math:`\delta = \kappa / \sqrt K` and :math:`\eta = D / (2 G \sqrt{L (1.5 K +
    d_{max})})`. Where that :math:`\delta` is above 0.9 r the segment is too short: it
    gets :math:`\delta = r / 2`, one block, and ``feasible`` False.

    Args:
        horizon: number of rounds.
        n: number of coordinates of an action.
        segment_starts: first rounds of the segments, the first of them 0.
        d_max: the largest delay.
        radius: D > 0, the outer radius of the set.
        inner_radius: r in (0, D]; None is D.
        bound: M > 0, a bound on the absolute losses; under ``baseline="mean"`` of
            :func:`dars` that of their spread is enough.
        lipschitz: G > 0, a Lipschitz constant of the losses.
        strong_convexity: :math:`\alpha \ge 0`; 0 is the convex case.
        k_scale: :math:`k_s > 0`; 1 is the theory's, smaller ones have shorter blocks.
        bias: b > 0, the price of smoothing in units of :math:`G \delta` a round.

    Raises:
        ValueError: an argument is out of its range, or traced: they fix block lengths.

    Warns:
        UserWarning: a segment is too short to learn in.

    Example:
        >>> schedule = dars_schedule(1000, 2, segment_starts=(0, 500), d_max=3)
        >>> schedule.K.tolist(), np.round(schedule.delta, 3).tolist()
        ([55, 55], [0.27, 0.27])
    """
    inner_radius = radius if inner_radius is None else inner_radius
    positive = {
        "radius": radius,
        "inner_radius": inner_radius,
        "bound": bound,
        "lipschitz": lipschitz,
        "k_scale": k_scale,
        "bias": bias,
    }
    starts, lengths = check_segments(horizon, n, segment_starts, d_max)
    check_concrete(positive | {"strong_convexity": strong_convexity})
    for name, value in positive.items():
        checks.check_interval(name, value, 0.0, closed="()")
    checks.check_interval("inner_radius", inner_radius, 0.0, radius, closed="(]")
    checks.check_interval("strong_convexity", strong_convexity, 0.0, closed="[)")

    kappa = float(smoothing_radius(1, n, bound, lipschitz, k_scale))
    size = lengths.astype(np.float64)
    if strong_convexity:
        delta = _strong_delta(size, kappa, lipschitz, strong_convexity, bias)
    else:
        delta = np.sqrt(2 * np.sqrt(1.5) * radius * kappa / (bias * np.sqrt(size)))
    delta = np.minimum(delta, inner_radius / 2)
    K = np.clip(np.ceil((kappa / delta) ** 2), 1, size)
    delta = kappa / np.sqrt(K)
    eta = radius / (2 * lipschitz * np.sqrt(size * (1.5 * K + d_max)))
    feasible = np.asarray(delta <= 0.9 * inner_radius)
    delta = np.where(feasible, delta, inner_radius / 2)
    if not feasible.all():
        short = np.flatnonzero(~feasible)
        warnings.warn(
            f"{len(short)} of {len(starts)} segments are too short to learn in (the "
            f"first is segment {short[0]} of {lengths[short[0]]} rounds): they explore "
            "around the initial point. Merge segments, or lower k_scale.",
            stacklevel=2,
        )
    return BCOSchedule(starts, lengths, K.astype(np.int32), delta, eta, feasible)


def _strong_delta(
    size: Float[np.ndarray, " segments"],
    kappa: float,
    lipschitz: float,
    strong_convexity: float,
    bias: float,
) -> Float[np.ndarray, " segments"]:
    """Six evaluations of the fixed point; the count shows in the sixth digit."""

    def radius_for(blocks):
        noise = 4 * lipschitz * kappa**2 * np.log(np.e * np.maximum(2.0, blocks))
        return (noise / (strong_convexity * bias * size)) ** (1 / 3)

    delta = radius_for(size / kappa**2)
    for _ in range(5):
        delta = radius_for(size * delta**2 / kappa**2)
    return delta


def check_segments(
    horizon: int, n: int, segment_starts: Any, d_max: int
) -> tuple[Int[np.ndarray, " segments"], Int[np.ndarray, " segments"]]:
    """First rounds and numbers of rounds of the segments of a schedule.

    Raises:
        ValueError: ``horizon`` or ``n`` is below 1, the starts do not begin with 0,
            increase and stay below the horizon, or ``d_max`` is not in
            [0, horizon).
    """
    checks.check_integer("horizon", horizon)
    checks.check_integer("n", n)
    checks.check_integer("d_max", d_max, 0)
    if d_max >= horizon:
        raise ValueError(
            f"d_max must be below the horizon {horizon}, got {d_max}: a value that "
            "comes later never comes"
        )
    starts = equal_segments(horizon, 1, segment_starts)
    return starts, np.diff(starts, append=np.int32(horizon))


def check_concrete(values: dict[str, Any]) -> None:
    """Refuses traced values.

    Raises:
        ValueError: a value is traced; the message has its name.
    """
    for name, value in values.items():
        if isinstance(value, jax.core.Tracer):
            raise ValueError(
                f"{name} must be concrete, got {value}, which is traced: it fixes the "
                "length of blocks. Sweep over schedule._replace(delta=..., eta=...)"
            )
