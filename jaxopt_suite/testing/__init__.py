"""The contract battery: run it on a factory of your own, with or without pytest.

Each function builds the factory's method in many ways (concrete and traced, eager and
jitted, vmapped, over devices, restarted) and raises an AssertionError that names the
first rule that is broken, or returns a report of all rules.
"""

from jaxopt_suite.testing.environment import check_environment
from jaxopt_suite.testing.gradient_transformation import check_gradient_transformation
from jaxopt_suite.testing.policy import check_policy
from jaxopt_suite.testing.transformation import check_transformation

__all__ = [
    "check_environment",
    "check_gradient_transformation",
    "check_policy",
    "check_transformation",
]
