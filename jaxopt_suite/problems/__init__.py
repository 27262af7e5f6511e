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

__all__ = [
    "LabelledData",
    "breast_cancer",
    "digits",
    "logistic_optimum",
    "logistic_regression",
    "noisy_quadratic",
    "replace_labels",
]
