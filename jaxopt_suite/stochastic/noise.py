"""Heavy-tailed noise: the one home of the samplers that every field uses.

Each factory returns a :class:`Noise`: call it as ``noise(key, shape, dtype)``. All
parameters may be traced. A draw uses all 32 (float64: 64) random bits, so that in
float32 a tail is cut at probability 2e-10 and not at the 1e-7 of a 24-bit uniform.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_interval

Shape = Sequence[int]
Scalar = float | Float[Array, ""]


class Noise(NamedTuple):
    """A law that can be sampled.

    Attributes:
        sample: ``sample(key, shape, dtype) -> array``.
        beta_moment: ``beta_moment(q)``, the absolute moment :math:`E|X|^q` where a
            closed form exists and the parameters are concrete, inf where the moment is
            infinite, None where no form is known.

    Example:
        >>> noise = cauchy(scale=2.0)
        >>> noise(jax.random.key(0), (3,)).shape
        (3,)
        >>> round(noise.beta_moment(0.5), 4)
        2.0
    """

    sample: Callable[[PRNGKeyArray, Shape, jnp.dtype], Array]
    beta_moment: Callable[[float], float | None]

    def __call__(
        self, key: PRNGKeyArray, shape: Shape = (), dtype: jnp.dtype | None = None
    ) -> Array:
        """Draws an array; ``dtype`` defaults to JAX's default float."""
        dtype = jnp.dtype(jnp.result_type(float) if dtype is None else dtype)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"dtype must be floating, got {dtype}")
        wide = jnp.promote_types(dtype, jnp.float32)
        return self.sample(key, tuple(shape), wide).astype(dtype)


def _signed_half(key, shape, dtype):
    """A fair sign and a uniform on (0, 1/2], from one draw of bits."""
    width = jnp.finfo(dtype).bits
    bits = jax.random.bits(key, shape, jnp.dtype(f"uint{width}"))
    half = ((bits >> 1).astype(dtype) + 0.5) * (2.0**-width)
    return jnp.where(bits & 1, 1.0, -1.0).astype(dtype), half


def _exponential(key, shape, dtype):
    """Standard exponential, never 0, as fine near 0 as far out."""
    sign, half = _signed_half(key, shape, dtype)
    return jnp.where(sign > 0, -jnp.log(half), -jnp.log1p(-half))


def gaussian(scale: Scalar = 1.0) -> Noise:
    r"""Normal :math:`N(0, s^2)`.

    :math:`E|X|^q = (2s^2)^{q/2} \Gamma((q+1)/2)/\sqrt\pi`.

    Raises:
        ValueError: a concrete ``scale`` is negative.
    """
    check_interval("scale", scale, 0.0)

    def moment(q):
        return (2 * scale**2) ** (q / 2) * math.gamma((q + 1) / 2) / math.sqrt(math.pi)

    return Noise(lambda k, s, d: scale * jax.random.normal(k, s, d), moment)


def cauchy(scale: Scalar = 1.0) -> Noise:
    r"""Cauchy, density :math:`s / (\pi (s^2 + x^2))`; has no mean.

    :math:`E|X|^q = s^q / \cos(\pi q / 2)` for :math:`q < 1`.

    Raises:
        ValueError: a concrete ``scale`` is negative.
    """
    check_interval("scale", scale, 0.0)

    def sample(key, shape, dtype):
        sign, half = _signed_half(key, shape, dtype)
        return scale * sign / jnp.tan(math.pi * half)

    def moment(q):
        return scale**q / math.cos(math.pi * q / 2) if q < 1 else math.inf

    return Noise(sample, moment)


def _stable_moment(index, skew, scale):
    """E|X|^q of an alpha-stable law centred at 0."""

    def moment(q):
        if index == 2:
            return gaussian(math.sqrt(2) * scale).beta_moment(q)
        if q >= index:
            return math.inf
        tangent = skew * math.tan(math.pi * index / 2) if skew else 0.0
        tilt = (1 + tangent**2) ** (q / (2 * index)) * math.cos(
            q * math.atan(tangent) / index
        )
        value = math.gamma(1 - q / index) * math.gamma(q) * math.sin(math.pi * q / 2)
        return scale**q * tilt * value * 2 / math.pi

    return moment


def symmetric_stable(index: Scalar, scale: Scalar = 1.0) -> Noise:
    r"""Symmetric :math:`\alpha`-stable law.

    Its characteristic function is :math:`e^{-|st|^\alpha}`: index 2 is :math:`N(0,
    2s^2)` and index 1 is Cauchy. With :math:`U` uniform on :math:`(-\pi/2, \pi/2)` and
    :math:`W` standard exponential,

    .. math:: X = s \frac{\sin \alpha U}{(\cos U)^{1/\alpha}}
        \left(\frac{\cos((1-\alpha) U)}{W}\right)^{(1-\alpha)/\alpha}

    evaluated in logarithms, with every cosine taken as the sine of the distance to the
    nearer end: no NaN in float32 for an index of 0.3 and above.

    Args:
        index: :math:`\alpha \in (0, 2]`.
        scale: :math:`s \ge 0`.

    Raises:
        ValueError: a concrete argument is out of range.

    Source: Chambers, Mallows, Stuck, "A method for simulating stable random variables"
    (1976), JASA 71.
    """
    check_interval("index", index, 0.0, 2.0, closed="(]")
    check_interval("scale", scale, 0.0)

    def sample(key, shape, dtype):
        key_u, key_w = jax.random.split(key)
        sign, half = _signed_half(key_u, shape, dtype)
        log_w = jnp.log(_exponential(key_w, shape, dtype))
        a = jnp.asarray(index, dtype)
        near_end = (a > 1) & (half < 0.25)
        angle = jnp.where(near_end, 1 - a / 2 + a * half, a * (0.5 - half))
        skewness = jnp.abs(1 - a)
        log_cos = jnp.log(jnp.sin(math.pi * half))
        log_rest = jnp.log(jnp.sin(math.pi * ((1 - skewness) / 2 + skewness * half)))
        log_size = (-log_cos + (1 - a) * (log_rest - log_w)) / a
        return scale * sign * jnp.sin(math.pi * angle) * jnp.exp(log_size)

    return Noise(sample, _stable_moment(index, 0.0, scale))


def skewed_stable(index: Scalar, skew: Scalar, scale: Scalar = 1.0) -> Noise:
    r"""Centred :math:`\alpha`-stable law with skewness, :math:`\alpha \in (1, 2)`.

    .. math:: \log E e^{itX} = -|st|^\alpha
        (1 - i \beta\, \mathrm{sign}(t) \tan(\pi\alpha/2))

    Args:
        index: :math:`\alpha \in (1, 2)`, so that the mean exists; it is 0.
        skew: :math:`\beta \in [-1, 1]`.
        scale: :math:`s \ge 0`.

    Raises:
        ValueError: a concrete argument is out of range.

    Source: Chambers, Mallows, Stuck (1976), JASA 71.
    """
    check_interval("index", index, 1.0, 2.0, closed="()")
    check_interval("skew", skew, -1.0, 1.0)
    check_interval("scale", scale, 0.0)

    def sample(key, shape, dtype):
        key_u, key_w = jax.random.split(key)
        sign, half = _signed_half(key_u, shape, dtype)
        # Within 2.4e-7 of an end, 1e-7 of rounding in the tilt would decide the draw.
        half = jnp.maximum(half, 2.0**-22)
        exponential = _exponential(key_w, shape, dtype)
        a = jnp.asarray(index, dtype)
        tangent = skew * jnp.tan(math.pi * a / 2)
        angle = math.pi * sign * (0.5 - half)
        turned = a * angle + jnp.arctan(tangent)
        rest = jnp.maximum(jnp.cos(angle - turned), jnp.finfo(dtype).eps)
        size = (1 + tangent**2) ** (0.5 / a) * jnp.sin(math.pi * half) ** (-1 / a)
        return (
            scale * size * jnp.sin(turned) * (rest / exponential) ** ((1 - a) / a)
        ).astype(dtype)

    return Noise(sample, _stable_moment(index, skew, scale))


def student_t(df: Scalar, scale: Scalar = 1.0) -> Noise:
    r"""Student's t with ``df`` degrees of freedom; moments below ``df`` are finite.

    Raises:
        ValueError: a concrete ``df`` is not positive or ``scale`` is negative.
    """
    check_interval("df", df, 0.0, closed="()")
    check_interval("scale", scale, 0.0)

    def moment(q):
        if q >= df:
            return math.inf
        log_value = (
            math.lgamma((q + 1) / 2) + math.lgamma((df - q) / 2) - math.lgamma(df / 2)
        )
        return scale**q * df ** (q / 2) * math.exp(log_value) / math.sqrt(math.pi)

    return Noise(lambda k, s, d: scale * jax.random.t(k, df, s, d), moment)


def _power(key, shape, dtype, tail):
    """A fair sign and U^(-1/tail) >= 1."""
    sign, half = _signed_half(key, shape, dtype)
    return sign, jnp.exp(-jnp.log(2 * half) / jnp.asarray(tail, dtype))


def symmetric_pareto(tail: Scalar, scale: Scalar = 1.0) -> Noise:
    r"""Random sign times :math:`s U^{-1/a}`; :math:`E|X|^q = s^q a / (a - q)`, q < a.

    Raises:
        ValueError: a concrete ``tail`` is not positive or ``scale`` is negative.
    """
    check_interval("tail", tail, 0.0, closed="()")
    check_interval("scale", scale, 0.0)

    def sample(key, shape, dtype):
        sign, power = _power(key, shape, dtype, tail)
        return scale * sign * power

    def moment(q):
        return scale**q * tail / (tail - q) if q < tail else math.inf

    return Noise(sample, moment)


def symmetric_lomax(tail: Scalar, scale: Scalar = 1.0) -> Noise:
    r"""Random sign times :math:`s (U^{-1/a} - 1)`; moments below ``tail`` are finite.

    :math:`E|X|^q = s^q a B(q + 1, a - q)`.

    Raises:
        ValueError: a concrete ``tail`` is not positive or ``scale`` is negative.
    """
    check_interval("tail", tail, 0.0, closed="()")
    check_interval("scale", scale, 0.0)

    def sample(key, shape, dtype):
        sign, half = _signed_half(key, shape, dtype)
        # expm1 keeps the small draws exact, where U^(-1/a) - 1 would cancel.
        return scale * sign * jnp.expm1(-jnp.log(2 * half) / jnp.asarray(tail, dtype))

    def moment(q):
        return scale**q * tail * _beta(q + 1, tail - q) if q < tail else math.inf

    return Noise(sample, moment)


def centred_pareto(tail: Scalar, scale: Scalar = 1.0) -> Noise:
    r"""One-sided Pareto minus its mean, :math:`s (U^{-1/a} - a / (a - 1))`.

    With :math:`c = a/(a-1)` and :math:`q < a`,

    .. math:: E|X|^q = s^q \left( a c^{q-a} B(q+1, a-q)
        + \int_1^c (c-x)^q a x^{-a-1} dx \right)

    Args:
        tail: :math:`a > 1`, so that the mean exists.
        scale: :math:`s \ge 0`.

    Raises:
        ValueError: a concrete argument is out of range.
    """
    check_interval("tail", tail, 1.0, closed="()")
    check_interval("scale", scale, 0.0)

    def sample(key, shape, dtype):
        power = jnp.exp(_exponential(key, shape, dtype) / tail)
        return (scale * (power - tail / (tail - 1))).astype(dtype)

    def moment(q):
        if q >= tail:
            return math.inf
        c = tail / (tail - 1)
        above = tail * c ** (q - tail) * _beta(q + 1, tail - q)
        below = _quadrature(lambda x: (c - x) ** q * tail * x ** (-tail - 1), 1.0, c)
        return scale**q * (above + below)

    return Noise(sample, moment)


def centred_exponential(scale: Scalar = 1.0) -> Noise:
    r"""Exponential minus its mean, :math:`s (W - 1)`: skewed, every moment finite.

    :math:`E|X|^q = s^q e^{-1} (\Gamma(q+1) + \int_0^1 y^q e^y dy)`.

    Raises:
        ValueError: a concrete ``scale`` is negative.
    """
    check_interval("scale", scale, 0.0)

    def sample(key, shape, dtype):
        return scale * (_exponential(key, shape, dtype) - 1.0)

    def moment(q):
        below = _quadrature(lambda y: y**q * math.exp(y), 0.0, 1.0)
        return scale**q * (math.gamma(q + 1) + below) / math.e

    return Noise(sample, moment)


def additive(symmetric: Noise, asymmetric: Noise) -> Noise:
    """Sum of independent draws, the additive structured noise ``S + A``.

    Example:
        >>> noise = additive(cauchy(), centred_pareto(1.6, scale=0.5))
        >>> noise(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """

    def sample(key, shape, dtype):
        key_s, key_a = jax.random.split(key)
        return symmetric(key_s, shape, dtype) + asymmetric(key_a, shape, dtype)

    return Noise(sample, lambda q: None)


def mixture(symmetric: Noise, asymmetric: Noise, rho: Scalar) -> Noise:
    r"""Each entry from ``asymmetric`` with probability ``rho``, else ``symmetric``.

    :math:`E|X|^q = (1-\rho) E|S|^q + \rho E|A|^q`.

    Raises:
        ValueError: a concrete ``rho`` is outside [0, 1].
    """
    check_interval("rho", rho, 0.0, 1.0)

    def sample(key, shape, dtype):
        key_s, key_a, key_i = jax.random.split(key, 3)
        from_a = jax.random.uniform(key_i, shape) < rho
        draws_s, draws_a = (
            symmetric(key_s, shape, dtype),
            asymmetric(key_a, shape, dtype),
        )
        return jnp.where(from_a, draws_a, draws_s)

    def moment(q) -> Any:
        parts = [(1 - rho, symmetric.beta_moment(q)), (rho, asymmetric.beta_moment(q))]
        if any(value is None for weight, value in parts if weight > 0):
            return None
        return sum(w * value for w, value in parts if w > 0 and value is not None)

    return Noise(sample, moment)


def add_noise(
    key: PRNGKeyArray, noise: Noise, tree: PyTree, sample_shape: Shape = ()
) -> PyTree:
    """Adds an independent draw to every entry of every leaf.

    Args:
        key: folded with the leaf index.
        noise: the law of an entry.
        tree: floating leaves.
        sample_shape: leading axes of the result, for several draws of the whole tree.

    Example:
        >>> add_noise(jax.random.key(0), gaussian(0.0), jnp.ones(2), (3,)).shape
        (3, 2)
    """
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    noisy = [
        x + noise(jax.random.fold_in(key, i), (*sample_shape, *x.shape), x.dtype)
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, noisy)


def _beta(a: float, b: float) -> float:
    return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))


def _quadrature(integrand, low, high) -> float:
    # Only the host-side moments need SciPy: keep it out of the import.
    from scipy.integrate import quad

    return quad(integrand, low, high, epsabs=1e-12, epsrel=1e-12)[0]
