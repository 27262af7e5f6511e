"""Ridge regression as a running state: what every linear policy learns with.

``V = lam I + sum_s x_s x_s^T``, ``b = sum_s r_s x_s`` and ``theta = V^-1 b``, kept as
the inverse and its log-determinant, so that one more row costs ``O(d^2)``.

In the ``"shared"`` layout there is one ``theta`` of width d, and an arm is a feature
vector. In the ``"disjoint"`` layout each of ``num_arms`` arms has its own block for a
common context: arm a's features are ``e_a kron z``, of which only block a is stored.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

from jaxopt_suite.core import checks
from jaxopt_suite.core.sums import RunningSum, add
from jaxopt_suite.core.trees import statistics_dtype

# Below it a scan of rank-one updates beats the Cholesky factor of a batch.
_SMALL_BATCH = 8


class RidgeState(NamedTuple):
    """Statistics of a ridge regression; blocks lead with an arm axis if disjoint.

    Attributes:
        V_inv: inverse of the regularized Gram matrix, (d, d) or (num_arms, p, p).
        theta: the estimate ``V^-1 b``, (d,) or (num_arms, p).
        b: the sum of ``r x``, shaped as ``theta``.
        logdet: ``log(det V / lam^d)``, summed over blocks; starts at 0.
        logdet_rest: what rounding has cut off ``logdet``, carried along.
        count: number of rows received.
        lam: the regularization.
        gram: ``V``, shaped as ``V_inv``; None unless asked for.
    """

    V_inv: Float[Array, "*blocks d d"]
    theta: Float[Array, "*blocks d"]
    b: Float[Array, "*blocks d"]
    logdet: Float[Array, ""]
    logdet_rest: Float[Array, ""]
    count: Int[Array, ""]
    lam: Float[Array, ""]
    gram: Float[Array, "*blocks d d"] | None = None


def ridge_init(
    d: int,
    *,
    lam: float | Array = 1.0,
    layout: str = "shared",
    num_arms: int | None = None,
    dtype: jax.typing.DTypeLike | None = None,
    keep_gram: bool = False,
) -> RidgeState:
    """The state before the first row: ``V = lam I``.

    Args:
        d: width of the features, or of the context if disjoint.
        lam: regularization > 0; may be traced.
        layout: ``"shared"`` or ``"disjoint"``.
        num_arms: number of blocks; only and always for ``"disjoint"``.
        dtype: of the statistics, at least float32; None: JAX's default float.
        keep_gram: also keep ``V``, for :func:`ridge_refactor` and for forgetting.

    Raises:
        ValueError: ``d`` or ``num_arms`` is not an integer >= 1, ``lam <= 0``, the
            layout is unknown, or ``num_arms`` is missing for the disjoint one.

    Example:
        >>> state = ridge_init(2, lam=4.0)
        >>> ridge_update(state, jnp.array([2.0, 0.0]), 1.0).theta
        Array([0.25, 0.  ], dtype=float32)
    """
    check_layout(d, lam, layout, num_arms)
    dtype = statistics_dtype(jnp.dtype(dtype or jnp.result_type(float)))
    blocks = (num_arms,) if layout == "disjoint" else ()
    lam = jnp.array(lam, dtype, copy=True)
    eye = jnp.broadcast_to(jnp.eye(d, dtype=dtype), (*blocks, d, d))
    return RidgeState(
        V_inv=eye / lam,
        theta=jnp.zeros((*blocks, d), dtype),
        b=jnp.zeros((*blocks, d), dtype),
        logdet=jnp.zeros((), dtype),
        logdet_rest=jnp.zeros((), dtype),
        count=jnp.zeros((), jnp.int32),
        lam=lam,
        gram=eye * lam if keep_gram else None,
    )


def check_layout(d: int, lam: float | Array, layout: str, num_arms: int | None) -> None:
    """Refuses arguments that :func:`ridge_init` cannot work with.

    Raises:
        ValueError: see :func:`ridge_init`.
    """
    checks.check_integer("d", d)
    checks.check_interval("lam", lam, 0.0, closed="()")
    checks.check_choice("layout", layout, ("shared", "disjoint"))
    if num_arms is not None or layout == "disjoint":
        if num_arms is None:
            raise ValueError("layout='disjoint' needs num_arms, got num_arms=None")
        checks.check_integer("num_arms", num_arms)


def ridge_update(
    state: RidgeState,
    x: Float[Array, " d"],
    r: Float[Array, ""] | float,
    *,
    weight: Float[Array, ""] | float = 1.0,
    forget: Float[Array, ""] | float = 1.0,
    arm: Int[Array, ""] | int | None = None,
    mask: Bool[Array, ""] | bool = True,
) -> RidgeState:
    """Learns one row, by the Sherman-Morrison formula.

    With ``u = V^-1 x`` and ``q = 1 + x.u``,

        V^-1 -= u u^T / q;  theta += u (r - x.theta) / q;  b += r x;  logdet += log q.

    Args:
        state: the statistics so far.
        x: features, or the context if disjoint.
        r: reward.
        weight: counts the row ``weight`` times, >= 0; for importance weights.
        forget: factor in (0, 1] on all earlier rows, which then fade:
            ``V <- forget V + (1 - forget) lam I + x x^T``. Below 1, or traced, it costs
            a Cholesky factor and needs ``keep_gram=True``.
        arm: the block that learns; only and always for a disjoint state.
        mask: False changes nothing, whatever ``x`` and ``r`` are.

    Raises:
        ValueError: ``x`` is of another width, ``arm`` is missing or not wanted,
            ``weight < 0``, ``forget`` is outside (0, 1] or without ``keep_gram``.

    Example:
        >>> state = ridge_update(ridge_init(1), jnp.ones(1), 3.0)
        >>> state.theta, state.V_inv, int(state.count)
        (Array([1.5], dtype=float32), Array([[0.5]], dtype=float32), 1)
    """
    checks.check_interval("weight", weight, 0.0)
    checks.check_interval("forget", forget, 0.0, 1.0, closed="(]")
    _check_arm(state, arm)
    dtype = state.theta.dtype
    x = _check_width(state, "x", x).astype(dtype)
    root = jnp.sqrt(jnp.asarray(weight, dtype))
    x = jnp.where(mask, root * x, 0)
    r = jnp.where(mask, root * jnp.asarray(r, dtype), 0)
    if checks.is_concrete(forget) and np.all(np.asarray(forget) == 1.0):
        updated = _rank_one(state, x, r, arm)
    else:
        updated = _discounted(state, x, r, jnp.asarray(forget, dtype), arm)
        updated = jax.tree.map(lambda a, b: jnp.where(mask, a, b), updated, state)
    return updated._replace(count=state.count + jnp.asarray(mask, jnp.int32))


def ridge_update_batch(
    state: RidgeState,
    X: Float[Array, "batch d"],
    r: Float[Array, " batch"] | float,
    mask: Bool[Array, " batch"] | None = None,
    *,
    arm: Int[Array, " batch"] | None = None,
) -> RidgeState:
    """Learns a batch of rows; the same state as one :func:`ridge_update` per row.

    Args:
        state: the statistics so far.
        X: a row of features each, or a context each if disjoint.
        r: rewards.
        mask: which rows are there; None: all.
        arm: the block of each row; only and always for a disjoint state.

    Raises:
        ValueError: as :func:`ridge_update`, or the leading sizes differ.

    Example:
        >>> state = ridge_update_batch(ridge_init(2), jnp.eye(2), jnp.array([1.0, 4.0]))
        >>> state.theta
        Array([0.5, 2. ], dtype=float32)
    """
    _check_arm(state, arm)
    dtype = state.theta.dtype
    X, r = _check_width(state, "X", X).astype(dtype), jnp.asarray(r, dtype)
    mask = jnp.ones(X.shape[:1], bool) if mask is None else jnp.asarray(mask)
    checks.leading_size("rows", (X, r, mask) if arm is None else (X, r, mask, arm))
    if arm is None and len(X) >= _SMALL_BATCH:
        X, r = jnp.where(mask[:, None], X, 0), jnp.where(mask, r, 0)
        count = state.count + jnp.sum(mask, dtype=jnp.int32)
        return _woodbury(state, X, r)._replace(count=count)

    def learn(state, row):
        x, r, mask, arm = row
        return ridge_update(state, x, r, arm=arm, mask=mask), None

    return jax.lax.scan(learn, state, (X, r, mask, arm))[0]


def ridge_predictions(
    state: RidgeState, X: Float[Array, "*arms d"]
) -> Float[Array, " num_arms"]:
    """``<x_a, theta>`` of every arm.

    Args:
        state: the statistics.
        X: one row per arm, (num_arms, d); or the context (p,) if disjoint.
    """
    X = jnp.asarray(X, state.theta.dtype)
    return _dot(state.theta, X) if state.theta.ndim == 2 else _dot(X, state.theta)


def ridge_widths(
    state: RidgeState, X: Float[Array, "*arms d"]
) -> Float[Array, " num_arms"]:
    """``sqrt(x_a^T V^-1 x_a)`` of every arm, with a finite gradient at 0.

    Args:
        state: the statistics.
        X: one row per arm, (num_arms, d); or the context (p,) if disjoint.

    Example:
        >>> ridge_widths(ridge_init(2, lam=4.0), jnp.array([[3.0, 4.0], [0.0, 0.0]]))
        Array([2.5, 0. ], dtype=float32)
    """
    X = jnp.asarray(X, state.theta.dtype)
    if state.theta.ndim == 2:
        squares = _dot(_dot(state.V_inv, X), X)
    else:
        squares = jnp.sum(_dot(X, state.V_inv) * X, axis=-1)
    # Rounding may leave a square slightly below 0; NaN must stay NaN.
    positive = ~(squares <= 0)
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), 0)


def ridge_radius(
    state: RidgeState,
    *,
    noise: float | Array = 1.0,
    bound: float | Array = 1.0,
    conf: float | Array = 0.01,
) -> Float[Array, ""]:
    """Radius of the confidence ellipsoid of the true parameter.

        beta = noise sqrt(2 log(1 / conf) + logdet) + sqrt(lam) bound

    With probability at least ``1 - conf``, ``||theta - theta*||_V <= beta`` after every
    number of rows at once.

    Args:
        state: the statistics.
        noise: the sub-Gaussian scale of the rewards' noise, >= 0.
        bound: a bound on ``||theta*||``, >= 0.
        conf: the probability of failure, in (0, 1).

    Raises:
        ValueError: a concrete argument is out of its range.

    Source: Abbasi-Yadkori, Pal, Szepesvari, "Improved algorithms for linear stochastic
    bandits" (2011).
    """
    check_radius(noise, bound, conf)
    dtype = state.theta.dtype
    # On the host a tiny probability is not flushed to 0.
    log_conf = math.log(conf) if isinstance(conf, float) else jnp.log(conf)
    spread = jnp.sqrt(state.logdet - 2 * jnp.asarray(log_conf, dtype))
    radius = jnp.asarray(noise, dtype) * spread
    return radius + jnp.sqrt(state.lam) * jnp.asarray(bound, dtype)


def check_radius(
    noise: float | Array, bound: float | Array, conf: float | Array
) -> None:
    """Refuses what :func:`ridge_radius` cannot work with.

    Raises:
        ValueError: ``noise`` or ``bound`` is below 0, or ``conf`` outside (0, 1).
    """
    checks.check_interval("noise", noise, 0.0, closed="[)")
    checks.check_interval("bound", bound, 0.0, closed="[)")
    checks.check_interval("conf", conf, 0.0, 1.0, closed="()")


def ridge_refactor(state: RidgeState) -> RidgeState:
    """Recomputes ``V_inv``, ``theta`` and ``logdet`` from the Gram matrix.

    Removes what rounding has added up over very long runs of rank-one updates.

    Raises:
        ValueError: the state keeps no Gram matrix.

    Example:
        >>> state = ridge_init(1, lam=3.0, keep_gram=True)
        >>> ridge_refactor(ridge_update(state, jnp.ones(1), 2.0)).theta
        Array([0.5], dtype=float32)
    """
    if state.gram is None:
        raise ValueError("state.gram is None: start with ridge_init(keep_gram=True)")
    factor = jnp.linalg.cholesky(state.gram)
    diagonal = jnp.diagonal(factor, axis1=-2, axis2=-1)
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    half = solve_triangular(factor, eye, lower=True)
    return state._replace(
        V_inv=_dot(jnp.swapaxes(half, -2, -1), half),
        theta=cho_solve((factor, True), state.b[..., None])[..., 0],
        logdet=2 * jnp.sum(jnp.log(diagonal / jnp.sqrt(state.lam))),
        logdet_rest=jnp.zeros_like(state.logdet_rest),
    )


def _rank_one(
    state: RidgeState, x: Array, r: Array, arm: Array | int | None
) -> RidgeState:
    V_inv, theta = _block(state.V_inv, arm), _block(state.theta, arm)
    u = _dot(V_inv, x)
    gain = jnp.maximum(_dot(x, u), 0)
    error = r - _dot(x, theta)
    half = u * jax.lax.rsqrt(1 + gain)
    gram = state.gram
    if gram is not None:
        gram = _place(gram, arm, _block(gram, arm) + jnp.outer(x, x))
    return _grow_logdet(state, jnp.log1p(gain))._replace(
        # Squares of one vector: symmetric to the last bit.
        V_inv=_place(state.V_inv, arm, V_inv - jnp.outer(half, half)),
        theta=_place(state.theta, arm, theta + u * (error / (1 + gain))),
        b=_place(state.b, arm, _block(state.b, arm) + r * x),
        gram=gram,
    )


def _discounted(
    state: RidgeState, x: Array, r: Array, forget: Array, arm: Array | int | None
) -> RidgeState:
    if state.gram is None:
        raise ValueError("forget needs the Gram matrix: ridge_init(keep_gram=True)")
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    gram = forget * state.gram + (1 - forget) * state.lam * eye
    gram = _place(gram, arm, _block(gram, arm) + jnp.outer(x, x))
    b = forget * state.b
    b = _place(b, arm, _block(b, arm) + r * x)
    return ridge_refactor(state._replace(gram=gram, b=b))


def _woodbury(state: RidgeState, X: Array, r: Array) -> RidgeState:
    """All rows at once: ``V^-1 -= U S^-1 U^T``, ``U = V^-1 X^T``, ``S = I + X U``."""
    U = _dot(state.V_inv, X.T)
    factor = jnp.linalg.cholesky(jnp.eye(len(X), dtype=X.dtype) + _dot(X, U))
    half = solve_triangular(factor, U.T, lower=True)
    errors = solve_triangular(factor, r - _dot(X, state.theta), lower=True)
    growth = 2 * jnp.sum(jnp.log(jnp.diagonal(factor)))
    return _grow_logdet(state, growth)._replace(
        V_inv=state.V_inv - _dot(half.T, half),
        theta=state.theta + _dot(half.T, errors),
        b=state.b + _dot(r, X),
        gram=None if state.gram is None else state.gram + _dot(X.T, X),
    )


def _grow_logdet(state: RidgeState, growth: Array) -> RidgeState:
    total = add(RunningSum(state.logdet, state.logdet_rest), growth)
    return state._replace(logdet=total.total, logdet_rest=total.rest)


def _dot(a: Array, b: Array) -> Array:
    # An accelerator's default has half the digits, and errors add up over rounds.
    return jnp.matmul(a, b, precision="highest")


def _block(array: Array, arm: Array | int | None) -> Array:
    return array if arm is None else array[arm]


def _place(array: Array, arm: Array | int | None, block: Array) -> Array:
    # Unlike a scatter, it asks in every round only where to write, not whether.
    if arm is None:
        return block
    return jax.lax.dynamic_update_index_in_dim(array, block, arm, 0)


def _check_arm(state: RidgeState, arm: Array | int | None) -> None:
    disjoint = state.theta.ndim == 2
    if not disjoint and arm is not None:
        raise ValueError(f"arm must be None for a shared state, got {arm!r}")
    if disjoint and arm is None:
        raise ValueError("arm is needed to learn a disjoint state, got None")
    checks.check_interval("arm", arm, 0, len(state.theta) - 1)


def _check_width(state: RidgeState, name: str, x: Array) -> Array:
    x, d = jnp.asarray(x), state.theta.shape[-1]
    if not x.ndim or x.shape[-1] != d:
        raise ValueError(f"{name} must end in an axis of width {d}, got {x.shape}")
    return x
