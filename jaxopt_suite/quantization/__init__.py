"""Quantization-aware training by smoothing the quantized loss.

A :class:`Quantizer` (:func:`make_quantizer`) rounds weights to a scaled grid, to the
nearest value or at random without bias, and knows the variance of the latter.
"""

from jaxopt_suite.quantization.activations import per_token, smooth_activations
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
from jaxopt_suite.quantization.quest import gaussian_scale, quest, walsh_hadamard
from jaxopt_suite.quantization.rounding import (
    Quantizer,
    make_quantizer,
    quantize_tree,
)

__all__ = [
    "Granularity",
    "LotionAdamState",
    "LotionState",
    "QuantFormat",
    "Quantizer",
    "WeightTransform",
    "add_dampening_penalty",
    "add_lotion_penalty",
    "apply_quantized",
    "average_curvature",
    "dampening",
    "default_mask",
    "exact_diagonal",
    "fp4_e2m1",
    "fp8_e4m3",
    "gaussian_scale",
    "get_format",
    "gnb_curvature",
    "hutchinson_diagonal",
    "int_format",
    "lotion_adamw",
    "lsq",
    "make_quantizer",
    "nf4",
    "per_block",
    "per_channel",
    "per_tensor",
    "per_token",
    "pseudo_noise",
    "ptq",
    "quantize_params_fn",
    "quantize_tree",
    "quest",
    "rat",
    "resolve_mask",
    "scale_by_lotion_adam",
    "smooth_activations",
    "ste",
    "ste_clip",
    "walsh_hadamard",
    "where_path",
]
