"""The contract and the drivers that every method shares."""

from jaxopt_suite.core.types import Environment, Policy, Problem, Transformation

__all__ = ["Environment", "Policy", "Problem", "Transformation"]
