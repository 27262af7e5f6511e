"""A gated branch gives the numbers of lax.cond, and runs only when someone wants it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.core import device_mesh, sweep
from jaxopt_suite.core.gating import gated_cond


def double_large(x, axis_name="lanes"):
    """Doubles what is above 1, with a key and an integer that go along."""
    operand = {"x": x, "n": jnp.zeros((), jnp.int32), "key": jax.random.key(0)}

    def branch(operand):
        key = jax.random.fold_in(operand["key"], 1)
        return {"x": 2 * operand["x"], "n": operand["n"] + 1, "key": key}

    result = gated_cond(jnp.max(x) > 1, branch, operand, axis_name=axis_name)
    return result["x"], result["n"], jax.random.key_data(result["key"])


XS = jnp.array([[0.5, 0.1], [3.0, 0.2], [0.0, 0.0], [7.0, 8.0]])


def expected():
    wanted = np.asarray(XS).max(axis=1) > 1
    base = jax.random.key(0)
    keys = [jax.random.fold_in(base, 1) if w else base for w in wanted]
    data = np.stack([jax.random.key_data(key) for key in keys])
    return np.where(wanted[:, None], 2 * XS, XS), wanted.astype(int), data


def require(got):
    for a, b in zip(got, expected(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_alone_it_is_a_conditional():
    parts = [jax.jit(double_large)(x) for x in XS]
    require([np.stack(part) for part in zip(*parts, strict=True)])


@pytest.mark.parametrize("axis_name", ["lanes", "others", None])
def test_under_vmap_each_lane_keeps_its_own(axis_name):
    # Named or not, gated or not: the numbers are the same.
    run = jax.vmap(lambda x: double_large(x, axis_name), axis_name="lanes")
    require(jax.jit(run)(XS))


@pytest.mark.slow
def test_over_two_axes():
    grid = XS.reshape(2, 2, 2)
    inner = jax.vmap(lambda x: double_large(x, ("a", "b")), axis_name="b")
    got = jax.jit(jax.vmap(inner, axis_name="a"))(grid)
    require([np.asarray(part).reshape(4, *part.shape[2:]) for part in got])


def test_under_a_sweep_on_one_device_and_on_four():
    def run(key, x):
        return double_large(x)

    keys = jax.random.split(jax.random.key(0), 1)
    for mesh in (None, device_mesh("lanes", 4)):
        got = sweep(run, keys, {"x": XS}, mesh=mesh)
        require([part[:, 0] for part in got])


def conditionals(axis_name):
    """The conditional branches that remain in the compiled scan of four lanes."""

    def run(x):
        def body(x, _):
            return double_large(x, axis_name)[0], None

        return jax.lax.scan(body, x, length=3)[0]

    lowered = jax.jit(jax.vmap(run, axis_name="lanes")).lower(XS)
    return lowered.as_text().count("stablehlo.case")


def test_the_branch_is_a_real_conditional_only_if_gated():
    # A plain vmapped lax.cond becomes a select, which computes both of its sides.
    assert conditionals("lanes") == 1
    assert conditionals(None) == 0


def test_a_round_in_which_nobody_wants_it_does_not_run_it():
    calls = []

    def branch(x):
        jax.debug.callback(lambda: calls.append(1))
        return 2 * x

    run = jax.jit(jax.vmap(lambda x: gated_cond(x > 1, branch, x), axis_name="lanes"))
    np.testing.assert_array_equal(run(jnp.array([0.0, 1.0])), [0.0, 1.0])
    jax.effects_barrier()
    assert not calls
    np.testing.assert_array_equal(run(jnp.array([0.0, 2.0])), [0.0, 4.0])
    jax.effects_barrier()
    assert calls


def test_a_nan_predicate_is_false_and_a_nan_operand_stays():
    x = jnp.array([jnp.nan, 5.0])
    got = jax.vmap(lambda x: gated_cond(x > 1, jnp.negative, x), axis_name="lanes")(x)
    np.testing.assert_array_equal(got, [np.nan, -5.0])


@pytest.mark.slow
def test_gradients_pass_through_the_side_that_was_taken():
    def total(x):
        run = jax.vmap(lambda x: gated_cond(x > 1, jnp.square, x), axis_name="lanes")
        return jnp.sum(run(x))

    np.testing.assert_allclose(jax.grad(total)(jnp.array([0.5, 3.0])), [1.0, 6.0])
