"""Sizes of the experiment at each scale."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes; the mathematics does not change with the scale.

    Attributes:
        num_seeds: seeds of all comparisons; fits take a fixed multiple of them.
        rows: numbers of the scaling fits.
        horizons: T of the fits over T.
        dimensions: n of the fits over n.
        segments: m of the fits over m.
        log2_scale: doublings of all other horizons and delays of the fits.
        blocks: rounds per sign of the losses behind the convex lower bound.
        draws: draws of the losses behind the lower bounds.
        kinds: losses of the benchmarks, "convex" and "strong".
        lengths: rounds of a segment in the benchmarks, the shortest first.
        counts: numbers of segments for each of these lengths, in order.
        judged: length and number of segments of the judged cell, per kind.
        periods: periods of restarts, in segment lengths.
        bound_horizon: T where the explicit bound is compared.
        bound_cells: kind of loss and number of segments there.
        offset_horizon: T of the control variate and of two-point feedback.
        offset_cells: numbers of segments and delays of the control variate; one is
            (1, 0), which two-point feedback is compared with.
        expected: lengths that the detector is told, in segment lengths.
        problems: problems of the application.
        application_horizon: T there.

    Raises:
        ValueError: fewer than two seeds, of which no spread can be told.
    """

    num_seeds: int = 8
    rows: tuple[int, ...] = tuple(range(1, 16))
    horizons: tuple[int, ...] = (2**14, 2**16, 2**18, 2**20)
    dimensions: tuple[int, ...] = (2, 4, 8, 16)
    segments: tuple[int, ...] = (1, 2, 4, 8, 16)
    log2_scale: int = 0
    blocks: tuple[int, ...] = (64, 128, 256, 512, 1024)
    draws: int = 4000
    kinds: tuple[str, ...] = ("convex", "strong")
    lengths: tuple[int, ...] = (2**14, 2**16)
    counts: tuple[tuple[int, ...], ...] = ((2, 4, 8, 16, 32), (2, 4, 8))
    judged: tuple[tuple[int, int], ...] = ((2**14, 8), (2**16, 8))
    periods: tuple[float, ...] = (1 / 4, 1 / 3, 1 / 2, 2 / 3, 4 / 3, 2.0)
    bound_horizon: int = 2**16
    bound_cells: tuple[tuple[str, int], ...] = (
        ("convex", 1),
        ("convex", 4),
        ("strong", 1),
        ("strong", 4),
    )
    offset_horizon: int = 2**16
    offset_cells: tuple[tuple[int, int], ...] = ((1, 0), (8, 64))
    expected: tuple[float, ...] = (1 / 4, 1 / 2, 1.0, 2.0, 4.0)
    problems: tuple[str, ...] = ("pricing", "drifting")
    application_horizon: int = 2**16

    @property
    def application_seeds(self) -> int:
        """Half of the seeds, two at least."""
        return max(2, self.num_seeds // 2)

    def __post_init__(self):
        if self.num_seeds < 2:
            raise ValueError(f"num_seeds must be >= 2, got {self.num_seeds}")


SCALES = {
    "smoke": Config(
        num_seeds=4,
        rows=(1, 12),
        horizons=(2**14, 2**16, 2**18),
        blocks=(64, 256, 1024),
        draws=1000,
        kinds=("convex",),
        lengths=(2**12,),
        counts=((8,),),
        judged=((2**12, 8),),
        periods=(),
        bound_cells=(("convex", 1),),
        offset_horizon=2**14,
        offset_cells=((1, 0),),
        expected=(1.0,),
        problems=("pricing",),
        application_horizon=2**14,
    ),
    "default": Config(),
    "full": Config(
        num_seeds=64,
        horizons=tuple(2**k for k in range(14, 25, 2)),
        dimensions=(2, 4, 8, 16, 32),
        log2_scale=3,
        draws=40_000,
        lengths=(2**14, 2**16, 2**18),
        counts=((2, 4, 8, 16, 32, 64), (2, 4, 8, 16, 32), (2, 4, 8, 16)),
        bound_horizon=2**20,
        offset_horizon=2**20,
        application_horizon=2**20,
    ),
}
