"""Argument checks: what passes, what is refused, and what the message says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.core.checks import (
    check_choice,
    check_floating,
    check_integer,
    check_interval,
    is_concrete,
    leading_size,
)


def inside_jit(check):
    """Runs ``check`` on a traced scalar, as a sweep over a hyperparameter does."""
    jax.jit(lambda value: check(value) or value)(3.0)


@pytest.mark.parametrize(
    "value", [1, 1.5, True, np.float32(2.0), np.arange(3), jnp.ones(2), jnp.nan]
)
def test_numbers_and_arrays_are_concrete(value):
    assert is_concrete(value)


@pytest.mark.parametrize("value", [None, "0.1", lambda count: 0.1, [1.0, 2.0]])
def test_schedules_and_other_objects_are_not_concrete(value):
    assert not is_concrete(value)


def test_tracers_are_not_concrete():
    inside_jit(lambda value: (None, is_concrete(value) and pytest.fail("concrete"))[0])


@pytest.mark.parametrize(
    ("closed", "allowed_at_low", "allowed_at_high"),
    [
        ("[]", True, True),
        ("(]", False, True),
        ("[)", True, False),
        ("()", False, False),
    ],
)
def test_the_ends_of_an_interval(closed, allowed_at_low, allowed_at_high):
    def passes(value):
        try:
            check_interval("x", value, 0.0, 1.0, closed=closed)
        except ValueError:
            return False
        return True

    assert [passes(v) for v in (0.0, 0.5, 1.0)] == [
        allowed_at_low,
        True,
        allowed_at_high,
    ]
    assert not passes(-0.1)
    assert not passes(1.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2.0, 0.0, 1.0, "(]"), r"^beta must be in \(0, 1\], got 2\.0$"),
        ((-1, 0.0, np.inf, "[]"), r"^beta must be >= 0, got -1$"),
        ((0.0, 0.0, np.inf, "()"), r"^beta must be > 0, got 0\.0$"),
        ((np.inf, 0.0, np.inf, "()"), r"^beta must be finite and > 0, got inf$"),
        (([1.0, -1.0], 0.0, np.inf, "[]"), r"^beta must be >= 0, got \[ 1\. -1\.\]$"),
        (("1", 0.0, 1.0, "[]"), r"^beta must be a real number, got '1'$"),
        ((1j, 0.0, 1.0, "[]"), r"^beta must be a real number, got 1j$"),
        ((np.nan, 0.0, 1.0, "[]"), r"^beta must be in \[0, 1\], got nan$"),
    ],
)
def test_the_message_has_name_value_and_interval(arguments, message):
    value, low, high, closed = arguments
    with pytest.raises(ValueError, match=message):
        check_interval("beta", value, low, high, closed=closed)


def test_one_bad_entry_of_an_array_is_enough():
    check_interval("lr", np.array([0.1, 0.9]), 0.0, 1.0)
    check_interval("lr", jnp.array([0.1, 0.9]), 0.0, 1.0)
    for bad in (np.array([0.1, 1.9]), jnp.array([0.1, jnp.nan])):
        with pytest.raises(ValueError, match=r"lr must be in \[0, 1\]"):
            check_interval("lr", bad, 0.0, 1.0)


def test_an_interval_steps_aside_for_tracers_and_schedules():
    check_interval("lr", lambda count: -1.0, 0.0, 1.0)
    inside_jit(lambda value: check_interval("lr", value, 0.0, 1.0))


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_static_integers_pass(value):
    check_integer("k", value, odd=True)


@pytest.mark.parametrize(
    ("value", "low", "odd", "message"),
    [
        (0, 1, False, "k must be an integer >= 1, got 0"),
        (4, 1, True, "k must be an odd integer >= 1, got 4"),
        (3, 5, True, "k must be an odd integer >= 5, got 3"),
        (3.0, 1, False, "k must be an integer >= 1, got 3.0"),
        (True, 1, False, "k must be an integer >= 1, got True"),
        ("3", 1, False, "k must be an integer >= 1, got 3"),
    ],
)
def test_other_integers_are_refused(value, low, odd, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_integer("k", value, low, odd=odd)


def test_a_traced_integer_is_refused_and_the_message_says_why():
    with pytest.raises(ValueError, match=r"k must be an integer >= 1.*static"):
        inside_jit(lambda value: check_integer("k", value))


def test_a_choice_lists_what_is_allowed():
    check_choice("mode", "map", ("vmap", "map"))
    with pytest.raises(ValueError, match=r"mode must be one of vmap, map, got 'scan'"):
        check_choice("mode", "scan", ("vmap", "map"))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_floating_leaves_pass(dtype):
    check_floating("x", {"a": jnp.ones(2, dtype), "b": 1.0, "c": None})


@pytest.mark.parametrize("leaf", [jnp.arange(2), jnp.ones(2, bool), 1j, 3])
def test_a_leaf_that_is_not_floating_is_refused_with_its_path(leaf):
    with pytest.raises(ValueError, match=r"x\['a'\]\[1\] must have a floating dtype"):
        check_floating("x", {"a": [jnp.ones(2), leaf]})


def test_leading_size_is_the_common_one():
    assert leading_size("x", {"a": jnp.ones((4, 2)), "b": np.ones(4)}) == 4
    assert leading_size("x", {"a": None, "b": ()}) == 0


def test_leading_size_names_both_paths_and_sizes():
    tree = {"a": jnp.ones((4, 2)), "b": {"c": jnp.ones(3)}}
    message = r"got 4 at x\['a'\] and 3 at x\['b'\]\['c'\]"
    with pytest.raises(ValueError, match=message):
        leading_size("x", tree)
    with pytest.raises(ValueError, match=r"x\['b'\].*sample axis, got a scalar"):
        leading_size("x", {"a": jnp.ones(3), "b": jnp.ones([])})


def test_a_first_leaf_of_size_zero_counts_as_a_size():
    with pytest.raises(ValueError, match="got 0 at x"):
        leading_size("x", [jnp.ones((0, 2)), jnp.ones((3, 2))])
