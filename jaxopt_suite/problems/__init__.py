"""Benchmark problems, environments and data, one file per field."""

from jaxopt_suite.problems.stochastic import (
    LabelledData,
    breast_cancer,
    digits,
    logistic_optimum,
    logistic_regression,
    noisy_quadratic,
    replace_labels,
)
from jaxopt_suite.problems.text import (
    CharacterText,
    character_text,
    context_windows,
    help_topics,
)

__all__ = [
    "CharacterText",
    "LabelledData",
    "breast_cancer",
    "character_text",
    "context_windows",
    "digits",
    "help_topics",
    "logistic_optimum",
    "logistic_regression",
    "noisy_quadratic",
    "replace_labels",
]
