"""Sizes of the experiment at each scale."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes; the mathematics does not change with the scale.

    Attributes:
        num_seeds: chains of a simulation. The oracle's parts are exact and need none.
        grid_step: of the oracle's grid.
        num_fixed: size of the fine set that stands for any fixed rate.
        decay_powers: decay runs have 14 stages of 2^i steps for these i.
        levy_powers: likewise, 10 stages on one coordinate of levy.
        num_levy_fixed: how many of 16 fixed rates there, the hottest first.
        steps_per_time: n of the discretization: SGD does n steps where the diffusion
            runs for a time of 1.
        diffusion_step: of the grid on which both are compared.
        quench_powers: budgets of the quench study are 14 * 2^i steps for these i.
        quench_coldest: temperature at which its schedules end.
        picture_power: likewise for the length of the run whose laws are drawn.
        plan_stages: stages of the optimized schedule.
        plan_length: steps of each.
        plan_iterations: of its optimization.
        dimension: of the simulated landscape.
        queries: of a simulated run, a power of two.
        simulated_rates: number of fixed rates in the simulation.
        baselines: whether other schedules and other methods run as well.
        baseline_seeds: chains of those other methods.
        confirmed_dimensions: d in which simulated decays confirm the oracle's count of
            queries.
        landscapes: names of the functions of the comparison.
        landscape_queries: of a run on them.
        landscape_seeds: chains on them.
        batch_sizes: of the network's gradients.
        network_seeds: its starts.
        network_steps: its steps.
        network_rates: how many learning rates it is tried with.
    """

    num_seeds: int = 128
    grid_step: float = 0.008
    num_fixed: int = 72
    decay_powers: tuple[int, ...] = tuple(range(7, 16))
    levy_powers: tuple[int, ...] = tuple(range(4, 16))
    num_levy_fixed: int = 16
    steps_per_time: tuple[int, ...] = (50, 100, 200, 400)
    diffusion_step: float = 0.02
    quench_powers: tuple[int, ...] = (7, 8, 9, 10, 11, 12, 13)
    quench_coldest: float = 0.04
    picture_power: int = 13
    plan_stages: int = 14
    plan_length: int = 256
    plan_iterations: int = 40
    dimension: int = 16
    queries: int = 32_768
    simulated_rates: int = 24
    baselines: bool = True
    baseline_seeds: int = 32
    confirmed_dimensions: tuple[int, ...] = (5, 8, 10, 12, 16)
    landscapes: tuple[str, ...] = ("rastrigin", "griewank", "ackley", "levy")
    landscape_queries: int = 8192
    landscape_seeds: int = 256
    batch_sizes: tuple[int, ...] = (8, 16, 32, 64)
    network_seeds: int = 5
    network_steps: int = 2000
    network_rates: int = 8


SCALES = {
    "smoke": Config(
        num_seeds=16,
        levy_powers=tuple(range(4, 12)),
        num_levy_fixed=10,
        steps_per_time=(100, 200),
        diffusion_step=0.035,
        quench_powers=(7, 9),
        quench_coldest=0.08,
        picture_power=10,
        plan_stages=7,
        plan_iterations=4,
        simulated_rates=12,
        baselines=False,
        confirmed_dimensions=(5,),
        landscapes=("rastrigin",),
        landscape_seeds=32,
        batch_sizes=(16,),
        network_seeds=2,
        network_steps=100,
        network_rates=3,
    ),
    "default": Config(),
    "full": Config(
        num_seeds=1024,
        grid_step=0.004,
        num_fixed=288,
        decay_powers=tuple(range(7, 19)),
        levy_powers=tuple(range(4, 19)),
        steps_per_time=(50, 100, 200, 400, 800, 1600),
        diffusion_step=0.01,
        quench_powers=tuple(range(7, 16)),
        quench_coldest=0.03,
        picture_power=16,
        plan_stages=56,
        plan_length=1024,
        plan_iterations=400,
        dimension=64,
        queries=1_048_576,
        simulated_rates=72,
        baseline_seeds=256,
        confirmed_dimensions=(5, 8, 10, 12, 16, 20),
        landscape_queries=131_072,
        landscape_seeds=1024,
        network_seeds=64,
        network_steps=30_000,
        network_rates=24,
    ),
}
