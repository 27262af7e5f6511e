"""Sizes of the experiment at each scale."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes; the mathematics does not change with the scale. An empty part is left out.

    Attributes:
        num_seeds: seeds of the first problem of the comparison.
        other_seeds: seeds of its other problems, and of anytime against known horizon.
        study_seeds: seeds of the growth over rounds of the first problem.
        few_seeds: seeds of all other studies.
        data_seeds: seeds on labelled data.
        rows: names of the synthetic problems of the comparison.
        horizon: rounds on them.
        member_counts: sizes of the ensembles besides those that depend on the problem.
        everything: whether all baselines and variants run.
        growth_dimensions: d of the growth over rounds.
        growth_horizon: the longest horizon there.
        refresh_dimensions: d for which refreshes are counted.
        refresh_horizon: rounds there, a power of two.
        growths: thresholds of the trigger that are compared.
        trigger_rounds: rows of the data on which triggers are compared; 0: none.
        arm_counts: K of the study over K.
        arm_dimension: d there.
        arm_rounds: rounds there.
        dimensions: d of the study over d.
        dimension_rounds: rounds there.
        anytime: whether ensembles without a known horizon run.
        diversity_dimensions: d for which the spread of the ensemble is measured.
        switch_growths: thresholds of the trigger for rarely switching policies.
        data_sets: names of the labelled data.
        data_rounds: rounds on them.

    Raises:
        ValueError: fewer than two seeds, of which no spread can be told.
    """

    num_seeds: int = 64
    other_seeds: int = 24
    study_seeds: int = 16
    few_seeds: int = 8
    data_seeds: int = 6
    rows: tuple[str, ...] = ("fixed10", "pool20", "pool5")
    horizon: int = 3000
    member_counts: tuple[int, ...] = (1, 2, 5)
    everything: bool = True
    growth_dimensions: tuple[int, ...] = (5, 10, 20)
    growth_horizon: int = 2**15
    refresh_dimensions: tuple[int, ...] = (5, 10, 20, 40)
    refresh_horizon: int = 2**14
    growths: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    trigger_rounds: int = 1000
    arm_counts: tuple[int, ...] = (10, 30, 100, 300, 1000)
    arm_dimension: int = 20
    arm_rounds: int = 2000
    dimensions: tuple[int, ...] = (4, 8, 16)
    dimension_rounds: int = 1000
    anytime: bool = True
    diversity_dimensions: tuple[int, ...] = (10, 20, 50)
    switch_growths: tuple[float, ...] = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
    data_sets: tuple[str, ...] = ("digits", "wine", "cancer")
    data_rounds: int = 4000

    def __post_init__(self):
        if self.num_seeds < 2:
            raise ValueError(f"num_seeds must be >= 2, got {self.num_seeds}")


SCALES = {
    "smoke": Config(
        num_seeds=12,
        few_seeds=4,
        rows=("fixed10",),
        member_counts=(),
        everything=False,
        growth_dimensions=(),
        refresh_dimensions=(5, 10),
        refresh_horizon=2**11,
        growths=(1.0,),
        trigger_rounds=0,
        arm_counts=(),
        dimensions=(),
        anytime=False,
        diversity_dimensions=(10,),
        switch_growths=(),
        data_sets=(),
    ),
    "default": Config(),
    "full": Config(
        num_seeds=64,
        other_seeds=64,
        study_seeds=64,
        few_seeds=64,
        data_seeds=64,
        horizon=30_000,
        growth_dimensions=(5, 10, 20, 50, 100, 200),
        growth_horizon=2**20,
        refresh_dimensions=(5, 10, 20, 50, 100, 200),
        refresh_horizon=2**20,
        arm_counts=(10, 30, 100, 300, 1000, 3000, 10_000),
        arm_dimension=200,
        arm_rounds=20_000,
        dimensions=(4, 8, 16, 32, 64),
        dimension_rounds=10_000,
        diversity_dimensions=(10, 20, 50, 100, 200),
        data_rounds=40_000,
    ),
}
