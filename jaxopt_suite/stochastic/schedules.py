r"""Learning-rate schedules as annealing schedules, and the temperature of a step.

With gradient noise of standard deviation :math:`\sigma` a step of rate :math:`\eta` has
the temperature :math:`T = \eta \sigma^2 / 2`. Import the module, not the names:
``schedules.cosine(1.0, 100)``.

A schedule maps the number of steps so far to a rate, float32 (float64 under x64). All
parameters may be traced. Numbers of steps are whole, below 2^31, and compared as such.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxopt_suite.core.checks import check_interval, is_concrete

Scalar = float | Float[Array, ""]
Size = int | Int[Array, ""]


def constant(eta: Scalar) -> optax.Schedule:
    r"""The rate :math:`\eta` forever.

    Raises:
        ValueError: a concrete ``eta`` is not positive.

    Example:
        >>> constant(0.1)(5)
        Array(0.1, dtype=float32)
    """
    _check_positive(eta=eta)
    return lambda count: _real(eta)


def geometric(eta0: Scalar, etaN: Scalar, N: Size) -> optax.Schedule:
    r"""Geometric decay over N steps, then held; for short runs see linear_to_zero.

    .. math:: \eta_k = \eta_0 (\eta_N / \eta_0)^{\min(k/N, 1)}

    Args:
        eta0: first rate, > 0.
        etaN: last rate, in (0, ``eta0``].
        N: steps of decay.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> round(float(geometric(1.0, 0.01, 10)(5)), 4)
        0.1
    """
    _check_positive(eta0=eta0, etaN=etaN)
    _check_size("N", N)
    _check_floor("etaN", etaN, "eta0", eta0)

    def schedule(count):
        first, last = _real(eta0), _real(etaN)
        share = _real(jnp.minimum(count, _whole(N))) / _real(N)
        return first * jnp.power(last / first, share)

    return schedule


def stagewise(eta0: Scalar, factor: Scalar, stage_length: Size) -> optax.Schedule:
    r"""Decay by stages, :math:`\eta_k = \eta_0 \rho^{\lfloor k/s \rfloor}`.

    Args:
        eta0: first rate, > 0.
        factor: :math:`\rho \in (0, 1)`, from one stage to the next.
        stage_length: :math:`s`, steps of a stage.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> stagewise(1.0, 0.5, 10)(25)
        Array(0.25, dtype=float32)
    """
    _check_positive(eta0=eta0)
    check_interval("factor", factor, 0.0, 1.0, closed="()")
    _check_size("stage_length", stage_length)

    def schedule(count):
        stage = jnp.asarray(count) // _whole(stage_length)
        return _real(eta0) * jnp.power(_real(factor), _real(stage))

    return schedule


def polynomial(eta0: Scalar, tau: Scalar, power: Scalar) -> optax.Schedule:
    r"""Decay with a power of the step count, :math:`\eta_k = \eta_0 (1 + k/\tau)^{-p}`.

    ``polynomial(0.9, 10 / 9, 1.0)`` is the best of all schedules on :math:`x^2/2` with
    unit noise from :math:`E x_0^2 = 9`.

    Args:
        eta0: first rate, > 0.
        tau: :math:`\tau > 0`, the step count at which the decay sets in.
        power: :math:`p \ge 0`.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> polynomial(1.0, 10.0, 0.5)(30)
        Array(0.5, dtype=float32)
    """
    _check_positive(eta0=eta0, tau=tau)
    check_interval("power", power, 0.0)

    def schedule(count):
        return _real(eta0) / jnp.power(1 + _real(count) / _real(tau), _real(power))

    return schedule


def inverse_log(c: Scalar, k0: Scalar = 2.0) -> optax.Schedule:
    r"""Classical simulated annealing, :math:`\eta_k = c / \log(k + k_0)`.

    Args:
        c: scale of the rate, > 0.
        k0: :math:`k_0 \ge 2`.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> round(float(inverse_log(1.0)(0)), 4)
        1.4427

    Source: Hajek, "Cooling Schedules for Optimal Annealing" (1988), Mathematics of
    Operations Research 13.
    """
    _check_positive(c=c)
    check_interval("k0", k0, 2.0)
    return lambda count: _real(c) / jnp.log(_real(count) + _real(k0))


def linear_to_zero(eta0: Scalar, N: Size) -> optax.Schedule:
    r"""Linear decay to 0, :math:`\eta_k = \eta_0 \max(0, 1 - k/N)`.

    On a rippled bowl it beats geometric decay, most of all in short runs.

    Raises:
        ValueError: a concrete argument is not positive.

    Example:
        >>> linear_to_zero(1.0, 10)(8)
        Array(0.2, dtype=float32)
    """
    _check_positive(eta0=eta0)
    _check_size("N", N)
    return lambda count: _real(eta0) * _share_left(count, N)


def cosine(eta0: Scalar, N: Size, floor: Scalar = 0.0) -> optax.Schedule:
    r"""Half a cosine from the first rate to a floor, then held.

    .. math:: \eta_k = \eta_f + (\eta_0 - \eta_f)
        \tfrac12 (1 + \cos(\pi \min(k/N, 1)))

    Args:
        eta0: first rate, > 0.
        N: steps of decay.
        floor: :math:`\eta_f`, the last rate itself (no share of ``eta0``), in
            [0, ``eta0``].

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> round(float(cosine(1.0, 10, floor=0.2)(5)), 4)
        0.6

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm
    Restarts" (2017), arXiv 1608.03983.
    """
    _check_positive(eta0=eta0)
    _check_size("N", N)
    _check_floor("floor", floor, "eta0", eta0)
    return lambda count: _half_cosine(eta0, floor, _share_left(count, N))


def wsd(
    eta0: Scalar, warmup: Size, stable: Size, decay: Size, floor: Scalar = 0.0
) -> optax.Schedule:
    r"""Warmup, stable, decay.

    :math:`\eta_0 (k+1)/\mathrm{warmup}` while k < ``warmup``, :math:`\eta_0` for the
    next ``stable`` steps, then linear to the floor over ``decay`` steps, and held.

    Args:
        eta0: the stable rate, > 0.
        warmup: steps of warmup, >= 0.
        stable: steps at ``eta0``, >= 0.
        decay: steps of decay.
        floor: the last rate itself, in [0, ``eta0``].

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> schedule = wsd(1.0, warmup=4, stable=10, decay=10)
        >>> [float(schedule(k)) for k in (0, 4, 14, 19, 24)]
        [0.25, 1.0, 1.0, 0.5, 0.0]

    Source: Hu et al., "MiniCPM" (2024), arXiv 2404.06395.
    """
    _check_positive(eta0=eta0)
    _check_size("warmup", warmup, 0)
    _check_size("stable", stable, 0)
    _check_size("decay", decay)
    _check_floor("floor", floor, "eta0", eta0)

    def schedule(count):
        peak, last = _real(eta0), _real(floor)
        steady = jnp.asarray(count) - _whole(warmup)
        # In two steps: the sum of two sizes may leave the integers.
        falling = jnp.maximum(jnp.maximum(steady, 0) - _whole(stable), 0)
        fall = last + (peak - last) * _share_left(falling, decay)
        rise = peak * (_real(count) + 1) / jnp.maximum(_real(warmup), 1)
        return jnp.where(steady < 0, rise, fall)

    return schedule


def cyclic(eta_hi: Scalar, eta_lo: Scalar, period: Size) -> optax.Schedule:
    r"""The half :func:`cosine`, restarted every ``period`` steps.

    .. math:: \eta_k = \eta_{lo} + (\eta_{hi} - \eta_{lo})
        \tfrac12 (1 + \cos(\pi (k \bmod P)/P))

    Args:
        eta_hi: rate at the start of a cycle, > 0.
        eta_lo: rate that a cycle nears, in [0, ``eta_hi``].
        period: :math:`P`, steps of a cycle.

    Raises:
        ValueError: a concrete argument is out of range.

    Example:
        >>> cyclic(1.0, 0.2, 10)(20)
        Array(1., dtype=float32)
    """
    _check_positive(eta_hi=eta_hi)
    _check_size("period", period)
    _check_floor("eta_lo", eta_lo, "eta_hi", eta_hi)

    def schedule(count):
        length = _whole(period)
        left = _share_left(jnp.asarray(count) % length, length)
        return _half_cosine(eta_hi, eta_lo, left)

    return schedule


def temperature(
    lr: float | Float[Array, "..."], noise_std: float | Float[Array, "..."]
) -> float | Float[Array, "..."]:
    r"""Temperature of an SGD step, :math:`T = \eta \sigma^2 / 2`.

    For :math:`\sigma` see :func:`jaxopt_suite.stochastic.estimate_noise_std`.

    Raises:
        ValueError: a concrete argument is negative.

    Example:
        >>> temperature(0.02, 10.0)
        1.0
    """
    check_interval("lr", lr, 0.0)
    check_interval("noise_std", noise_std, 0.0)
    # A float first: the square of an integer may leave the integers.
    return 0.5 * lr * noise_std * noise_std


def rate_for_temperature(
    T: float | Float[Array, "..."], noise_std: float | Float[Array, "..."]
) -> float | Float[Array, "..."]:
    r"""Learning rate of an SGD step at a temperature, :math:`\eta = 2 T / \sigma^2`.

    Raises:
        ValueError: a concrete argument is not positive.

    Example:
        >>> rate_for_temperature(1.0, 10.0)
        0.02
    """
    _check_positive(T=T, noise_std=noise_std)
    return 2.0 * T / noise_std / noise_std


def from_temperature(
    T_schedule: optax.ScalarOrSchedule, sigma: Scalar
) -> optax.Schedule:
    r"""Schedule of the rate from one of the temperature, :math:`2 T_k / \sigma^2`.

    Args:
        T_schedule: temperature, a number > 0 or any schedule.
        sigma: standard deviation of an entry of the gradient noise, > 0.

    Raises:
        ValueError: a concrete argument is not positive.

    Example:
        >>> schedule = from_temperature(geometric(0.6, 0.006, 100), sigma=10.0)
        >>> round(float(schedule(50)), 5)
        0.0012
    """
    _check_positive(T_schedule=T_schedule, sigma=sigma)

    def schedule(count):
        now: Any = T_schedule(count) if callable(T_schedule) else T_schedule
        return 2 * _real(now) / _real(sigma) ** 2

    return schedule


def anneal_recipe(
    L: Scalar, sigma: Scalar, T0: Scalar, N: Size, T_end: Scalar
) -> optax.Schedule:
    r"""The default annealing schedule of a landscape whose scales are known.

    :func:`geometric` from :math:`\eta_0 = \min(2 T_0 / \sigma^2, 0.7 / L)`, which is
    stable, to :math:`\min(2 T_{end} / \sigma^2, \eta_0)`.

    Args:
        L: smoothness of the objective, > 0, as ``landscape.smoothness``.
        sigma: standard deviation of an entry of the gradient noise, > 0.
        T0: start temperature, about the landscape's critical temperature or above.
        N: steps of decay.
        T_end: end temperature: about ``2 eps / d`` for a mean excess of ``eps``.

    Raises:
        ValueError: a concrete argument is not positive, or ``T_end`` is above the
            temperature at the start, so that no rate comes near 2 / L.

    Example:
        >>> schedule = anneal_recipe(L=41.5, sigma=10.0, T0=0.6, N=1000, T_end=0.03)
        >>> [round(float(schedule(k)), 5) for k in (0, 1000)]
        [0.012, 0.0006]
    """
    if L is None:
        raise ValueError("L must be > 0, got None: give a bound of your own")
    _check_positive(L=L, sigma=sigma, T0=T0, T_end=T_end)
    _check_size("N", N)
    if all(map(is_concrete, (L, sigma, T0, T_end))):
        hottest = np.minimum(T0, 0.35 * np.square(sigma) / L)
        if np.any(T_end > hottest):
            raise ValueError(
                f"T_end must be at most min(T0, 0.35 sigma^2 / L) = {hottest}, the "
                f"temperature at the start, got {T_end}"
            )
    first = jnp.minimum(2 * _real(T0) / _real(sigma) ** 2, 0.7 / _real(L))
    last = jnp.minimum(2 * _real(T_end) / _real(sigma) ** 2, first)
    return geometric(first, last, N)


def _real(value: Any) -> Array:
    return jnp.asarray(value, jnp.result_type(float))


def _whole(value: Any) -> Array:
    """A size as an integer array, also where a wrapper has made a float of it."""
    return jnp.asarray(value).astype(jnp.int32)


def _share_left(count: Any, size: Any) -> Array:
    """1 - min(count / size, 1), exact to rounding down to the last step."""
    size = _whole(size)
    return _real(jnp.maximum(size - jnp.asarray(count), 0)) / _real(size)


def _half_cosine(high: Any, low: Any, share_left: Array) -> Array:
    # The square of a sine is (1 + cos) / 2 without its cancellation near the end.
    weight = jnp.square(jnp.sin(jnp.pi / 2 * share_left))
    return _real(low) + (_real(high) - _real(low)) * weight


def _check_positive(**values: Any) -> None:
    for name, value in values.items():
        check_interval(name, value, 0.0, closed="()")


def _check_floor(name: str, value: Any, top_name: str, top: Any) -> None:
    check_interval(name, value, 0.0)
    if is_concrete(value) and is_concrete(top) and np.any(value > top):
        raise ValueError(f"{name} must be <= {top_name} = {top}, got {value}")


def _check_size(name: str, value: Any, low: int = 1) -> None:
    """Requires whole numbers from ``low`` on that fit an int32, where concrete."""
    if not is_concrete(value):
        return
    x = np.asarray(value)
    if not np.all((x >= low) & (x < 2**31) & (x == np.floor(x))):
        raise ValueError(f"{name} must be a whole number in [{low}, 2^31), got {value}")
