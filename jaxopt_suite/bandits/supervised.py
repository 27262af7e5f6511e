"""Ridge classification with full information: the ceiling for bandits on labels."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxopt_suite.bandits.ridge import check_layout, ridge_init
from jaxopt_suite.core.types import Transformation


class SupervisedDecision(NamedTuple):
    """What :func:`supervised_ridge` would have played, before it saw the label.

    Attributes:
        arm: the arm of the largest prediction, the lowest of equals.
        reward: 1 if it is the label, else 0.
    """

    arm: Int[Array, ""]
    reward: Float[Array, ""]


class SupervisedState(NamedTuple):
    """State of :func:`supervised_ridge`.

    Attributes:
        V_inv: inverse of the regularized Gram matrix, one for all arms.
        theta: one parameter per arm.
        count: number of rows learned.
    """

    V_inv: Float[Array, "d d"]
    theta: Float[Array, "num_arms d"]
    count: Int[Array, ""]


def supervised_ridge(
    d: int, num_arms: int, *, lam: float | Array = 1.0
) -> Transformation:
    """Learns the 0/1 reward of every arm from every row, by ridge regression.

    Each row is predicted first and learned then, so that the sum of the rewards is what
    a bandit with full information would have earned. ``O(d^2 + num_arms d)`` a row:
    all arms see the same rows and share one matrix.

    Args:
        d: width of the features.
        num_arms: number of arms, which are the classes.
        lam: regularization > 0; may be traced.

    Returns:
        ``init(features) -> SupervisedState``, with any features for their dtype, and
        ``update(row, state) -> (decision, state)`` with a :class:`SupervisedDecision`,
        where a row is what a scan over a ``LabelledData`` gives.

    Raises:
        ValueError: ``d`` or ``num_arms`` is not an integer >= 1, ``lam <= 0``; or, at
            trace time, the features are not of shape (d,).

    Example:
        >>> from jaxopt_suite.problems.stochastic import LabelledData
        >>> data = LabelledData(jnp.array([[1.0, 0.0], [1.0, 0.1]]), jnp.array([2, 2]))
        >>> ridge = supervised_ridge(2, num_arms=3)
        >>> start = ridge.init(data.features[0])
        >>> learn = lambda state, row: ridge.update(row, state)[::-1]
        >>> jax.lax.scan(learn, start, data)[1].arm
        Array([0, 2], dtype=int32)
    """
    check_layout(d, lam, "disjoint", num_arms)

    def init(features):
        start = ridge_init(d, lam=lam, dtype=jnp.asarray(features).dtype)
        theta = jnp.zeros((num_arms, d), start.theta.dtype)
        return SupervisedState(start.V_inv, theta, start.count)

    def update(inputs, state, **extra):
        del extra
        x = jnp.asarray(inputs.features, state.theta.dtype)
        if x.shape != (d,):
            raise ValueError(f"features must have shape ({d},), got {x.shape}")
        predictions = jnp.matmul(state.theta, x, precision="highest")
        arm = jnp.argmax(predictions).astype(jnp.int32)
        rewards = (jnp.arange(num_arms) == inputs.labels).astype(x.dtype)
        direction = jnp.matmul(state.V_inv, x, precision="highest")
        growth = 1 + jnp.maximum(jnp.sum(x * direction), 0)
        half = direction / jnp.sqrt(growth)
        state = SupervisedState(
            state.V_inv - jnp.outer(half, half),
            state.theta + jnp.outer((rewards - predictions) / growth, direction),
            state.count + 1,
        )
        return SupervisedDecision(arm, rewards[arm]), state

    return Transformation(init, update)
