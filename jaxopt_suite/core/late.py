"""Late feedback in fixed memory: a ring of feedbacks, handed out when they are due.

One stable sort of the arrival rounds before a run lists the feedbacks in the order in
which they are due, oldest round first within a round. So a round of the run reads
``max_arrivals`` entries of that list, however long the delays are.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core import checks
from jaxopt_suite.core.delays import DelayModel


class LatePlan(NamedTuple):
    """When the feedback of a run comes, as far as it is known before the run.

    Attributes:
        delays: the delays of all rounds where they are concrete, else None.
        model: the law to draw them from where they are not, else None.
        slots: feedbacks that must be kept, the largest delay plus 1.
        width: the most feedbacks that one round can bring.
    """

    delays: Int[np.ndarray, " horizon"] | None
    model: DelayModel | None
    slots: int
    width: int


class LateState(NamedTuple):
    """Feedbacks under way.

    Attributes:
        arrivals: the round whose end brings round t's feedback; ``horizon``: never.
        order: rounds in the order in which they are due, padded with ``horizon``.
        head: how many have been handed out.
        ring: the last feedbacks; round t's is in slot ``t mod slots``.
    """

    arrivals: Int[Array, " horizon"]
    order: Int[Array, " padded"]
    head: Int[Array, ""]
    ring: PyTree[Array]


def plan_delays(delays: Any, horizon: int) -> LatePlan:
    """Sizes the ring and the batches for ``delays`` (a model, an array or an int).

    Raises:
        ValueError: wrong shape or dtype, negative, traced, or a model's draw that its
            own ``d_max`` or ``max_arrivals`` does not cover.
    """
    if isinstance(delays, DelayModel):
        slots, width = delays.d_max + 1, delays.max_arrivals
        return LatePlan(None, delays, min(slots, horizon), min(width, horizon))
    if isinstance(delays, jax.Array) and not checks.is_concrete(delays):
        raise ValueError(
            "delays must be concrete or a DelayModel, got a traced array: its largest "
            "delay fixes the size of a buffer"
        )
    array = np.asarray(delays)
    if not np.issubdtype(array.dtype, np.integer) or array.shape not in (
        (),
        (horizon,),
    ):
        raise ValueError(
            f"delays must be a DelayModel, an int or integers of shape ({horizon},), "
            f"one per round, got {array.dtype} of shape {array.shape}"
        )
    if array.min() < 0:
        raise ValueError(f"delays must be >= 0, got {array.min()}")
    array = np.broadcast_to(np.minimum(array, horizon), (horizon,)).astype(np.int32)
    due = array + np.arange(horizon)
    comes = due < horizon
    slots = int(array[comes].max(initial=0)) + 1
    width = int(np.bincount(due[comes], minlength=1).max())
    return LatePlan(array, None, slots, max(width, 1))


def draw_delays(model: DelayModel, key: PRNGKeyArray, horizon: int) -> Any:
    """A model's delays, checked against its own bounds where they are concrete."""
    delays = model(key, horizon)
    if not checks.is_concrete(delays):
        return model
    plan = plan_delays(np.asarray(delays), horizon)
    if plan.slots > model.d_max + 1:
        raise ValueError(
            f"d_max of the delay model must be at least {plan.slots - 1}, the largest "
            f"delay it drew, got {model.d_max}"
        )
    if plan.width > model.max_arrivals:
        raise ValueError(
            f"max_arrivals of the delay model must be at least {plan.width}, the most "
            f"arrivals in a round that it drew, got {model.max_arrivals}"
        )
    return np.asarray(delays)


def late_init(
    plan: LatePlan, key: PRNGKeyArray, horizon: int, feedback: PyTree
) -> LateState:
    """The state before round 0, with room for feedbacks like the abstract ``feedback``.

    Raises:
        ValueError: the feedback has no field ``mask``.
    """
    if "mask" not in getattr(feedback, "_fields", ()):
        raise ValueError(
            "delays need a feedback NamedTuple with the field mask (False: nothing "
            f"there), got {type(feedback).__name__} with the fields "
            f"{getattr(feedback, '_fields', ())}"
        )
    delays = plan.delays if plan.model is None else plan.model(key, horizon)
    rounds = jnp.arange(horizon, dtype=jnp.int32)
    arrivals = rounds + jnp.minimum(jnp.asarray(delays, jnp.int32), horizon - rounds)
    order = jnp.argsort(arrivals, stable=True).astype(jnp.int32)
    order = jnp.concatenate([order, jnp.full(plan.width, horizon, jnp.int32)])
    ring = jax.tree.map(lambda x: jnp.zeros((plan.slots, *x.shape), x.dtype), feedback)
    return LateState(arrivals, order, jnp.zeros([], jnp.int32), ring)


def late_step(
    plan: LatePlan, state: LateState, feedback: PyTree, t: Int[Array, ""]
) -> tuple[LateState, PyTree]:
    """Keeps round ``t``'s own feedback; returns what is due, as one masked batch."""
    ring = jax.tree.map(lambda r, x: r.at[t % plan.slots].set(x), state.ring, feedback)
    rounds = jax.lax.dynamic_slice(state.order, (state.head,), (plan.width,))
    due = state.arrivals.at[rounds].get(mode="fill", fill_value=-1) == t
    batch = jax.tree.map(lambda r: r[rounds % plan.slots], ring)
    head = state.head + jnp.sum(due, dtype=jnp.int32)
    return state._replace(ring=ring, head=head), blank_unless(due, batch)


def blank_unless(keep: Array, feedback: PyTree) -> PyTree:
    """Zeros with mask False where ``keep`` is False, the feedback elsewhere."""

    def one(x):
        x = jnp.asarray(x)
        shape = keep.shape + (1,) * (x.ndim - keep.ndim)
        return jnp.where(keep.reshape(shape), x, jnp.zeros(x.shape, x.dtype))

    return jax.tree.map(one, feedback)
