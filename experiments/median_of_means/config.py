"""Sizes of the experiment at each scale."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes; the mathematics does not change with the scale.

    Attributes:
        num_seeds: fresh seeds that figures of merit are reported on.
        tuning_seeds: other seeds, on which step sizes and clipping levels are chosen.
        repetitions: batches per cell of the estimator's grid.
        laws: names of the laws of the estimator's grid; None for all.
        group_counts: k of the estimator's grid.
        group_sizes: n of the estimator's grid.
        large_repetitions: batches for the exact Cauchy moment.
        dimension: d of the quadratic.
        oracle_calls: gradient samples that every method may use.
        all_methods: whether the peers of the median of means run too.
        horizons: K of the final neighbourhood.
        skews: scale of the skewed part of the noise there.
        floor_group_sizes: n for which the floor is measured; the first is 1.
        floor_draws: batches for the bias that predicts the floor.
        logistic_calls: gradient samples for logistic regression.
        network_seeds: seeds of the network.
        network_steps: gradient steps of the network.
        network_rates: learning rates it chooses from.
        network_clips: clipping levels that its clipped baseline chooses from.

    Raises:
        ValueError: fewer than two seeds, of which no spread can be told.
    """

    num_seeds: int = 64
    tuning_seeds: int = 32
    repetitions: int = 20_000
    laws: tuple[str, ...] | None = None
    group_counts: tuple[int, ...] = (7, 9, 15, 31)
    group_sizes: tuple[int, ...] = (1, 4, 16, 64)
    large_repetitions: int = 400_000
    dimension: int = 20
    oracle_calls: int = 18_000
    all_methods: bool = True
    horizons: tuple[int, ...] = (250, 1000, 4000)
    skews: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0)
    floor_group_sizes: tuple[int, ...] = (1, 4, 16)
    floor_draws: int = 200_000
    logistic_calls: int = 18_000
    network_seeds: int = 5
    network_steps: int = 1_000
    network_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    network_clips: tuple[float, ...] = (0.3, 1.0, 3.0)

    def __post_init__(self):
        if self.num_seeds < 2:
            raise ValueError(f"num_seeds must be >= 2, got {self.num_seeds}")


SCALES = {
    "smoke": Config(
        num_seeds=16,
        tuning_seeds=8,
        repetitions=4_000,
        large_repetitions=100_000,
        laws=("Cauchy", "Cauchy + Pareto"),
        group_counts=(7, 15),
        group_sizes=(1, 4),
        all_methods=False,
        horizons=(250, 4000),
        skews=(0.0, 0.25, 0.5),
        floor_group_sizes=(1, 4),
        logistic_calls=3_000,
        network_seeds=2,
        network_steps=80,
        network_rates=(1e-2,),
        network_clips=(1.0,),
    ),
    "default": Config(),
    "full": Config(
        num_seeds=1024,
        tuning_seeds=256,
        repetitions=1_000_000,
        group_sizes=(1, 4, 16, 64, 256),
        large_repetitions=10_000_000,
        dimension=1000,
        oracle_calls=180_000,
        horizons=(250, 1000, 4000, 16_000, 64_000),
        floor_group_sizes=(1, 4, 16, 64),
        floor_draws=10_000_000,
        logistic_calls=180_000,
        network_seeds=64,
        network_steps=20_000,
    ),
}
