r"""SGD as annealing: injected noise, annealed SGD and Langevin, and its temperature.

With learning rate :math:`\eta` and gradient noise of standard deviation :math:`\sigma`
per entry, SGD moves like a particle at temperature :math:`T = \eta \sigma^2 / 2`: it
leaves a valley behind a barrier B in about :math:`e^{B/T}` steps and settles T/2 per
coordinate above a minimum. A fixed rate pays for the second with the first; a decaying
one (:mod:`jaxopt_suite.stochastic.schedules`) explores hot and settles cold.
"""

import math
import warnings
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import (
    check_choice,
    check_interval,
    check_key,
    is_concrete,
    leading_size,
)
from jaxopt_suite.core.trees import global_norm, statistics_dtype
from jaxopt_suite.stochastic.bounded_noise import rademacher, uniform
from jaxopt_suite.stochastic.noise import add_noise, gaussian

_LAWS = {"gaussian": gaussian, "rademacher": rademacher, "uniform": uniform}


class InjectGradientNoiseState(NamedTuple):
    """State of :func:`inject_gradient_noise`.

    Attributes:
        key: the key of all draws; never changes.
        count: number of updates so far.
    """

    key: PRNGKeyArray
    count: Int[Array, ""]


def inject_gradient_noise(
    noise_std: optax.ScalarOrSchedule, key: PRNGKeyArray, *, law: str = "gaussian"
) -> optax.GradientTransformationExtraArgs:
    r"""Adds independent centred noise of a given standard deviation to every entry.

    .. math:: g \leftarrow g + \sigma_k \xi_k, \quad E \xi = 0, \quad
        \mathrm{Cov}\, \xi = I

    The draw of update k has the key ``fold_in(key, k)``, folded with the leaf index. A
    concrete ``noise_std`` of 0 draws nothing. Many vmapped chains need a key each, or
    they all get the same noise.

    Args:
        noise_std: :math:`\sigma_k \ge 0`, a number or schedule; may be traced.
        key: typed key.
        law: ``"gaussian"``, ``"rademacher"`` (fair signs) or ``"uniform"`` (on
            :math:`[-\sqrt 3, \sqrt 3)`), all of variance 1.

    Returns:
        A transformation that keeps every dtype.

    Raises:
        ValueError: a concrete ``noise_std`` is negative or no single number, ``key`` is
            no typed key, or the law is unknown.

    Example:
        >>> tx = inject_gradient_noise(0.5, jax.random.key(0), law="rademacher")
        >>> noisy, state = tx.update(jnp.zeros(3), tx.init(jnp.zeros(3)))
        >>> jnp.abs(noisy)
        Array([0.5, 0.5, 0.5], dtype=float32)
    """
    check_interval("noise_std", noise_std, 0.0)
    if not callable(noise_std) and np.ndim(noise_std):
        raise ValueError(
            f"noise_std must be a single number, got shape {np.shape(noise_std)}"
        )
    check_choice("law", law, tuple(_LAWS))
    check_key("key", key)
    silent = is_concrete(noise_std) and not np.any(cast(Any, noise_std))

    def init(params):
        del params
        # A copy: a caller may donate the state, and the factory keeps its key.
        return InjectGradientNoiseState(jax.random.clone(key), jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        if not silent:
            now = _at(noise_std, state.count)
            check_interval("noise_std", now, 0.0)
            noise = _LAWS[law](now)
            draw_key = jax.random.fold_in(state.key, state.count)
            updates = add_noise(draw_key, noise, updates)
        count = jnp.asarray(optax.safe_increment(state.count))
        return updates, InjectGradientNoiseState(state.key, count)

    return optax.GradientTransformationExtraArgs(init, update)


def annealed_sgd(
    schedule: optax.ScalarOrSchedule,
    noise_std: optax.ScalarOrSchedule,
    key: PRNGKeyArray,
    *,
    law: str = "gaussian",
    smoothness: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""SGD on an exact gradient with injected noise, at a scheduled temperature.

    .. math:: x_{k+1} = x_k - \eta_k (\nabla f(x_k) + \sigma \xi_k), \quad
        T_k = \eta_k \sigma^2 / 2

    Gradients of minibatches have their own noise: give them ``noise_std=0``, and read
    their temperature from :func:`temperature_monitor`. With ``noise_std=0`` and a
    constant rate it is ``optax.sgd``.

    Args:
        schedule: :math:`\eta_k`, of :mod:`jaxopt_suite.stochastic.schedules` or any
            other, or a number; may be traced.
        noise_std: :math:`\sigma \ge 0`, a number or schedule; may be traced.
        key: typed key.
        law: law of the noise, as :func:`inject_gradient_noise` names it.
        smoothness: L of the objective where it is known, for a warning where a concrete
            schedule reaches :math:`\eta_k L \ge 2`, at which SGD diverges even on a
            quadratic. Looked at for the counts below 1024 and at the powers of two.

    Raises:
        ValueError: a concrete number of ``schedule`` or ``smoothness`` is not positive,
            or as :func:`inject_gradient_noise`.

    Example:
        >>> from jaxopt_suite.stochastic import schedules
        >>> schedule = schedules.geometric(0.2, 0.0002, 500)
        >>> tx = annealed_sgd(schedule, 1.0, jax.random.key(0))
        >>> x = jnp.array(3.0)
        >>> state = tx.init(x)
        >>> for _ in range(500):
        ...     updates, state = tx.update(x, state, x)
        ...     x = optax.apply_updates(x, updates)
        >>> bool(jnp.abs(x) < 0.2)
        True
    """
    check_interval("schedule", schedule, 0.0, closed="()")
    check_interval("smoothness", smoothness, 0.0, closed="()")
    noise = inject_gradient_noise(noise_std, key, law=law)
    if smoothness is not None:
        _warn_if_unstable(schedule, smoothness)
    return optax.with_extra_args_support(
        optax.chain(noise, optax.scale_by_learning_rate(schedule))
    )


def _warn_if_unstable(schedule: Any, smoothness: Any) -> None:
    counts = np.concatenate([np.arange(1024), 2 ** np.arange(10, 31)])
    with jax.ensure_compile_time_eval():
        rates = _rates_at(schedule, counts) if callable(schedule) else schedule
    if not (is_concrete(rates) and is_concrete(smoothness)):
        return
    largest = np.max(np.asarray(rates) * smoothness)
    if largest >= 2:
        warnings.warn(
            f"schedule * smoothness should stay below 2, got {largest:.4g}: SGD "
            "diverges there; start at a smaller rate",
            stacklevel=3,
        )


def _rates_at(schedule, counts):
    try:
        return jax.vmap(schedule)(counts)
    except jax.errors.JAXTypeError:
        # It branches on the count in Python.
        rates = [schedule(int(count)) for count in counts]
        return np.asarray(rates) if all(map(is_concrete, rates)) else rates


def langevin(
    temperature_schedule: optax.ScalarOrSchedule,
    step_size: optax.ScalarOrSchedule,
    key: PRNGKeyArray,
) -> optax.GradientTransformationExtraArgs:
    r"""Annealed Langevin steps, with temperature and step size uncoupled.

    .. math:: x_{k+1} = x_k - h_k \nabla f(x_k) + \sqrt{2 h_k T_k}\, \xi_k, \quad
        \xi_k \sim N(0, I)

    At a fixed temperature and a small step its law nears :math:`\propto e^{-f/T}`. The
    noise of its own gradients, if any, adds :math:`h_k \sigma^2 / 2` to the
    temperature.

    Args:
        temperature_schedule: :math:`T_k > 0`, a number or schedule; may be traced.
        step_size: :math:`h_k > 0`, likewise; stable below 2 / L.
        key: typed key; the draw of step k has the key ``fold_in(key, k)``, folded with
            the leaf index.

    Raises:
        ValueError: a concrete ``temperature_schedule`` or ``step_size`` is not
            positive.

    Example:
        >>> tx = langevin(1e-6, 0.5, jax.random.key(0))
        >>> updates, state = tx.update(jnp.ones(2), tx.init(jnp.zeros(2)))
        >>> bool(jnp.all(jnp.abs(updates + 0.5) < 0.01))
        True

    Source: Welling and Teh, "Bayesian Learning via Stochastic Gradient Langevin
    Dynamics" (2011), ICML.
    """
    check_interval("temperature_schedule", temperature_schedule, 0.0, closed="()")
    check_interval("step_size", step_size, 0.0, closed="()")

    def noise_std(count):
        return jnp.sqrt(2.0 * _at(temperature_schedule, count) * _at(step_size, count))

    return optax.with_extra_args_support(
        optax.chain(
            optax.scale_by_learning_rate(step_size),
            inject_gradient_noise(noise_std, key),
        )
    )


def estimate_noise_std(
    per_example_grads: PyTree[Float[Array, "examples ..."]],
) -> Float[Array, ""]:
    r"""Standard deviation of a gradient entry over examples.

    .. math:: \hat\sigma^2 = \frac{1}{d (n-1)} \sum_{s \le n} \|g_s - \bar g\|_2^2

    The gradient of a batch of B has noise of standard deviation :math:`\hat\sigma /
    \sqrt B`, so that minibatch SGD has temperature :math:`\eta \hat\sigma^2 / (2B)`.

    Args:
        per_example_grads: leaves with a leading axis of n >= 2 examples, and d entries
            of one example in all.

    Returns:
        :math:`\hat\sigma`, at least float32; NaN for an empty tree.

    Raises:
        ValueError: fewer than 2 examples, or leaves that differ in their number.

    Example:
        >>> estimate_noise_std(jnp.array([[1.0, 0.0], [3.0, 4.0]]))
        Array(2.236068, dtype=float32)
    """
    examples = leading_size("per_example_grads", per_example_grads)
    leaves = jax.tree.leaves(per_example_grads)
    if leaves and examples < 2:
        raise ValueError(
            "per_example_grads must have a leading axis of at least 2 examples, got "
            f"{examples}"
        )
    size = sum(leaf.size // examples for leaf in leaves)
    if not size:
        return jnp.full([], jnp.nan, jnp.float32)
    spread = global_norm(jax.tree.map(_centred, per_example_grads))
    return spread / math.sqrt(size * (examples - 1))


def _centred(x: Array) -> Array:
    wide = x.astype(statistics_dtype(x.dtype))
    return wide - jnp.mean(wide, axis=0)


class TemperatureMonitorState(NamedTuple):
    """State of :func:`temperature_monitor`.

    Attributes:
        count: number of updates so far.
        noise_std: standard deviation of an entry of the mean of the groups, at the
            last update; NaN before the first.
        temperature: that of the last step; NaN before the first.
    """

    count: Int[Array, ""]
    noise_std: Float[Array, ""]
    temperature: Float[Array, ""]


def temperature_monitor(
    learning_rate: optax.ScalarOrSchedule,
) -> optax.GradientTransformationExtraArgs:
    r"""Passes group gradients through and reports the temperature of the SGD step.

    .. math:: T_k = \eta_k \sigma^2 / 2, \qquad
        \sigma = \texttt{estimate\_noise\_std}(g_1, \dots, g_G) / \sqrt G

    Put it before an aggregator: its updates carry a leading axis of G groups (or
    examples). :math:`\sigma` is that of their mean, which is what
    :func:`~jaxopt_suite.stochastic.aggregate_mean` steps along; a median of the groups
    has another. Compare the temperature with the barriers of the loss, or two runs with
    each other.

    Args:
        learning_rate: :math:`\eta_k` of the step that follows, a number or schedule;
            may be traced.

    Raises:
        ValueError: a concrete ``learning_rate`` is not positive, or there are fewer
            than 2 groups.

    Example:
        >>> from jaxopt_suite.stochastic import aggregate_mean
        >>> tx = optax.chain(temperature_monitor(0.1), aggregate_mean(), optax.sgd(0.1))
        >>> grads = 3.0 * jax.random.normal(jax.random.key(0), (9, 10_000))
        >>> updates, state = tx.update(grads, tx.init(jnp.zeros(10_000)))
        >>> round(float(state[0].noise_std), 2), round(float(state[0].temperature), 3)
        (1.0, 0.05)
    """
    check_interval("learning_rate", learning_rate, 0.0, closed="()")

    def init(params):
        dtype = global_norm(params).dtype
        return TemperatureMonitorState(
            jnp.zeros([], jnp.int32),
            jnp.full([], jnp.nan, dtype),
            jnp.full([], jnp.nan, dtype),
        )

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        groups = leading_size("updates", updates)
        if groups == 1:
            raise ValueError(
                "updates must have a leading axis of at least 2 groups, got 1"
            )
        noise_std = estimate_noise_std(updates) / math.sqrt(max(groups, 1))
        rate = _at(learning_rate, state.count)
        return updates, TemperatureMonitorState(
            jnp.asarray(optax.safe_increment(state.count)),
            noise_std.astype(state.noise_std.dtype),
            (rate * noise_std**2 / 2).astype(state.temperature.dtype),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _at(value: optax.ScalarOrSchedule, count: Array) -> Any:
    return value(count) if callable(value) else value
