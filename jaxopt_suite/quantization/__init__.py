"""Quantization-aware training by smoothing the quantized loss.

A :class:`Quantizer` (:func:`make_quantizer`) rounds weights to a scaled grid, to the
nearest value or at random without bias, and knows the variance of the latter.
"""

from jaxopt_suite.quantization.activations import per_token, smooth_activations
from jaxopt_suite.quantization.allocation import (
    Allocation,
    auto_granularity,
)
from jaxopt_suite.quantization.baselines import (
    WeightTransform,
    apply_quantized,
    pseudo_noise,
    ptq,
    quantize_params_fn,
    rat,
    ste,
    ste_clip,
)
from jaxopt_suite.quantization.curvature import (
    average_curvature,
    exact_diagonal,
    gnb_curvature,
    hutchinson_diagonal,
)
from jaxopt_suite.quantization.dampening import add_dampening_penalty, dampening
from jaxopt_suite.quantization.export import (
    load_quantized,
    save_quantized,
    to_qwix,
)
from jaxopt_suite.quantization.formats import (
    QuantFormat,
    fp4_e2m1,
    fp8_e4m3,
    get_format,
    int_format,
    nf4,
)
from jaxopt_suite.quantization.granularity import (
    Granularity,
    per_block,
    per_channel,
    per_tensor,
)
from jaxopt_suite.quantization.learned_scale import lsq
from jaxopt_suite.quantization.lotion import LotionState, add_lotion_penalty
from jaxopt_suite.quantization.lotion_adam import (
    LotionAdamState,
    lotion_adamw,
    scale_by_lotion_adam,
)
from jaxopt_suite.quantization.masks import default_mask, resolve_mask, where_path
from jaxopt_suite.quantization.metrics import (
    QuantizedLoss,
    bits_per_weight,
    fraction_on_grid,
    quantization_error,
    quantized_loss,
)
from jaxopt_suite.quantization.packing import (
    pack_int4,
    unpack_int4,
)
from jaxopt_suite.quantization.quest import gaussian_scale, quest, walsh_hadamard
from jaxopt_suite.quantization.rounding import (
    Quantizer,
    make_quantizer,
    quantize_tree,
)
from jaxopt_suite.quantization.smoothing import (
    exact_smoothed_loss,
    flip_gradient,
    gauss_newton_loss,
    monte_carlo_smoothed_loss,
    quadratic_smoothed_loss,
)

__all__ = [
    "Allocation",
    "Granularity",
    "LotionAdamState",
    "LotionState",
    "QuantFormat",
    "QuantizedLoss",
    "Quantizer",
    "WeightTransform",
    "add_dampening_penalty",
    "add_lotion_penalty",
    "apply_quantized",
    "auto_granularity",
    "average_curvature",
    "bits_per_weight",
    "dampening",
    "default_mask",
    "exact_diagonal",
    "exact_smoothed_loss",
    "flip_gradient",
    "fp4_e2m1",
    "fp8_e4m3",
    "fraction_on_grid",
    "gauss_newton_loss",
    "gaussian_scale",
    "get_format",
    "gnb_curvature",
    "hutchinson_diagonal",
    "int_format",
    "load_quantized",
    "lotion_adamw",
    "lsq",
    "make_quantizer",
    "monte_carlo_smoothed_loss",
    "nf4",
    "pack_int4",
    "per_block",
    "per_channel",
    "per_tensor",
    "per_token",
    "pseudo_noise",
    "ptq",
    "quadratic_smoothed_loss",
    "quantization_error",
    "quantize_params_fn",
    "quantize_tree",
    "quantized_loss",
    "quest",
    "rat",
    "resolve_mask",
    "save_quantized",
    "scale_by_lotion_adam",
    "smooth_activations",
    "ste",
    "ste_clip",
    "to_qwix",
    "unpack_int4",
    "walsh_hadamard",
    "where_path",
]
