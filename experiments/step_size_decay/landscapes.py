"""One coordinate of a separable landscape, as the exact oracle takes it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxopt_suite import problems
from jaxopt_suite.stochastic import schedules
from jaxopt_suite.stochastic.diffusion_oracle import gibbs


class Coordinate(NamedTuple):
    """A function h of one variable with its noise, its start and its grid.

    Attributes:
        h: entry by entry.
        gradient: h', likewise.
        noise_std: standard deviation of the gradient noise.
        half_width: the grid is from minus to plus this.
        centre: the chains start at N(centre, spread^2).
        spread: likewise.
    """

    h: Callable[[Any], Any]
    gradient: Callable[[Any], Any]
    noise_std: float
    half_width: float
    centre: float
    spread: float

    def rates(self, temperatures: Any) -> np.ndarray:
        """The learning rates of these temperatures."""
        at: Any = np.asarray(temperatures)
        return np.asarray(schedules.rate_for_temperature(at, self.noise_std))

    def grid(self, step: float) -> np.ndarray:
        """A symmetric grid whose step is at most ``step``."""
        # A quotient that is whole but for rounding is whole.
        cells = int(np.ceil(self.half_width / step - 1e-9))
        return np.linspace(-self.half_width, self.half_width, 2 * cells + 1)

    def coarsest_grid(self, temperature: float) -> np.ndarray:
        """The fewest points with which the oracle is exact at this temperature.

        Its step is the standard deviation of a step of SGD, 2 T / noise_std.
        """
        return self.grid(2 * temperature / self.noise_std)

    def start(self, grid: np.ndarray) -> np.ndarray:
        """The first law."""
        return gibbs(lambda x: (x - self.centre) ** 2 / 2, self.spread**2, grid)


def _with_gradient(h) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    # Jitted once: the oracle evaluates them on many grids.
    return jax.jit(h), jax.jit(jax.vmap(jax.grad(h)))


# The reference landscape: wells near the whole numbers.
RASTRIGIN = Coordinate(
    *_with_gradient(problems.rastrigin(1, A=1.0).separable), 10.0, 4.4, 3.0, 0.5
)
LEVY = Coordinate(*_with_gradient(problems.levy_coordinate), 7.0, 6.0, 2.7, 0.3)
# Out of its nearest side minimum, the highest there is.
BARRIER = 1.311953
