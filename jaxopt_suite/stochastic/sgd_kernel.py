"""The kernel of an SGD step in one variable on a grid: checks, rows, folds, powers.

The parts that :mod:`jaxopt_suite.stochastic.annealing_oracle` is made of.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxopt_suite.core.checks import check_interval, is_concrete

Law = Float[np.ndarray, " n"] | Float[Array, " n"]
Grid = Float[np.ndarray, " n"] | Float[Array, " n"]

# Standard deviations of a step beyond which a row is cut: 1e-22 of its mass.
WIDTH = 10.0


def check_grid(grid: Grid) -> tuple[Float[np.ndarray, " n"], float]:
    """The grid in float64, and its step.

    Raises:
        ValueError: not one-dimensional, increasing and uniform.
    """
    points = np.asarray(grid, np.float64)
    if points.ndim != 1 or len(points) < 2:
        raise ValueError(f"grid must have shape (n,), n >= 2, got shape {points.shape}")
    steps = np.diff(points)
    # A float32 grid is uniform up to its rounding only.
    if not (np.min(steps) > 0 and np.ptp(steps) <= 1e-3 * np.mean(steps)):
        raise ValueError(
            "grid must be increasing and uniform, as np.linspace makes it, got steps "
            f"from {np.min(steps):g} to {np.max(steps):g}"
        )
    return points, float(np.mean(steps))


def check_rates(name: str, rates: Any, noise_std: Any, step: float) -> None:
    """Requires positive rates, and that the narrowest kernel is no finer than the grid.

    Raises:
        ValueError: they are not, where they are concrete.
    """
    check_interval(name, rates, 0.0, closed="()")
    check_interval("noise_std", noise_std, 0.0, closed="()")
    if not all(map(_is_known, (rates, noise_std))):
        return
    least = np.min(np.asarray(rates) * np.asarray(noise_std), initial=np.inf)
    if step > least * (1 + 1e-6):
        raise ValueError(
            f"grid must have steps of at most {name} * noise_std = {least:g}, got "
            f"{step:g}: use a finer grid"
        )


def _is_known(value):
    if isinstance(value, (list, tuple)):
        return all(map(is_concrete, value))
    return is_concrete(value)


def check_scalar(name: str, value: Any) -> None:
    """Requires a single number, concrete or traced.

    Raises:
        ValueError: it is an array of another shape, or a function.
    """
    if callable(value) or np.ndim(value):
        got = value if callable(value) else f"shape {np.shape(value)}"
        raise ValueError(f"{name} must be a single number, got {got}")


def check_list(name: str, value: Any) -> None:
    """Requires shape ``(m,)`` with at least one entry.

    Raises:
        ValueError: it has another shape.
    """
    if np.ndim(value) != 1 or not np.size(value):
        raise ValueError(
            f"{name} must have shape (m,), m >= 1, got shape {np.shape(value)}"
        )


def check_law(law: Any, points: Float[np.ndarray, " n"]) -> Any:
    """The masses of a law on the grid: a JAX array as it is, all else in NumPy.

    Raises:
        ValueError: another shape than the grid, an integer JAX array, or, where it is
            concrete, a negative mass or a sum other than 1.
    """
    if not isinstance(law, jax.Array):
        law = np.asarray(law)
    elif not jnp.issubdtype(law.dtype, jnp.floating):
        raise ValueError(f"the law must have a floating dtype, got {law.dtype}")
    if jnp.shape(law) != points.shape:
        raise ValueError(
            f"the law must have the shape of the grid {points.shape}, got "
            f"{jnp.shape(law)}"
        )
    if not is_concrete(law):
        return law
    masses = np.asarray(law, np.float64)
    if not (np.min(masses) >= 0 and abs(np.sum(masses) - 1) <= 1e-5):
        raise ValueError(
            "the law must have masses >= 0 that sum to 1, got a least mass of "
            f"{np.min(masses):g} and a sum of {np.sum(masses):g}"
        )
    return law


def tabulate(
    name: str, function: Callable[[Any], Any], points: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Float64 values at points, also of a JAX function.

    Raises:
        ValueError: the function does not act entry by entry, or is not finite.
    """
    with jax.enable_x64(True):
        values = np.asarray(function(points.ravel()), np.float64)
    _check_entries(name, values, points.size)
    if not np.all(np.isfinite(values)):
        place = points.ravel()[np.argmin(np.isfinite(values))]
        raise ValueError(f"{name} must be finite on the grid, it is not at {place:g}")
    return values.reshape(points.shape)


def tabulate_traced(
    name: str, function: Callable[[Any], Any], points: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Values of a JAX function at points, in their dtype.

    Raises:
        ValueError: the function does not act entry by entry.
    """
    values = jnp.asarray(function(points))
    _check_entries(name, values, points.size)
    return values


def _check_entries(name, values, count):
    if values.shape != (count,):
        raise ValueError(
            f"{name} must act entry by entry, got shape {values.shape} for "
            f"{(count,)}: wrap it in jax.vmap"
        )


def banded_kernel(
    points: Float[np.ndarray, " n"],
    slopes: Float[np.ndarray, " n"],
    rate: float,
    noise_std: float,
) -> Any:
    """The transition matrix as a SciPy sparse array with rows cut at WIDTH."""
    from scipy.sparse import csr_array

    count, step = len(points), points[1] - points[0]
    means, spread = points - rate * slopes, rate * noise_std
    reach = min(int(np.ceil(WIDTH * spread / step)), count)
    centers = np.rint((means - points[0]) / step).clip(0, count - 1).astype(int)
    columns = centers[:, None] + np.arange(-reach, reach + 1)
    inside = (columns >= 0) & (columns < count)
    places = points[columns.clip(0, count - 1)]
    logs = np.where(inside, -0.5 * ((places - means[:, None]) / spread) ** 2, -np.inf)
    rows = np.exp(logs - logs.max(axis=1, keepdims=True))
    rows /= rows.sum(axis=1, keepdims=True)
    starts = np.append(0, np.cumsum(inside.sum(axis=1)))
    return csr_array((rows[inside], columns[inside], starts), shape=(count, count))


def after(law: Float[np.ndarray, " n"], kernel: Any, num_steps: int) -> np.ndarray:
    """The law after steps of one sparse kernel, one by one or by squaring."""
    # A product of full matrices takes some n^3 / 20 times as long as a sparse entry.
    squarings = num_steps.bit_length() * len(law) ** 3 / 20
    if num_steps * kernel.nnz <= squarings:
        backward = kernel.T.tocsr()
        for _ in range(num_steps):
            law = backward @ law
        return law
    return _by_squaring(law, kernel.toarray(), num_steps)


def _by_squaring(law: Any, power: Any, num_steps: int) -> Any:
    while True:
        if num_steps % 2:
            law = law @ power
        num_steps //= 2
        if not num_steps:
            return law
        power = square(power)


def square(power: Any) -> Any:
    """The square of a stochastic matrix, with rows that sum to 1 after any number."""
    power = power @ power
    return power / power.sum(axis=1, keepdims=True)


def dense_kernel(
    points: Float[Array, " n"], means: Float[Array, " r"], spread: Any
) -> Float[Array, "r n"]:
    """Rows of the transition matrix in JAX, from the places where the steps lead."""
    return jax.nn.softmax(-0.5 * ((points - means[:, None]) / spread) ** 2, axis=1)


def after_stages(
    points: Float[Array, " n"],
    slopes: Float[Array, " n"],
    rates: Any,
    noise_std: Any,
    law: Float[Array, "..."],
    stage_length: int,
    *,
    even: bool = False,
) -> Float[Array, "..."]:
    """The law after stages, in JAX; folded onto half of the grid where ``even``."""
    rates, noise_std = jnp.broadcast_arrays(
        jnp.asarray(rates, law.dtype), jnp.asarray(noise_std, law.dtype)
    )
    first = len(points) // 2 if even else 0

    # The squarings of one stage are kept for its gradient, not those of all.
    @jax.checkpoint
    def stage(law, setting):
        rate, std = setting
        kernel = dense_kernel(points, (points - rate * slopes)[first:], rate * std)
        law = _by_squaring(law, fold(kernel) if even else kernel, stage_length)
        return law / jnp.sum(law), None

    return jax.lax.scan(stage, law, (rates, noise_std))[0]


def is_even(points: np.ndarray, slopes: np.ndarray, heights: np.ndarray) -> bool:
    """Whether the grid and a function on it are mirror images of themselves."""
    same = lambda a, b: np.allclose(a, b, rtol=1e-12, atol=1e-12 * np.ptp(a))  # noqa: E731
    return (
        same(points, -points[::-1])
        and same(slopes, -slopes[::-1])
        and same(heights, heights[::-1])
    )


def fold(values: Any) -> Any:
    """Adds the left half of the last axis to its mirror image on the right."""
    lib: Any = np if isinstance(values, np.ndarray) else jnp
    count = values.shape[-1]
    left = lib.flip(values[..., : count // 2], axis=-1)
    middle = [(0, 0)] * (values.ndim - 1) + [(count % 2, 0)]
    return values[..., count // 2 :] + lib.pad(left, middle)


def split(values: np.ndarray, even: bool) -> list[np.ndarray]:
    """A law or kernel as its part on ``|x|`` and, without the middle, its odd part."""
    if not even:
        return [values]
    count = values.shape[-1]
    folded = fold(values)
    odd = 2 * values[..., (count + 1) // 2 :] - folded[..., count % 2 :]
    if values.ndim == 1:
        return [folded, odd]
    return [folded[count // 2 :], odd[(count + 1) // 2 :]]


def join(parts: list[np.ndarray], even: bool) -> np.ndarray:
    """The law of which :func:`split` makes these parts."""
    if not even:
        return parts[0]
    folded, odd = parts
    middle = len(folded) - len(odd)
    right, left = (folded[middle:] + odd) / 2, (folded[middle:] - odd) / 2
    # Rounding of the difference leaves no negative mass: the law may start a next run.
    right, left = np.maximum(right, 0.0), np.maximum(left, 0.0)
    return np.concatenate([left[::-1], folded[:middle], right])
