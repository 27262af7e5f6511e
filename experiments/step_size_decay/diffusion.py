"""The diffusion behind SGD: its spectral gap, and how fast SGD nears it.

A frozen temperature T forgets at the rate of the spectral gap, which falls like
exp(-barrier / T): that is what a fixed rate pays. And SGD with n steps per unit of time
follows the annealed diffusion up to O(1/n).
"""

import numpy as np
from scipy.sparse.linalg import expm_multiply

from experiments.claims import Claim, at_most, between
from experiments.figures import GREY, log_axes, new_figure
from experiments.results import Metric
from experiments.step_size_decay.config import Config
from experiments.step_size_decay.landscapes import BARRIER, RASTRIGIN
from jaxopt_suite.stochastic import annealing_oracle as oracle
from jaxopt_suite.stochastic import diffusion_oracle

GAP_TEMPERATURES = (0.25, 0.2, 0.15, 0.12, 0.1)
GAP_AT_A_TENTH, EYRING_KRAMERS_AT_A_TENTH = 1.1842e-5, 1.2210e-5
GAP_HALF_WIDTH, GAP_POINTS = 6.0, 6001
STAGE_TEMPERATURES = np.geomspace(0.6, 0.15, 8)


def eyring_kramers(data: dict[str, np.ndarray], temperatures: np.ndarray) -> np.ndarray:
    """Rate at which the nearest side minimum is left over its saddle."""
    bottom, top = 2 + 4 * np.pi**2 * np.cos(2 * np.pi * data["way"])
    frequency = np.sqrt(bottom * abs(top)) / (2 * np.pi)
    return frequency * np.exp(-data["barrier"] / temperatures)


def diffusion_law(grid: np.ndarray) -> np.ndarray:
    """Law after one unit of time at every stage temperature."""
    law = RASTRIGIN.start(grid)
    for temperature in STAGE_TEMPERATURES:
        generator = diffusion_oracle.langevin_generator(RASTRIGIN.h, temperature, grid)
        law = expm_multiply(generator.T, law)
    return law


def sgd_law(grid: np.ndarray, steps: int) -> np.ndarray:
    """Law of SGD with ``steps`` steps per unit of time, at the same temperatures."""
    law = oracle.propagate_stages(
        RASTRIGIN.gradient,
        grid,
        np.full(len(STAGE_TEMPERATURES), 1 / steps),
        np.sqrt(2 * STAGE_TEMPERATURES * steps),
        RASTRIGIN.start(grid),
        steps,
    )
    return np.asarray(law)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Gaps by temperature, and the laws of the diffusion and of SGD on one grid."""
    del key
    shape = diffusion_oracle.landscape_1d(
        RASTRIGIN.h, -RASTRIGIN.half_width, RASTRIGIN.half_width
    )
    # From the first minimum right of 0 back over the saddle on its left.
    side = int(np.argmin(np.abs(shape.minima))) + 1
    gaps = [
        diffusion_oracle.langevin_spectral_gap(
            RASTRIGIN.h, temperature, -GAP_HALF_WIDTH, GAP_HALF_WIDTH, GAP_POINTS
        )
        for temperature in GAP_TEMPERATURES
    ]
    coarse = RASTRIGIN.grid(config.diffusion_step)
    # Of half the step a point has half the mass.
    fine = 2 * diffusion_law(RASTRIGIN.grid(config.diffusion_step / 2))[::2]
    return {
        "way": np.array([shape.minima[side], shape.saddles[side - 1]]),
        "barrier": shape.barriers[side],
        "critical": np.array(shape.critical_temperature),
        "gaps": np.array(gaps),
        "grid": coarse,
        # Richardson: the jump rates are of second order in the step.
        "diffusion": (4 * fine - diffusion_law(coarse)) / 3,
        "sgd": np.stack([sgd_law(coarse, n) for n in config.steps_per_time]),
    }


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the gaps and the laws."""
    distance = 0.5 * np.abs(data["sgd"] - data["diffusion"]).sum(axis=1)
    temperatures = np.array(GAP_TEMPERATURES)
    metrics = {
        "spectral_gap": Metric(data["gaps"], (("temperature", GAP_TEMPERATURES),)),
        "eyring_kramers": Metric(
            eyring_kramers(data, temperatures), (("temperature", GAP_TEMPERATURES),)
        ),
        "critical_temperature": Metric(data["critical"]),
        "distance_to_diffusion": Metric(
            distance, (("steps_per_time", config.steps_per_time),)
        ),
    }
    figures = {"diffusion": _figure(config, data, distance)}
    claims = (*_gap_claims(data), *_distance_claims(config, distance))
    return metrics, figures, claims


def _gap_slope(gaps: np.ndarray) -> float:
    return float(np.polyfit(1 / np.array(GAP_TEMPERATURES), -np.log(gaps), 1)[0])


def _gap_claims(data):
    gap = data["gaps"][GAP_TEMPERATURES.index(0.1)]
    yield Claim(
        "The barrier of the nearest side minimum, found from h alone: 1.311953 "
        "(deviation)",
        abs(data["barrier"] - BARRIER),
        at_most(1e-6),
    )
    yield Claim(
        "Spectral gap: -log gap grows with 1/T at the height of the barrier, 1.312 "
        "(slope over T = 0.25 to 0.1)",
        _gap_slope(data["gaps"]),
        between(1.27, 1.34),
    )
    yield Claim(
        "Spectral gap at T = 0.1: 1.1842e-5 (relative deviation)",
        abs(gap / GAP_AT_A_TENTH - 1),
        at_most(0.01),
    )
    yield Claim(
        "Spectral gap at T = 0.1: the Eyring-Kramers rate, 1.2210e-5 (relative "
        "deviation)",
        abs(gap / EYRING_KRAMERS_AT_A_TENTH - 1),
        at_most(0.05),
    )
    rate = float(eyring_kramers(data, np.array(0.1)))
    yield Claim(
        "That rate from the found minimum and saddle (relative deviation)",
        abs(rate / EYRING_KRAMERS_AT_A_TENTH - 1),
        at_most(1e-3),
    )


def _distance_claims(config, distance):
    at = dict(zip(config.steps_per_time, distance, strict=True))
    for steps, threshold in ((200, 0.035), (400, 0.018)):
        if steps in at:
            yield Claim(
                f"Total variation from SGD with {steps} steps per unit of time to the "
                "annealed diffusion",
                at[steps],
                at_most(threshold),
            )
    for steps in (100, 200):
        if 2 * steps in at:
            yield Claim(
                "The distance is of first order in the rate: twice the steps over "
                f"{steps} steps",
                at[2 * steps] / at[steps],
                between(0.4, 0.6),
            )


def _figure(config, data, distance):
    figure, panels = new_figure(
        "Rastrigin, A = 1: leaving a valley takes exp(barrier / T); SGD follows the "
        "annealed diffusion",
        columns=3,
    )
    left, middle, right = panels[0]
    inverse = 1 / np.array(GAP_TEMPERATURES)
    left.plot(inverse, data["gaps"], linestyle="", label="spectral gap")
    fine = np.linspace(inverse[0], inverse[-1], 50)
    left.plot(fine, eyring_kramers(data, 1 / fine), marker="", label="Eyring-Kramers")
    left.set(
        xlabel="1 / T",
        ylabel="rate",
        title=f"slope {_gap_slope(data['gaps']):.3f}; barrier {BARRIER:.3f}",
    )
    log_axes(left, "y")
    left.legend()
    steps = np.array(config.steps_per_time)
    middle.plot(steps, distance, label="SGD")
    middle.plot(
        steps,
        distance[-1] * steps[-1] / steps,
        linestyle="--",
        marker="",
        color=GREY,
        label="1/n",
    )
    middle.set(
        xlabel="steps per unit of time n",
        ylabel="total variation to the diffusion",
        title="first order in the rate",
    )
    log_axes(middle, ticks=config.steps_per_time)
    middle.legend()
    _densities(right, config, data)
    return figure


def _densities(axes, config, data):
    grid, step = data["grid"], data["grid"][1] - data["grid"][0]
    axes.fill_between(
        grid, data["diffusion"] / step, color=GREY, alpha=0.25, label="diffusion"
    )
    for index in (0, -1):
        axes.plot(
            grid,
            data["sgd"][index] / step,
            marker="",
            label=f"SGD, n = {config.steps_per_time[index]}",
        )
    axes.set(
        xlim=(-2, 2.5),
        xlabel="x",
        ylabel="density",
        title="laws after 8 units of time",
    )
    axes.legend()
