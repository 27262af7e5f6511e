"""The contract battery runs over every public factory of jaxopt_suite."""

import importlib
import inspect
import pkgutil
import typing

import optax
import pytest
from cases import CASES
from optax.experimental import aggregating

import jaxopt_suite
from jaxopt_suite import testing
from jaxopt_suite.core import Environment, Policy, Transformation

CHECKS = {
    optax.GradientTransformation: testing.check_gradient_transformation,
    optax.GradientTransformationExtraArgs: testing.check_gradient_transformation,
    aggregating.Aggregator: testing.check_gradient_transformation,
    Policy: testing.check_policy,
    Transformation: testing.check_transformation,
    Environment: testing.check_environment,
}
# Compiled for eight devices each, which is a third of the battery's time.
ON_DEVICES = ("shard_map_equals_loop", "pmap_equals_loop")


def public_functions():
    """Name to function of all that the subpackages export."""
    found, prefix = {}, f"{jaxopt_suite.__name__}."
    for module in pkgutil.walk_packages(jaxopt_suite.__path__, prefix):
        if not module.ispkg:
            continue
        package = importlib.import_module(module.name)
        for name in getattr(package, "__all__", ()):
            exported = getattr(package, name)
            if inspect.isfunction(exported):
                found[f"{module.name.removeprefix(prefix)}.{name}"] = exported
    return found


def check_for(function):
    """The battery of the shape that a function returns, None if it returns no shape."""
    returns = inspect.get_annotations(function, eval_str=True).get("return")
    for option in (returns, *typing.get_args(returns)):
        if isinstance(option, type) and option in CHECKS:
            return CHECKS[option]
    return None


FUNCTIONS = public_functions()
FACTORIES = {n: f for n, f in FUNCTIONS.items() if check_for(f) is not None}


def test_every_public_factory_has_a_case():
    assert {name.partition(":")[0] for name in CASES} == set(FACTORIES)


def test_every_public_function_says_what_it_returns():
    # A factory without a return annotation would escape the battery.
    silent = [
        name
        for name, function in FUNCTIONS.items()
        if "return" not in inspect.get_annotations(function)
    ]
    assert not silent


def keep_contract(name, leave_out):
    """The battery's report on a factory, without the rules named in ``leave_out``."""
    factory = FACTORIES[name.partition(":")[0]]
    check = check_for(factory)
    assert check is not None
    skip = dict.fromkeys(leave_out, "the other of the two tests runs it")
    return check(factory, **CASES[name] | {"skip": skip | CASES[name].get("skip", {})})


@pytest.mark.parametrize("name", CASES)
def test_factory_keeps_the_contract(name):
    report = keep_contract(name, ON_DEVICES)
    assert report["documented"] == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_factory_keeps_the_contract_on_many_devices(name):
    module = inspect.getmodule(check_for(FACTORIES[name.partition(":")[0]]))
    others = {rule.__name__ for rule in module._RULES} - set(ON_DEVICES)
    report = keep_contract(name, others)
    assert {"passed"} == {report[rule] for rule in ON_DEVICES}
