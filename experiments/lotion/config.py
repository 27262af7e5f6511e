"""Sizes of the experiment at each scale."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes; the mathematics does not change with the scale.

    Attributes:
        num_seeds: seeds of the parts that train on a task of their own.
        landscape_nodes: nodes a side of the map of the two-weight landscape.
        slice_points: points of the slice through it; twice as many for its steps.
        dimension: d of the linear regression.
        bases: eigenbases of its covariance, ``"diag"`` and ``"rot"``.
        regression_steps: Adam steps there, a multiple of 20.
        regression_rates: learning rates that every method chooses from there.
        regression_batch: examples a step; None for the gradient of the population.
        widths: hidden units k of the two-layer network; none leaves the part out.
        two_layer_steps: Adam steps there.
        two_layer_rates: learning rates that both methods choose from there.
        formats: of the landscape, and what digits are fine-tuned to.
        pretraining_steps: Adam steps in float32 before that; a tenth of it follows.
        finetune_rates: learning rates that every method chooses from for the latter.
        all_methods: whether all peers run on digits and on text, or a few.
        language_seeds: seeds of the character network.
        language_steps: Adam steps there, a multiple of ``language_rows``.
        language_rates: learning rates that every method chooses from there.
        language_rows: points of its loss curves after the start.
        transformer_layers: blocks of the transformer on characters.
        transformer_width: numbers per position there.
        transformer_heads: heads of attention there.
        transformer_context: characters it sees.
        transformer_batch: texts a step.
        transformer_steps: Adam steps, a multiple of ``transformer_rows``; 0 leaves the
            part out.
        transformer_rate: its learning rate, the same for all methods.
        transformer_rows: points of its loss curves after the start.
        transformer_windows: validation texts.
        transformer_seeds: seeds of PTQ, QAT and LOTION there.
        transformer_peer_seeds: seeds of the other methods there.

    Raises:
        ValueError: fewer than two seeds, of which no spread can be told.
    """

    num_seeds: int = 4
    landscape_nodes: int = 161
    slice_points: int = 2_000
    dimension: int = 512
    bases: tuple[str, ...] = ("diag", "rot")
    regression_steps: int = 4_000
    regression_rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
    regression_batch: int | None = None
    widths: tuple[int, ...] = (1, 4, 16, 64)
    two_layer_steps: int = 2_000
    two_layer_rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    formats: tuple[str, ...] = ("int2", "int3", "int4")
    pretraining_steps: int = 2_000
    finetune_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    all_methods: bool = True
    language_seeds: int = 3
    language_steps: int = 2_000
    language_rates: tuple[float, ...] = (0.01, 0.03)
    language_rows: int = 5
    transformer_layers: int = 2
    transformer_width: int = 64
    transformer_heads: int = 2
    transformer_context: int = 64
    transformer_batch: int = 8
    transformer_steps: int = 1_500
    transformer_rate: float = 6e-3
    transformer_rows: int = 6
    transformer_windows: int = 64
    transformer_seeds: int = 3
    transformer_peer_seeds: int = 2

    def __post_init__(self):
        if self.num_seeds < 2:
            raise ValueError(f"num_seeds must be >= 2, got {self.num_seeds}")


SCALES = {
    "smoke": Config(
        num_seeds=2,
        landscape_nodes=41,
        bases=("diag",),
        regression_steps=1_000,
        regression_rates=(0.01, 0.1),
        widths=(),
        formats=("int2",),
        pretraining_steps=300,
        finetune_rates=(1e-2,),
        all_methods=False,
        language_seeds=1,
        language_steps=500,
        language_rates=(0.03,),
        language_rows=1,
        transformer_steps=0,
    ),
    "default": Config(),
    "full": Config(
        num_seeds=16,
        landscape_nodes=401,
        dimension=12_000,
        regression_steps=20_000,
        regression_batch=256,
        widths=(1, 4, 16, 64, 256, 1024),
        two_layer_steps=20_000,
        pretraining_steps=20_000,
        language_seeds=16,
        transformer_layers=4,
        transformer_width=128,
        transformer_heads=4,
        transformer_context=128,
        transformer_batch=32,
        transformer_steps=6_000,
        transformer_rate=3e-3,
        transformer_windows=360,
        transformer_peer_seeds=3,
    ),
}
