"""The regret bounds of EQOL at lam = S = 1, path by path."""

import numpy as np

from experiments.eqol.policies import CONF, World


def radius(logdet, noise: float) -> np.ndarray:
    """The confidence radius at lam = S = 1, from a log-determinant."""
    return noise * np.sqrt(2 * np.log(1 / CONF) + np.asarray(logdet)) + 1.0


def cost_of_exploration(logdet, horizon, noise: float, cap: float = 1.0):
    """The first part of the regret bounds: ``(1 + cap) beta_T sqrt(2 T logdet_T)``."""
    return (1 + cap) * radius(logdet, noise) * np.sqrt(2 * horizon * logdet)


def gap_bound(logdet, horizon: int, world: World, gap: float, a: float = 0.1):
    r"""The regret bound of EQOL with cap 1 where the best arm leads by ``gap``.

    .. math:: 2 \beta \sqrt{2 n_0 \ell} + \frac{\beta \sqrt{d n_0}}{2 a}
        + \frac{32 \beta^2 \ell}{\Delta}, \qquad
        n_0 = \min\Big(T, \frac{d \beta^2}{4 a^2 \Delta^2}\Big)

    with :math:`\ell` the last log-determinant and :math:`\beta` its radius.
    """
    beta = radius(logdet, world.noise)
    first = np.minimum(horizon, world.d * beta**2 / (4 * a**2 * gap**2))
    residual = beta * np.sqrt(world.d * first) / (2 * a)
    late = 32 * beta**2 * logdet / gap
    return cost_of_exploration(logdet, first, world.noise) + residual + late
