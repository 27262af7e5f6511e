"""A semi-synthetic bandit: the users and items of click logs, and a model of clicks.

The logs are too thin to learn a policy on (about 5 clicks in 1000 rows). So users and
items are as logged, and whether a user clicks comes from a logistic model fitted on
all logged rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Environment
from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext
from jaxopt_suite.problems.open_bandit import OpenBanditLog


class ClickModel(NamedTuple):
    r"""Who may come, what may be shown, and how likely a click is.

    The click probability of item a for the user of a row is
    :math:`\sigma(x_a^T \theta)`, with ``x_a`` from :func:`click_features`.

    Attributes:
        weights: :math:`\theta`, (d,).
        user: 0/1 columns of the user's categories, the first of each left out,
            (rows, u).
        affinity: log(1 + earlier clicks) of the user on each item, (rows, items).
        item: the items' value, scaled to [-1, 1], then 0/1 columns of their
            categories, the first of each left out, (items, q).
        scale: what features are divided by, so that none has a norm above 1.
    """

    weights: Float[Array, " d"]
    user: Float[Array, "rows u"]
    affinity: Float[Array, "rows items"]
    item: Float[Array, "items q"]
    scale: Float[Array, ""]


def fit_click_model(
    logs: Sequence[OpenBanditLog],
    *,
    l2: float = 1e-4,
    fit_on: Bool[np.ndarray, " rows"] | None = None,
) -> ClickModel:
    """Fits the logistic click model on the rows of all logs together.

    It minimizes the mean logistic loss plus half of ``l2`` times the squared norm of
    the weights of the unscaled features, the intercept left free. Positions are not
    modelled: a click rate is that of a position drawn as in the logs.

    Args:
        logs: of one campaign, one policy or both. Their rows, in this order, are the
            rows of the model.
        l2: > 0. On rows left out, the samples' clicks are predicted no better than by
            their mean at any value, and 3 % worse at most at the default: the model is
            a plausible shop, not an estimate of the true one.
        fit_on: the rows to fit on; None: all. The other rows are contexts only, so
            that estimates from the model can be made on rows it has not seen.

    Raises:
        ValueError: there is no log, the logs are of different items, ``l2`` is not
            positive, or ``fit_on`` is no boolean for every row, or has no click or
            nothing but clicks.
    """
    checks.check_interval("l2", l2, 0.0, closed="()")
    logs = list(logs)
    if not logs:
        raise ValueError("logs must have at least one OpenBanditLog, got none")
    value, category = logs[0].item_value, logs[0].item_category
    for log in logs[1:]:
        same = np.array_equal(log.item_value, value)
        if not (same and np.array_equal(log.item_category, category)):
            raise ValueError(
                f"logs must be of one campaign, got {len(value)} items and then "
                f"{len(log.item_value)} that differ"
            )
    user = _one_hot(np.concatenate([log.user for log in logs]))
    affinity = np.log1p(np.concatenate([log.affinity for log in logs], dtype=float))
    value = value / max(np.abs(value).max(), np.finfo(float).tiny)
    item = np.concatenate([value[:, None], _one_hot(category)], axis=1)
    shown = np.concatenate([log.item for log in logs])
    click = np.concatenate([log.click for log in logs])
    rows = np.arange(len(shown))
    if fit_on is not None:
        if np.shape(fit_on) != shown.shape or np.asarray(fit_on).dtype != bool:
            raise ValueError(
                f"fit_on must be {len(shown)} booleans, got {np.asarray(fit_on).dtype} "
                f"of shape {np.shape(fit_on)}"
            )
        rows = rows[fit_on]
    num_clicks = click[rows].sum()
    if not 0 < num_clicks < len(rows):
        raise ValueError(
            "the rows to fit on must have clicks and others, got "
            f"{num_clicks:g} clicks in {len(rows)}"
        )
    picked = shown[rows]
    x = _join(user[rows], affinity[rows, picked], item[picked], np)
    weights = _fit_logistic(x, click[rows], l2)
    users, values = np.sum(user**2, axis=1)[:, None], value**2
    squares = 1 + users * (1 + values) + np.sum(item**2, axis=1) + affinity**2
    scale = np.sqrt(squares.max())
    parts = (weights * scale, user, affinity, item, scale)
    return ClickModel(*(jnp.asarray(part, jnp.float32) for part in parts))


def click_features(
    model: ClickModel, row: Int[Array, ""] | int
) -> Float[Array, "items d"]:
    """The features of all items for the user of a row, of norm 1 at most.

    Constant, the user's columns, the item's columns, the affinity, and the item's value
    times the user's columns: ``d = 2 + 2 u + q``, with u and q as in
    :class:`ClickModel`.
    """
    items = len(model.item)
    user = jnp.broadcast_to(model.user[row], (items, model.user.shape[1]))
    return _join(user, model.affinity[row], model.item, jnp) / model.scale


def click_rates(
    model: ClickModel, rows: Int[Array, " n"] | np.ndarray
) -> Float[Array, "n items"]:
    """Click probabilities of all items for the users of some rows.

    As a reward model this serves the direct and the doubly robust estimator.
    """
    return jax.lax.map(
        lambda row: jax.nn.sigmoid(_logits(model, click_features(model, row))),
        jnp.asarray(rows),
    )


def _logits(model: ClickModel, features: Float[Array, "items d"]) -> Array:
    return jnp.matmul(features, model.weights, precision="highest")


def _join(user: Any, affinity: Any, item: Any, numpy: Any) -> Any:
    ones = numpy.ones_like(affinity)[:, None]
    parts = [ones, user, item, affinity[:, None], item[:, :1] * user]
    return numpy.concatenate(parts, axis=1)


def _fit_logistic(x: np.ndarray, y: np.ndarray, l2: float) -> np.ndarray:
    """Newton's method from the best constant; the first column is not penalized."""
    penalty = np.full(x.shape[1], l2)
    penalty[0] = 0.0
    w = np.zeros(x.shape[1])
    w[0] = np.log(y.mean() / (1 - y.mean()))
    for _ in range(100):
        rate = 1.0 / (1.0 + np.exp(-x @ w))
        gradient = x.T @ (rate - y) / len(y) + penalty * w
        curvature = (x.T * (rate * (1 - rate))) @ x / len(y) + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        w = w - step
        if np.abs(step).max() < 1e-10:
            return w
    raise ValueError(f"l2 must be larger for the fit to converge, got {l2}")


def _one_hot(codes: np.ndarray) -> np.ndarray:
    """A 0/1 column for each value of each column but its first in order."""
    columns = [column[:, None] == np.unique(column)[1:] for column in codes.T]
    return np.concatenate(columns, axis=1).astype(float)


class OpenBanditState(NamedTuple):
    """State of :func:`obd_env`.

    Attributes:
        row: the row of the model whose user is there now.
    """

    row: Int[Array, ""]


def obd_env(
    model: ClickModel, *, logit_shift: float | Float[Array, ""] = 0.0
) -> Environment:
    r"""Real users and items, clicks from a fitted model: a logistic bandit.

    Each round a user comes, a row of the model drawn uniformly with replacement; every
    item is an arm with features :func:`click_features`; the reward is a click,

    .. math:: r \sim \mathrm{Bernoulli}(\sigma(x_a^T \theta + s)).

    Args:
        model: from :func:`fit_click_model`.
        logit_shift: :math:`s`, a number that may be traced. In the logs about 5 of
            1000 items are clicked, too few to learn from in some thousand rounds; 3
            makes that about 9 of 100.

    Returns:
        An Environment with contexts ``LinearContext(features (items, d))``; the regret
        of a round is the difference of click probabilities.

    Raises:
        ValueError: ``logit_shift`` is not finite.

    Example:
        >>> from jaxopt_suite.problems.contextual import LinearDecision
        >>> model = ClickModel(
        ...     weights=jnp.array([0.0, 1.0, 2.0, 0.0, 0.0]),
        ...     user=jnp.array([[0.0], [1.0]]),
        ...     affinity=jnp.zeros((2, 3)),
        ...     item=jnp.array([[-1.0], [0.0], [1.0]]),
        ...     scale=jnp.array(2.0),
        ... )
        >>> env = obd_env(model, logit_shift=-1.0)
        >>> state, context = env.init(jax.random.key(0))
        >>> decision = LinearDecision(jnp.array(2), context.features[2])
        >>> _, _, feedback = env.step(state, decision, jax.random.key(1))
        >>> float(feedback.regret)
        0.0
    """
    checks.check_interval("logit_shift", logit_shift, closed="()")

    def draw(key):
        row = jax.random.randint(key, (), 0, len(model.user), jnp.int32)
        return OpenBanditState(row), LinearContext(click_features(model, row))

    def step(state, decision, key):
        click_key, row_key = jax.random.split(key)
        logits = _logits(model, click_features(model, state.row))
        rates = jax.nn.sigmoid(logits + logit_shift)
        rate = rates[decision.arm]
        click = jax.random.bernoulli(click_key, rate).astype(rates.dtype)
        feedback = BanditFeedback(
            decision, click, jnp.array(True), jnp.max(rates) - rate
        )
        return *draw(row_key), feedback

    return Environment(draw, step)
