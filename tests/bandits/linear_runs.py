"""Runs of linear policies that record what the drivers do not: the policy's state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxopt_suite.core.interaction import interaction_loop
from jaxopt_suite.problems.contextual import BanditFeedback, LinearDecision


@functools.partial(jax.jit, static_argnames=("policy", "env", "horizon", "view"))
def watch(policy, env, key, horizon, view=lambda state: state):
    """The trace of a run, and ``view`` of the policy's state after each round."""
    loop = interaction_loop(policy, env, horizon, record="full")

    def step(state, _):
        row, state = loop.update(None, state)
        return state, (row, view(state.policy))

    state, (trace, views) = jax.lax.scan(step, loop.init(key), length=horizon)
    return trace, views, state.policy


def decision_for(x, arm=0):
    """A decision that played ``x``, or a batch of them."""
    x = jnp.asarray(x)
    batch = x.shape[:-1]
    return LinearDecision(
        arm=jnp.broadcast_to(jnp.asarray(arm, jnp.int32), batch),
        x=x,
        score=jnp.zeros(batch, x.dtype),
        bonus=jnp.zeros(batch, x.dtype),
        propensity=jnp.full(batch, jnp.nan, x.dtype),
        valid=jnp.ones(batch, bool),
        member=jnp.zeros(batch, jnp.int32),
    )


@functools.partial(jax.jit, static_argnames=("policy", "view"))
def feed(policy, key, xs, rewards, view=lambda state: state.ridge.count):
    """Learns rows one after another: the first state, the last, a view of each."""
    start = policy.init(key)
    feedback = BanditFeedback(
        decision_for(xs), rewards, jnp.ones(len(xs), bool), jnp.zeros(len(xs))
    )

    def step(state, feedback):
        state = policy.update(feedback, state)
        return state, view(state)

    return start, *jax.lax.scan(step, start, feedback)


def kron_rows(x, arm, num_arms):
    """Disjoint rows as rows of the shared layout."""
    x, arm = np.asarray(x), np.asarray(arm)
    rows = np.zeros((len(x), num_arms, x.shape[1]))
    rows[np.arange(len(x)), arm] = x
    return rows.reshape(len(x), -1)
