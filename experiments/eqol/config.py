"""Sizes of the experiment at each scale."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes; the mathematics does not change with the scale. An empty part is left out.

    Attributes:
        num_seeds: seeds of the comparison.
        study_seeds: seeds of the studies over gaps and over the horizon.
        few_seeds: seeds of all other studies, and those that data are reported on.
        tuning_seeds: seeds on which grids are chosen on data.
        rows: names of the synthetic problems.
        horizon: rounds on them.
        everything: whether all baselines run, or the optimistic ones alone.
        delay: constant delay of the feedback on the second problem; 0: none.
        gaps: gaps of the study over gaps.
        gap_horizon: rounds there.
        gap_dimensions: d of the study over d at a fixed gap.
        dimensions: d of the study over d without one.
        growth_horizon: the longest horizon of the study over the horizon; 0: none.
        path_horizon: rounds that are checked one by one.
        heat_rows: problems of the sensitivity maps.
        heat_scales: a of these maps.
        heat_caps: caps of these maps.
        data_sets: names of the labelled data.
        data_rounds: rounds on them.
        extension_rounds: rounds of the generalized and the neural policies; 0: none.
        drift_updates: updates of the ridge statistics; 0: none.
        shop_rounds: rounds in the shop made of click logs; 0: none.

    Raises:
        ValueError: fewer than two seeds, of which no spread can be told.
    """

    num_seeds: int = 12
    study_seeds: int = 16
    few_seeds: int = 8
    tuning_seeds: int = 4
    rows: tuple[str, ...] = ("fixed10", "pool20", "pool5", "fixed5", "pool512")
    horizon: int = 3000
    everything: bool = True
    delay: int = 100
    gaps: tuple[float, ...] = (0.4, 0.2, 0.1)
    gap_horizon: int = 16_000
    gap_dimensions: tuple[int, ...] = (3, 6, 12)
    dimensions: tuple[int, ...] = (4, 8, 16)
    growth_horizon: int = 2**14
    path_horizon: int = 1500
    heat_rows: tuple[str, ...] = ("fixed10", "fixed5")
    heat_scales: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    heat_caps: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0)
    data_sets: tuple[str, ...] = ("digits", "cancer", "wine", "iris")
    data_rounds: int = 4000
    extension_rounds: int = 4000
    drift_updates: int = 1_000_000
    shop_rounds: int = 2000

    def __post_init__(self):
        if self.num_seeds < 2:
            raise ValueError(f"num_seeds must be >= 2, got {self.num_seeds}")


SCALES = {
    "smoke": Config(
        rows=("fixed10", "fixed5"),
        everything=False,
        delay=0,
        study_seeds=8,
        tuning_seeds=2,
        gaps=(0.2,),
        gap_horizon=8_000,
        gap_dimensions=(),
        dimensions=(),
        growth_horizon=0,
        path_horizon=500,
        heat_rows=(),
        data_sets=("wine",),
        data_rounds=2000,
        extension_rounds=0,
        drift_updates=0,
        shop_rounds=0,
    ),
    "default": Config(),
    "full": Config(
        num_seeds=256,
        study_seeds=256,
        few_seeds=256,
        tuning_seeds=64,
        horizon=30_000,
        gap_horizon=160_000,
        dimensions=(4, 8, 16, 32, 64),
        gap_dimensions=(3, 6, 12, 24, 48),
        growth_horizon=2**17,
        data_rounds=40_000,
        extension_rounds=40_000,
        drift_updates=10_000_000,
        shop_rounds=40_000,
    ),
}
