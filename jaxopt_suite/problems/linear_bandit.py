"""Synthetic linear bandits: rewards linear in the features of the arm played.

The true parameter and the arm sets are part of the state, so a record can be checked
round by round: the features shown in round t are ``arms_shown(state, t)``, their means
``features @ state.theta``, and the best arm is where these are largest.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Environment
from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext

ARMS = ("fixed", "iid", "pool")
FEATURES = ("sphere", "gauss", "ball")


class LinearBanditState(NamedTuple):
    """State of :func:`linear_env` and :func:`gap_env`.

    Attributes:
        theta: the true parameter; never changes.
        sets: the arm sets; round ``t`` shows ``sets[t % len(sets)]``. With
            ``arms="iid"`` the one set of the coming round.
        round: rounds played so far.
        key: with ``arms="iid"`` the key of the sets, of which round ``t`` uses
            ``fold_in(key, t)``; else None.
    """

    theta: Float[Array, " d"]
    sets: Float[Array, "sets arms d"]
    round: Int[Array, ""]
    key: Key[Array, ""] | None = None


def draw_features(
    key: PRNGKeyArray, shape: tuple[int, ...], features: str = "sphere"
) -> Float[Array, "..."]:
    r"""Independent random feature vectors along the last axis of ``shape``.

    Args:
        key: a typed key.
        shape: the last entry is the dimension :math:`d \ge 1`.
        features: ``"sphere"``, uniform on the unit sphere; ``"ball"``, uniform in the
            unit ball (the sphere times :math:`U^{1/d}`); ``"gauss"``,
            :math:`N(0, I/d)`.

    Raises:
        ValueError: another law.

    Example:
        >>> x = draw_features(jax.random.key(0), (50, 3))
        >>> bool(jnp.allclose(jnp.linalg.norm(x, axis=-1), 1.0))
        True
    """
    checks.check_choice("features", features, FEATURES)
    direction_key, length_key = jax.random.split(key)
    normal = jax.random.normal(direction_key, shape)
    if features == "gauss":
        return normal / math.sqrt(shape[-1])
    # A draw of exactly 0 happens in float32, and with d = 1 it has no direction.
    normal = jnp.where(normal == 0, 1e-12, normal)
    unit = normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)
    if features == "sphere":
        return unit
    length = jax.random.uniform(length_key, (*shape[:-1], 1)) ** (1 / shape[-1])
    return unit * length


def arms_shown(
    state: LinearBanditState,
    round: Int[Array, ""] | int,
    *,
    features: str = "sphere",
) -> Float[Array, "arms d"]:
    """The arm set that an environment shows in a round, past or future.

    Args:
        state: any state of the run, the last one for example.
        round: the round, from 0.
        features: the law the environment was made with; read with ``arms="iid"`` only.

    Example:
        >>> env = linear_env(2, 3, noise=0.1, arms="iid")
        >>> state, context = env.init(jax.random.key(0))
        >>> bool((arms_shown(state, 0) == context.features).all())
        True
    """
    if state.key is None:
        return state.sets[round % len(state.sets)]
    key = jax.random.fold_in(state.key, round)
    return draw_features(key, state.sets.shape[1:], features)


def linear_env(
    d: int,
    K: int,
    *,
    noise: float | Float[Array, ""],
    arms: str = "fixed",
    pool: int = 512,
    theta_norm: float | Float[Array, ""] = 1.0,
    features: str = "sphere",
) -> Environment:
    r"""A linear bandit with a random parameter and random arms, in the shared layout.

    .. math:: r_t = \langle x_t, \theta^* \rangle + R\, N(0, 1), \quad
        \theta^* \text{ uniform on the sphere of radius } S

    Args:
        d: dimension >= 1; static.
        K: number of arms >= 1; static.
        noise: :math:`R \ge 0`; may be traced.
        arms: ``"fixed"``, one set for ever; ``"pool"``, ``pool`` sets drawn once, of
            which round t shows number ``t mod pool``; ``"iid"``, a fresh set each
            round.
        pool: number of sets, read with ``arms="pool"`` only; static.
        theta_norm: :math:`S \ge 0`; may be traced.
        features: law of the arms' features, as in :func:`draw_features`.

    Returns:
        An Environment with contexts ``LinearContext(features (K, d))``, which takes any
        decision with a field ``arm``. Its state is a :class:`LinearBanditState`.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> from jaxopt_suite.problems.contextual import LinearDecision
        >>> env = linear_env(3, 4, noise=0.0)
        >>> state, context = env.init(jax.random.key(0))
        >>> best = jnp.argmax(context.features @ state.theta)
        >>> decision = LinearDecision(best, context.features[best])
        >>> state, context, feedback = env.step(state, decision, jax.random.key(1))
        >>> float(feedback.regret)
        0.0
    """
    checks.check_integer("d", d)
    checks.check_integer("K", K)
    checks.check_choice("arms", arms, ARMS)
    checks.check_choice("features", features, FEATURES)
    checks.check_integer("pool", pool)
    checks.check_interval("theta_norm", theta_norm, 0.0, closed="[)")

    def draw(key):
        theta_key, arms_key = jax.random.split(key)
        theta = theta_norm * draw_features(theta_key, (d,))
        if arms == "iid":
            first = jax.random.fold_in(arms_key, 0)
            return theta, draw_features(first, (K, d), features)[None], arms_key
        sets = draw_features(arms_key, (pool if arms == "pool" else 1, K, d), features)
        return theta, sets, None

    return _environment(draw, noise, features)


def gap_env(
    d: int,
    K: int,
    gap: float | Float[Array, ""],
    *,
    noise: float | Float[Array, ""],
) -> Environment:
    r"""A linear bandit in which arm 0 leads every other arm by exactly ``gap``.

    .. math:: x_a = \mu_a \theta^* + \sqrt{1 - \mu_a^2}\; e_a, \qquad
        \mu_0 = \tfrac12, \; \mu_a = \tfrac12 - \Delta \;\; (a > 0)

    One fixed set: :math:`\theta^*` uniform on the unit sphere, :math:`e_a` uniform
    among the unit vectors orthogonal to it. So arms are unit vectors with means
    :math:`\mu_a`.

    Args:
        d: dimension >= 2; static.
        K: number of arms >= 1; static.
        gap: :math:`\Delta` in (0, 1.5]; may be traced.
        noise: standard deviation >= 0 of the Gaussian noise; may be traced.

    Returns:
        An Environment as that of :func:`linear_env` with ``arms="fixed"``.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> state, context = gap_env(4, 3, 0.25, noise=0.1).init(jax.random.key(0))
        >>> (context.features @ state.theta).round(3)
        Array([0.5 , 0.25, 0.25], dtype=float32)
    """
    checks.check_integer("d", d, 2)
    checks.check_integer("K", K)
    checks.check_interval("gap", gap, 0.0, 1.5, closed="(]")

    def draw(key):
        theta_key, arms_key = jax.random.split(key)
        theta = draw_features(theta_key, (d,))
        across = draw_features(arms_key, (K, d - 1))
        means = jnp.where(jnp.arange(K) == 0, 0.5, 0.5 - gap).astype(theta.dtype)
        side = jnp.sqrt(jnp.clip(1.0 - means**2, 0.0))[:, None] * across
        # The reflection along v takes the first axis to -sign * theta, and the other
        # axes to an orthonormal basis across theta.
        sign = jnp.where(theta[0] < 0, -1.0, 1.0).astype(theta.dtype)
        v = theta.at[0].add(sign)
        local = jnp.concatenate([-sign * means[:, None], side], axis=1)
        shift = jnp.matmul(local, v, precision="highest") * (2.0 / jnp.sum(v**2))
        return theta, (local - shift[:, None] * v)[None], None

    return _environment(draw, noise, "sphere")


def _environment(draw: Any, noise: Any, features: str) -> Environment:
    """The environment of a law of ``(theta, sets, key)``."""
    checks.check_interval("noise", noise, 0.0, closed="[)")

    def show(state):
        return state.sets[state.round % len(state.sets)]

    def init(key):
        theta, sets, key = draw(key)
        state = LinearBanditState(theta, sets, jnp.zeros([], jnp.int32), key)
        return state, LinearContext(show(state))

    def step(state, decision, key):
        means = jnp.matmul(show(state), state.theta, precision="highest")
        mean = means[decision.arm]
        reward = mean + noise * jax.random.normal(key, dtype=means.dtype)
        feedback = BanditFeedback(
            decision, reward, jnp.array(True), jnp.max(means) - mean
        )
        state = state._replace(round=state.round + 1)
        if state.key is not None:
            fresh = arms_shown(state, state.round, features=features)
            state = state._replace(sets=fresh[None])
        return state, LinearContext(show(state)), feedback

    return Environment(init, step)
