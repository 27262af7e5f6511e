"""Quasi-optimism on features that an encoder computes, and that change as it learns.

The policy keeps the inputs it has learned from. When the encoder is trained further,
:func:`refresh_encoder` encodes them again and rebuilds the statistics, so that these
never mix features of two encoders.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from jaxopt_suite.bandits.eqol import eqol
from jaxopt_suite.bandits.linear import StateSchedule, learned, ring_places
from jaxopt_suite.bandits.ridge import RidgeState, ridge_refactor
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy

Encoder = Callable[[PyTree, Array], Float[Array, " d"]]


class NeuralLinearState(NamedTuple):
    """State of :func:`eqol_on_features`.

    Attributes:
        ridge: the statistics of the encoded rows.
        params: the encoder's parameters.
        inputs: the last ``capacity`` rows learned, before the encoder; zero where none
            is yet.
        rewards: their rewards.
        arms: their arms; None in the shared layout.
    """

    ridge: RidgeState
    params: PyTree[Array]
    inputs: Float[Array, "capacity ..."]
    rewards: Float[Array, " capacity"]
    arms: Int[Array, " capacity"] | None


def eqol_on_features(
    apply_fn: Encoder,
    params: PyTree[Array],
    example: Float[Array, "..."],
    *,
    capacity: int,
    lam: float | Array = 1.0,
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    feature_bound: float | Array = 1.0,
    conf: float | Array = 0.01,
    a: float | Array | str | None = None,
    cap: float | Array | None = None,
    c1: StateSchedule | None = None,
    c2: StateSchedule | None = None,
    layout: str = "shared",
    num_arms: int | None = None,
    horizon: float | Array | None = None,
) -> Policy:
    """EQOL on the features ``apply_fn(params, input)`` (neural-linear).

    A context has in ``features`` one input per arm, shape (num_arms, ...), or the one
    input if disjoint. A decision carries the input of the arm played, so that feedback
    that comes after a refresh is learned with the new features.

    Args:
        apply_fn: encodes one input as d features. For an Equinox module, ``params,
            static = eqx.partition(model, eqx.is_array)`` and ``apply_fn = lambda
            params, x: eqx.combine(params, static)(x)``; for a Flax module its
            ``apply``.
        params: the encoder's parameters at the start; copied into the state.
        example: an input, for its shape and dtype.
        capacity: how many of the last rows to keep for a refresh.
        lam: as for :func:`eqol`, like all that follow.
        noise: sub-Gaussian scale of the reward's noise.
        bound: of the norm of the true parameter.
        feature_bound: of the norm of the features.
        conf: probability of failure.
        a: scale of the quadratic branch.
        cap: scale of the cap.
        c1: the quadratic branch.
        c2: the cap.
        layout: ``"shared"`` or ``"disjoint"``.
        num_arms: number of arms.
        horizon: a number of rounds to use in place of t + 1.

    Returns:
        A policy with a :class:`NeuralLinearState`, of which ``inputs`` and ``rewards``
        are there to train the encoder on.

    Raises:
        ValueError: ``capacity`` is not an integer >= 1, ``apply_fn`` does not give a
            vector, or as :func:`eqol`.

    Example:
        >>> from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext
        >>> encode = lambda params, x: jnp.tanh(params @ x)
        >>> weights = jax.random.normal(jax.random.key(0), (4, 2))
        >>> policy = eqol_on_features(encode, weights, jnp.zeros(2), capacity=8)
        >>> state = policy.init(jax.random.key(1))
        >>> context = LinearContext(jnp.eye(2))
        >>> decision = policy.select(state, context, jax.random.key(2))
        >>> state = policy.update(BanditFeedback(decision, reward=1.0), state)
        >>> state = refresh_encoder(encode, state, 2 * weights)
        >>> state.ridge.theta.shape, int(state.ridge.count)
        ((4,), 1)

    Source: Riquelme, Tucker, Snoek, "Deep Bayesian bandits showdown" (2018), arXiv
    1802.09127.
    """
    checks.check_integer("capacity", capacity)
    example = jnp.asarray(example)
    width = jax.eval_shape(apply_fn, params, example).shape
    if len(width) != 1:
        raise ValueError(f"apply_fn must give features of shape (d,), got {width}")
    policy = eqol(
        width[0],
        lam=lam,
        noise=noise,
        bound=bound,
        feature_bound=feature_bound,
        conf=conf,
        a=a,
        cap=cap,
        c1=c1,
        c2=c2,
        layout=layout,
        num_arms=num_arms,
        horizon=horizon,
    )

    def init(key):
        ridge = policy.init(key)
        return NeuralLinearState(
            ridge,
            _own(params),
            jnp.zeros((capacity, *example.shape), example.dtype),
            jnp.zeros(capacity, ridge.theta.dtype),
            jnp.zeros(capacity, jnp.int32) if layout == "disjoint" else None,
        )

    def select(state, context, key):
        inputs = jnp.asarray(context.features)
        encoded = context._replace(features=_encode(apply_fn, state, inputs))
        decision = policy.select(state.ridge, encoded, key)
        shared = inputs.ndim > example.ndim
        return decision._replace(x=inputs[decision.arm] if shared else inputs)

    def update(feedback, state):
        decision, keep = feedback.decision, learned(feedback).reshape(-1)
        places = ring_places(state.ridge.count, keep, capacity)

        def kept(ring, rows):
            rows = jnp.reshape(rows, (-1, *ring.shape[1:])).astype(ring.dtype)
            return ring.at[places].set(rows, mode="drop")

        encoded = decision._replace(x=_encode(apply_fn, state, decision.x))
        return state._replace(
            ridge=policy.update(feedback._replace(decision=encoded), state.ridge),
            inputs=kept(state.inputs, decision.x),
            rewards=kept(state.rewards, feedback.reward),
            arms=None if state.arms is None else kept(state.arms, decision.arm),
        )

    return Policy(init, select, update)


def refresh_encoder(
    apply_fn: Encoder, state: NeuralLinearState, params: PyTree[Array]
) -> NeuralLinearState:
    """Puts a new encoder in place and rebuilds the statistics from the rows kept.

    ``V``, ``theta`` and ``logdet`` are those of the kept rows alone; ``count`` still
    counts all rows.

    Args:
        apply_fn: what the policy was made with; its features keep their width.
        state: the policy's state.
        params: the new parameters, of the same structure; copied.
    """
    state = state._replace(params=_own(params))
    ridge, rewards = state.ridge, state.rewards
    features = _encode(apply_fn, state, state.inputs).astype(ridge.theta.dtype)
    there = jnp.arange(len(rewards)) < ridge.count
    features = jnp.where(there[:, None], features, 0)
    if state.arms is None:
        gram = _einsum("ip,iq->pq", features, features)
        b = _einsum("i,ip->p", rewards, features)
    else:
        own = jax.nn.one_hot(state.arms, len(ridge.theta), dtype=features.dtype)
        gram = _einsum("ik,ip,iq->kpq", own, features, features)
        b = _einsum("ik,i,ip->kp", own, rewards, features)
    gram += ridge.lam * jnp.eye(gram.shape[-1], dtype=gram.dtype)
    ridge = ridge_refactor(ridge._replace(gram=gram, b=b))
    return state._replace(ridge=ridge._replace(gram=None))


def _einsum(spec: str, *operands: Array) -> Array:
    return jnp.einsum(spec, *operands, precision="highest")


def _encode(
    apply_fn: Encoder, state: NeuralLinearState, inputs: Array
) -> Float[Array, "... d"]:
    """Features of one input, or of each of several."""
    inputs = jnp.asarray(inputs)
    if inputs.ndim < state.inputs.ndim:
        return apply_fn(state.params, inputs)
    return jax.vmap(apply_fn, in_axes=(None, 0))(state.params, inputs)


def _own(params: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda x: jnp.array(x, copy=True), params)
