"""Landscapes that break an assumption of annealing, to see what happens then.

They have a rough edge, a plain without slope, or symmetric copies of the minimum.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxopt_suite.core.checks import check_integer
from jaxopt_suite.problems.landscape import Landscape, as_floating, start_in


def schwefel(d: int) -> Landscape:
    r"""Wells that deepen toward the edge of the box, far from the next best.

    .. math:: f(x) = 418.9829\,d - \sum_i x_i \sin \sqrt{|x_i|}, \quad |x_i| \le 500,
        \qquad f = 0 \text{ at } x_i = 420.9687

    Outside the box it is the value at the nearest point of it plus the squared
    distance. Neither smooth (the curvature is infinite at 0) nor a bowl: the second
    best well is at the other end of the box. Starts uniformly in the box.

    Args:
        d: dimension; static.

    Raises:
        ValueError: ``d`` < 1.

    Example:
        >>> schwefel(1).value(jnp.zeros(1)).round()
        Array(419., dtype=float32)
    """
    check_integer("d", d)
    domain = (-500.0, 500.0)

    def inside(x):
        # The derivative of the root at 0 is infinite; that of the product is 0.
        is_zero = x == 0
        root = jnp.sqrt(jnp.where(is_zero, 1.0, jnp.abs(x)))
        return 418.9828872724338 - jnp.where(is_zero, 0.0, x * jnp.sin(root))

    def h(x):
        nearest = jnp.clip(x, *domain)
        return inside(nearest) + (x - nearest) ** 2

    return Landscape(
        value=lambda x: jnp.sum(h(x)),
        minimizer=jnp.full(d, 420.9687463599820),
        min_value=0.0,
        domain=domain,
        sample_init=start_in(domain, d),
        smoothness=None,
        # Up to the top of the ridge on its left.
        in_basin=lambda x: jnp.all((x > 302.5249) & (x <= domain[1])),
        separable=h,
    )


def michalewicz(d: int, m: int = 10) -> Landscape:
    r"""Narrow valleys in flat land, steeper with every coordinate.

    .. math:: f(x) = -\sum_i \sin x_i \sin^{2m}(i x_i^2 / \pi), \quad
        0 \le x_i \le \pi

    Outside the box it is the value at the nearest point of it plus the squared
    distance. The minimizer is found per coordinate when the landscape is made. Smooth,
    with a bound that grows with :math:`d^2`; but the plain around the valleys has no
    slope, so nothing leads to them. Starts uniformly in the box.

    Args:
        d: dimension; static.
        m: steepness of the valleys; static.

    Raises:
        ValueError: ``d`` or ``m`` < 1.

    Example:
        >>> round(michalewicz(2).min_value, 4)
        -1.8013
    """
    check_integer("d", d)
    check_integer("m", m)
    domain, order = (0.0, math.pi), np.arange(1.0, d + 1)
    found = np.array([_michalewicz_minimizer(i, m) for i in order])

    def terms(x, i):
        nearest = jnp.clip(x, *domain)
        valley = jnp.sin(i * nearest**2 / jnp.pi) ** (2 * m)
        return -jnp.sin(nearest) * valley + (x - nearest) ** 2

    def in_basin(x):
        # The valleys of a coordinate are divided by the zeros of the inner sine.
        valley = jnp.floor(order.astype(x.dtype) * (x / jnp.pi) ** 2)
        inside = (x >= domain[0]) & (x <= domain[1])
        return jnp.all(inside & (valley == np.floor(order * (found / np.pi) ** 2)))

    least = -np.sin(found) * np.sin(order * found**2 / np.pi) ** (2 * m)
    bend = 4 * d * math.sqrt(2 * m) * (1 + 0.5 / math.pi) + 8 * m * d**2
    return Landscape(
        value=lambda x: jnp.sum(terms(x, order.astype(x.dtype))),
        minimizer=jnp.asarray(found),
        min_value=float(np.sum(least)),
        domain=domain,
        sample_init=start_in(domain, d),
        smoothness=1 + bend,
        in_basin=in_basin,
        separable=(lambda x: terms(x, 1)) if d == 1 else None,
    )


def _michalewicz_minimizer(i: float, m: int) -> float:
    """The best point of a fine grid, then the root of the derivative around it."""
    from scipy.optimize import brentq

    def slope(x):
        inner = i * x**2 / np.pi
        steep = 4 * m * i * x / np.pi * np.sin(x) * np.cos(inner)
        return -(np.sin(inner) ** (2 * m - 1)) * (np.cos(x) * np.sin(inner) + steep)

    # Valleys are equally wide in x^2, and sharper than a sine by sqrt(m).
    share = np.linspace(0.0, 1.0, int(i) * math.ceil(20 * math.sqrt(m)) + 1)
    grid = np.pi * np.sqrt(share)
    place = np.argmax(np.sin(grid) * np.sin(i * grid**2 / np.pi) ** (2 * m))
    found: float = brentq(slope, grid[place - 1], grid[place + 1], xtol=1e-14)  # pyright: ignore[reportAssignmentType]
    return found


def drop_wave() -> Landscape:
    r"""Circular waves that die away, in two dimensions.

    .. math:: f(x) = -\frac{1 + \cos 12 r}{r^2 / 2 + 2}, \quad
        r^2 = \|x\|^2 + 10^{-12}, \qquad f(0) = -1

    Smooth, but not dissipative: it is 0 far out. The wells are rings, whose area grows
    with the radius. Starts uniformly in [-5.12, 5.12]^2.

    Example:
        >>> drop_wave().value(jnp.zeros(2))
        Array(-1., dtype=float32)
    """
    domain = (-5.12, 5.12)

    def value(x):
        # The constant gives the root a derivative at 0; it moves f by 1e-10 at most.
        square = jnp.sum(x**2) + 1e-12
        return -(1 + jnp.cos(12 * jnp.sqrt(square))) / (0.5 * square + 2)

    return Landscape(
        value=value,
        minimizer=jnp.zeros(2),
        min_value=-1.0,
        domain=domain,
        sample_init=start_in(domain, 2),
        smoothness=76.7,
        in_basin=lambda x: jnp.sum(x**2) < (math.pi / 12) ** 2,
        separable=None,
    )


def schaffer_n2() -> Landscape:
    r"""Ever faster waves over a cross of valleys, in two dimensions.

    .. math:: f(x) = \frac12 + \frac{\sin^2(x_1^2 - x_2^2) - 1/2}
        {(1 + \|x\|^2 / 1000)^2}, \qquad f(0) = 0

    Smooth (the curvature is at most 2006, on the way out), but not dissipative: it is
    1/2 far out. Starts uniformly in [-100, 100]^2.

    Example:
        >>> schaffer_n2().value(jnp.zeros(2))
        Array(0., dtype=float32)
    """
    domain = (-100.0, 100.0)

    def value(x):
        wave = jnp.sin(x[0] ** 2 - x[1] ** 2) ** 2 - 0.5
        return 0.5 + wave / (1 + jnp.sum(x**2) / 1000) ** 2

    return Landscape(
        value=value,
        minimizer=jnp.zeros(2),
        min_value=0.0,
        domain=domain,
        sample_init=start_in(domain, 2),
        smoothness=2006.0,
        in_basin=lambda x: jnp.sum(x**2) < math.pi / 2,
        separable=None,
    )


def neural_toy(key: PRNGKeyArray) -> Landscape:
    r"""Fits a small network to the outputs of another one of the same size.

    .. math:: f(\theta) = \frac1{64} \sum_{j \le 64} (y_j - v^T \tanh(W x_j + b) - c)^2

    with 16 hidden units, :math:`x_j \sim N(0, I_2)` and targets of a network with
    normal weights, which is the minimizer, so the least value is 0. Not annealable in
    the strict sense: hidden units may be permuted and mirrored, so there are
    :math:`16!\,2^{16}` minimizers, and f does not grow in every direction. So the
    "well" is all that explains 99 % of the variance of the targets. Starts at an
    independent network of the same law.

    Args:
        key: draws the inputs and the weights behind the targets.

    Returns:
        A landscape of dimension 65: the entries of W, b, v and c in a row.

    Example:
        >>> neural_toy(jax.random.key(0)).minimizer.shape
        (65,)
    """
    inputs_key, weights_key = jax.random.split(key)
    num_inputs, width = 2, 16
    inputs = jax.random.normal(inputs_key, (64, num_inputs))
    d = width * (num_inputs + 2) + 1
    sizes = np.ones(d)
    sizes[-width - 1 : -1] = 1 / math.sqrt(width)

    def sample(key):
        return jnp.asarray(sizes, float) * jax.random.normal(key, (d,))

    def predict(weights: Float[Array, " 65"]):
        weights = as_floating(weights)
        inner, bias, outer = jnp.split(
            weights[:-1], [num_inputs * width, (num_inputs + 1) * width]
        )
        inner = inner.reshape(width, num_inputs)
        hidden = jnp.tanh(inputs.astype(weights.dtype) @ inner.T + bias)
        return hidden @ outer + weights[-1]

    minimizer = sample(weights_key)
    targets = jax.jit(predict)(minimizer)

    def value(weights):
        outputs = predict(weights)
        return jnp.mean((targets.astype(outputs.dtype) - outputs) ** 2)

    return Landscape(
        value=value,
        minimizer=minimizer,
        min_value=0.0,
        domain=(-3.0, 3.0),
        sample_init=sample,
        smoothness=None,
        in_basin=lambda weights: value(weights) < 0.01 * jnp.var(targets),
        separable=None,
    )
