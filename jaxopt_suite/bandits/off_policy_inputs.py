"""What off-policy estimates are fed with: arm probabilities and predicted rewards."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxopt_suite.bandits.off_policy import BanditLog
from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Policy


def arm_probabilities(
    policy: Policy,
    state: PyTree,
    contexts: PyTree,
    key: PRNGKeyArray,
    *,
    num_arms: int,
    num_draws: int = 1,
) -> Float[Array, "rows arms"]:
    """A policy's probabilities of all arms in logged contexts, its state held fixed.

    Row i draws ``num_draws`` decisions. An arm that was drawn has the propensity that
    its decision reports, and what is left to 1 is shared equally by the arms that were
    not drawn: exact once every arm was drawn, and for a deterministic policy (that
    reports NaN) after one draw. Where a random policy reports NaN, the shares of the
    draws stand for the probabilities.

    Args:
        policy: decisions have the fields ``arm`` and ``propensity``.
        state: the policy's state.
        contexts: what ``select`` takes, with a leading axis of rows.
        key: a typed key.
        num_arms: number of arms; static.
        num_draws: decisions for a row; static.

    Raises:
        ValueError: a count is not an integer >= 1, or the contexts have no common
            leading axis.

    Example:
        >>> from jaxopt_suite.core import Policy
        >>> from jaxopt_suite.problems.contextual import LinearDecision
        >>> second = Policy(
        ...     init=lambda key: (),
        ...     select=lambda state, context, key: LinearDecision(1, context),
        ...     update=lambda feedback, state: state,
        ... )
        >>> contexts, key = jnp.ones((1, 2)), jax.random.key(0)
        >>> arm_probabilities(second, (), contexts, key, num_arms=3)
        Array([[0., 1., 0.]], dtype=float32)
    """
    checks.check_integer("num_arms", num_arms)
    checks.check_integer("num_draws", num_draws)
    rows = checks.leading_size("contexts", contexts)

    def probabilities(context, key):
        keys = jax.random.split(key, num_draws)
        drawn = jax.vmap(policy.select, in_axes=(None, None, 0))(state, context, keys)
        hits = jnp.broadcast_to(drawn.arm, num_draws)[:, None] == jnp.arange(num_arms)
        reported = jnp.broadcast_to(drawn.propensity, num_draws)
        known = ~jnp.isnan(reported).any()
        reported = jnp.where(known, reported, 0.0)[:, None]
        exact = jnp.max(jnp.where(hits, reported, 0.0), axis=0)
        unseen = ~jnp.any(hits, axis=0)
        rest = jnp.clip(1.0 - jnp.sum(exact), 0.0) / jnp.maximum(jnp.sum(unseen), 1)
        exact = jnp.where(unseen, rest, exact)
        return jnp.where(known, exact, jnp.mean(hits, axis=0, dtype=exact.dtype))

    return jax.vmap(probabilities)(contexts, jax.random.split(key, rows))


def cross_fitted_rewards(
    log: BanditLog,
    features: Float[Array, "rows ..."],
    *,
    num_arms: int,
    num_folds: int = 2,
    lam: float | Float[Array, ""] = 1.0,
) -> Float[Array, "rows arms"]:
    """A ridge model's rewards of all arms, each row by a model that has not seen it.

    Row i is in fold ``i mod num_folds``, and is predicted from the other folds, so that
    ``doubly_robust`` stays unbiased where rows are independent.

    Args:
        log: the logged rows; propensities are not read.
        features: the features of all arms, (rows, arms, d), for one model; or contexts,
            (rows, p), for one model an arm.
        num_arms: number of arms; static.
        num_folds: at least 2; static.
        lam: regularization > 0; may be traced.

    Raises:
        ValueError: an argument is out of its range, or shapes disagree.

    Example:
        >>> from jaxopt_suite.bandits.off_policy import BanditLog
        >>> arm, ones = jnp.array([0, 0, 1, 1]), jnp.ones(4)
        >>> log = BanditLog(arm, jnp.array([2.0, 4.0, 6.0, 8.0]), ones)
        >>> cross_fitted_rewards(log, ones[:, None], num_arms=2)
        Array([[2., 4.],
               [1., 3.],
               [2., 4.],
               [1., 3.]], dtype=float32)
    """
    checks.check_integer("num_arms", num_arms)
    checks.check_integer("num_folds", num_folds, 2)
    checks.check_interval("lam", lam, 0.0, closed="()")
    features, rows = jnp.asarray(features), checks.leading_size("log", log)
    shared = features.ndim == 3 and features.shape[:2] == (rows, num_arms)
    if not shared and not (features.ndim == 2 and len(features) == rows):
        raise ValueError(
            f"features must have shape ({rows}, {num_arms}, d) or ({rows}, p), got "
            f"{features.shape}"
        )
    checks.check_interval("log.arm", log.arm, 0, num_arms - 1)
    fold = jnp.arange(rows) % num_folds
    played = jax.nn.one_hot(log.arm, num_arms, dtype=features.dtype)
    x = features[jnp.arange(rows), log.arm] if shared else features
    blocks = jnp.ones((rows, 1), x.dtype) if shared else played

    def predict(left_out):
        use = jnp.where(fold == left_out, 0.0, blocks.T)
        gram = jnp.einsum("bn,np,nq->bpq", use, x, x, precision="highest")
        moment = jnp.einsum("bn,np,n->bp", use, x, log.reward, precision="highest")
        ridge = gram + lam * jnp.eye(x.shape[1], dtype=x.dtype)
        theta = jnp.linalg.solve(ridge, moment[..., None])[..., 0]
        return jnp.matmul(features, theta[0] if shared else theta.T)

    predictions = jax.lax.map(predict, jnp.arange(num_folds))
    return predictions[fold, jnp.arange(rows)]
