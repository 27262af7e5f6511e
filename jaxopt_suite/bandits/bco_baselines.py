"""Delayed bandit convex optimization without restarts: gradient steps, and experts.

Both learn from the same one-point gradients as :func:`dars` and neither knows when the
losses change. :func:`delayed_bgd` moves at every arrival; :func:`bandit_mild_ogd` runs
several step sizes in blocks and weighs them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.bandits.bco_leader import UNIT_BALL, check_action
from jaxopt_suite.bandits.bco_primitives import (
    Scalar,
    num_coordinates,
    scalar_dtype,
    sphere_sample,
)
from jaxopt_suite.bandits.bco_rounds import (
    BCODecision,
    as_batch,
    displaced,
    gradient_sum,
    masked_sum,
)
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.bandits.convex_sets import ConvexSet, centre_like, radii
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy
from jaxopt_suite.problems.bco import BCOFeedback

ScalarOrSchedule = Scalar | Callable[[Int[Array, ""]], Scalar]


class BGDState(NamedTuple):
    """State of :func:`delayed_bgd`.

    Attributes:
        y: the centre, a pytree like the action, in float32 where it is narrower.
        round: the round.
    """

    y: PyTree[Float[Array, "..."]]
    round: Int[Array, ""]


def delayed_bgd(
    example_action: PyTree[Float[Array, "..."]],
    *,
    delta: ScalarOrSchedule,
    eta: ScalarOrSchedule,
    domain: ConvexSet = UNIT_BALL,
) -> Policy:
    r"""Gradient descent on one-point gradients, a step for what each round brings.

    .. math::
        x_t = y_t + \delta_t u_t, \qquad
        y_{t+1} = \Pi_{X_\delta}\Big(y_t - \eta_t
        \sum_{s + d_s = t} \frac{n}{\delta_s} f_s(x_s)\, u_s\Big)

    from the centre of the set. Without delays it is the bandit gradient descent of
    Flaxman, Kalai and McMahan. Theory asks for :math:`\delta = \sqrt n\, T^{-1/4}`,
    :math:`\eta = (T ((n / \delta)^2 + 2 d))^{-1/2}`; for :math:`\alpha`-strongly convex
    losses for :math:`\eta_t = 1 / (\alpha (t + 1))`, :math:`\delta = (n^2 \ln T /
    T)^{1/3}`.

    Args:
        example_action: a point, for its structure, shapes and dtypes.
        delta: radius of exploration in (0, r], a number or a schedule of the round; may
            be traced.
        eta: step size >= 0, likewise.
        domain: the set X.

    Raises:
        ValueError: a concrete ``delta`` or ``eta`` is out of its range, or
            ``example_action`` is not floating.

    Example:
        >>> policy = delayed_bgd(jnp.zeros(2), delta=0.2, eta=lambda t: 0.1 / (t + 1))
        >>> state = policy.init(jax.random.key(0))
        >>> decision = policy.select(state, (), jax.random.key(1))
        >>> bool(jnp.isclose(optax.tree.norm(decision.x), 0.2))  # from the centre
        True

    Source: Flaxman, Kalai, McMahan (2005), arXiv cs/0408007; with delays Heliou,
    Mertikopoulos, Zhou, "Gradient-free online learning in continuous games with delayed
    rewards" (2020), arXiv 2006.10911.
    """
    check_action(example_action)
    checks.check_interval("delta", delta, 0.0, closed="()")
    checks.check_interval("eta", eta, 0.0, closed="[)")
    if checks.is_concrete(domain.inner_radius):
        high = float(domain.inner_radius)
        checks.check_interval("delta", delta, 0.0, high, closed="(]")
    n, dtype = num_coordinates(example_action), scalar_dtype(example_action)

    def at(value, t):
        return jnp.asarray(value(t) if callable(value) else value, dtype)

    def init(key):
        del key
        return BGDState(_own(centre_like(domain, example_action)), _zero())

    def select(state, context, key):
        del context
        radius = at(delta, state.round)
        return _explore(state.y, radius, state.round, key, example_action)

    def update(feedback, state):
        feedback = as_batch(feedback)
        step, t = at(eta, state.round), state.round + 1
        moved = jax.tree.map(
            lambda y, g: y - step.astype(y.dtype) * g,
            state.y,
            gradient_sum(feedback, feedback.mask, n),
        )
        return BGDState(
            domain.project(moved, 1 - at(delta, t) / domain.inner_radius), t
        )

    return Policy(init, select, update)


def _own(tree: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def _zero() -> Int[Array, ""]:
    return jnp.zeros([], jnp.int32)


def _explore(
    y: PyTree[Array],
    delta: Float[Array, ""],
    t: Int[Array, ""],
    key: PRNGKeyArray,
    example_action: PyTree[Array],
    experts: PyTree[Array] | None = None,
) -> BCODecision:
    u = sphere_sample(key, example_action)
    x = displaced(y, u, delta, example_action)
    return BCODecision(x, u, delta, _zero(), t, jnp.zeros_like(delta), experts)


class MildOGDState(NamedTuple):
    """State of :func:`bandit_mild_ogd`.

    Attributes:
        experts: the points of N experts, pytrees with a leading axis N.
        scores: what each expert lost against the centre, by the gradients seen so far.
        g: sum of the gradients that came in this block.
        gains: what the scores will grow by at its end.
        position: past rounds of the block.
        round: the round.
    """

    experts: PyTree[Float[Array, "experts ..."]]
    scores: Float[Array, " experts"]
    g: PyTree[Float[Array, "..."]]
    gains: Float[Array, " experts"]
    position: Int[Array, ""]
    round: Int[Array, ""]


def bandit_mild_ogd(
    example_action: PyTree[Float[Array, "..."]],
    horizon: int,
    *,
    d_max: int = 0,
    domain: ConvexSet = UNIT_BALL,
    bound: float = 1.0,
    lipschitz: float = 1.0,
    k_scale: float = 1.0,
    bias: float = 3.0,
) -> Policy:
    r"""Experts with doubling step sizes, weighed by what they lost; it never restarts.

    The radius :math:`\delta`, the block length K and :math:`\eta_0` are those of the
    convex :func:`dars_schedule` with one segment. Experts :math:`i = 0..N-1`, with
    :math:`N = 1 + \lceil \log_2 \lceil T / K \rceil / 2 \rceil`, step by :math:`\eta_0
    2^i` from the centre of the set; the block's centre is

    .. math::
        y = \sum_i w_i y_i, \qquad
        w_i \propto \frac{\exp(-2 \eta_0 S_i / D^2)}{(i + 1)(i + 2)}

    and at the end of a block, over the gradients c that came in it,

    .. math::
        S_i \leftarrow S_i + \sum_c \langle c, y_i^c - y^c \rangle, \qquad
        y_i \leftarrow \Pi_{X_\delta}\Big(y_i - \eta_0 2^i \sum_c c\Big)

    with :math:`y_i^c, y^c` as they stood when c was played.

    Args:
        example_action: a point, for its structure, shapes and dtypes.
        horizon: number of rounds T.
        d_max: the largest delay.
        domain: the set X.
        bound: as for ``dars_schedule``, like all that follow.
        lipschitz: see there.
        k_scale: see there.
        bias: see there.

    Raises:
        ValueError: as ``dars_schedule``, or ``example_action`` is not floating.

    Example:
        >>> policy = bandit_mild_ogd(jnp.zeros(2), 4096, d_max=16, k_scale=0.2)
        >>> policy.init(jax.random.key(0)).experts.shape  # four step sizes
        (4, 2)

    Source: after Wan, Zhang et al., "Non-stationary online convex optimization with
    arbitrary delays" (2023), arXiv 2305.12131.
    """
    check_action(example_action)
    n, dtype = num_coordinates(example_action), scalar_dtype(example_action)
    schedule = dars_schedule(
        horizon,
        n,
        d_max=d_max,
        **radii(domain),
        bound=bound,
        lipschitz=lipschitz,
        k_scale=k_scale,
        bias=bias,
    )
    K, eta = int(schedule.K[0]), float(schedule.eta[0])
    num_experts = 1 + math.ceil(math.log2(-(-horizon // K)) / 2)
    order = np.arange(num_experts)
    steps = jnp.asarray(eta * 2.0**order, dtype)
    prior = jnp.asarray(-np.log((order + 1.0) * (order + 2.0)), dtype)
    sharpness = 2 * eta / domain.radius**2
    delta = jnp.asarray(schedule.delta[0], dtype)
    shrink = 1 - delta / domain.inner_radius

    def centre(state):
        weights = jax.nn.softmax(prior - sharpness * state.scores)
        return jax.tree.map(
            lambda e: jnp.einsum("i,i...->...", weights.astype(e.dtype), e),
            state.experts,
        )

    def init(key):
        del key
        start = centre_like(domain, example_action)
        return MildOGDState(
            jax.tree.map(lambda y: jnp.stack([y] * num_experts), start),
            jnp.zeros(num_experts, dtype),
            jax.tree.map(jnp.zeros_like, start),
            jnp.zeros(num_experts, dtype),
            _zero(),
            _zero(),
        )

    def select(state, context, key):
        del context
        y = centre(state)
        ahead = jax.tree.map(jnp.subtract, state.experts, y)
        return _explore(y, delta, state.round, key, example_action, ahead)

    def update(feedback, state):
        feedback = as_batch(feedback)
        arrived = gradient_sum(feedback, feedback.mask, n)
        g = jax.tree.map(jnp.add, state.g, arrived)
        gains = state.gains + masked_sum(feedback.mask, _expert_losses(feedback, n))
        moved = jax.vmap(
            lambda y, step: domain.project(
                jax.tree.map(lambda a, b: a - step.astype(a.dtype) * b, y, g), shrink
            )
        )(state.experts, steps)
        blank = jax.tree.map(jnp.zeros_like, (g, gains))
        ends = state.position + 1 == K
        experts, scores, (g, gains) = jax.tree.map(
            lambda new, old: jnp.where(ends, new, old),
            (moved, state.scores + gains, blank),
            (state.experts, state.scores, (g, gains)),
        )
        position = jnp.where(ends, 0, state.position + 1)
        return MildOGDState(experts, scores, g, gains, position, state.round + 1)

    return Policy(init, select, update)


def _expert_losses(feedback: BCOFeedback, n: int) -> Float[Array, "batch experts"]:
    """The linear losses ``<c, y_i - y>`` of every value that came, for all experts."""

    def one(decision, value):
        products = jax.tree.map(
            lambda u, ahead: jnp.sum(u * ahead, axis=tuple(range(1, ahead.ndim))),
            decision.direction,
            decision.experts,
        )
        return n / decision.delta * value * sum(jax.tree.leaves(products))

    return jax.vmap(one)(feedback.decision, feedback.value)
