"""The LOTION penalty against its formulas in NumPy, and what it leaves alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lotion_reference import penalty_and_slope

from jaxopt_suite.core import device_mesh
from jaxopt_suite.quantization import (
    add_lotion_penalty,
    make_quantizer,
    per_block,
    per_tensor,
    quantize_tree,
)

RNG = np.random.default_rng(0)
PARAMS = {
    "b": jnp.asarray(RNG.standard_normal(3), jnp.float32),
    "w": jnp.asarray(RNG.standard_normal((4, 7)), jnp.float32),
}
INT4 = make_quantizer("int4")


def gradients(steps, params=PARAMS, seed=1):
    """A list of random gradients like ``params``."""
    rng = np.random.default_rng(seed)
    draw = lambda p: jnp.asarray(rng.standard_normal(p.shape), p.dtype)  # noqa: E731
    return [jax.tree.map(draw, params) for _ in range(steps)]


def assert_same(got, expected):
    """Equal bit for bit."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def first_update(transformation: Any, grads, params, **extra):
    """The first step, in one compile; concrete values are not seen as such."""

    @jax.jit
    def step(grads, params, extra):
        state = transformation.init(params)
        return transformation.update(grads, state, params, **extra)

    return step(grads, params, extra)


# --- against the formulas -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "granularity", "differentiate_scale"),
    [
        ("int4", per_block(3), True),
        ("int4", per_tensor(), False),
        ("fp4", per_tensor(), True),
    ],
)
def test_three_steps_follow_the_formulas(name, granularity, differentiate_scale):
    strengths = np.array([0.0, 0.5, 2.0])
    transformation: Any = add_lotion_penalty(
        make_quantizer(name, granularity),
        strength=lambda count: jnp.asarray(strengths)[count],
        batch_size=16,
        b2=0.9,
        differentiate_scale=differentiate_scale,
    )
    state, update = transformation.init(PARAMS), jax.jit(transformation.update)
    nu = np.zeros((4, 7))
    params: Any = PARAMS
    for t, g in enumerate(gradients(3)):
        updates, state = update(g, state, params)
        nu = 0.9 * nu + 0.1 * np.asarray(g["w"], np.float64) ** 2
        c = 16 * nu / (1 - 0.9 ** (t + 1))
        penalty, slope = penalty_and_slope(
            name, params["w"], c, granularity, differentiate_scale
        )
        expected = np.asarray(g["w"], np.float64) + strengths[t] * slope
        size = np.abs(expected).max()
        np.testing.assert_allclose(updates["w"], expected, atol=1e-5 * size)
        np.testing.assert_allclose(state.penalty, penalty, rtol=1e-5)
        np.testing.assert_allclose(state.nu["w"], nu, rtol=1e-5)
        np.testing.assert_array_equal(updates["b"], g["b"])
        assert isinstance(state.nu["b"], optax.MaskedNode)
        params = optax.apply_updates(params, jax.tree.map(lambda u: -0.1 * u, updates))


def test_on_the_grid_the_penalty_is_zero_and_so_is_its_slope():
    params = quantize_tree(INT4, PARAMS)
    transformation: Any = add_lotion_penalty(INT4, strength=1e3, batch_size=64)
    (g,) = gradients(1)
    updates, state = first_update(transformation, g, params)
    assert_same(updates, g)
    assert state.penalty == 0


def test_a_given_curvature_replaces_the_estimate_which_goes_on():
    c = jax.tree.map(jnp.square, gradients(1, seed=5)[0])
    (g,) = gradients(1)
    estimated: Any = add_lotion_penalty(INT4, batch_size=64)
    constant: Any = add_lotion_penalty(INT4, batch_size=64, curvature=c)

    @jax.jit
    def all_three(g):
        return (
            estimated.update(g, estimated.init(PARAMS), PARAMS, curvature=c),
            # The curvature of leaves that are not quantized is not read.
            estimated.update(
                g, estimated.init(PARAMS), PARAMS, curvature={"w": c["w"], "b": None}
            ),
            constant.update(g, constant.init(PARAMS), PARAMS),
        )

    (updates, state), (partial, _), (once, constant_state) = all_three(g)
    penalty, slope = penalty_and_slope("int4", PARAMS["w"], c["w"], per_tensor())
    np.testing.assert_allclose(state.penalty, penalty, rtol=1e-5)
    np.testing.assert_allclose(updates["w"] - g["w"], slope, atol=1e-5)
    np.testing.assert_allclose(state.nu["w"], 0.01 * g["w"] ** 2, rtol=1e-5)
    assert_same(partial, updates)
    assert_same(once, updates)
    assert len(jax.tree.leaves(constant_state)) == 2  # count and penalty: no average


# --- nothing where nothing is asked -------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "compiled", "strength"),
    [
        (jnp.float32, False, 0.0),
        (jnp.float32, True, lambda count: 0.0 * count),
        pytest.param(jnp.bfloat16, True, 0.0, marks=pytest.mark.slow),
    ],
)
def test_strength_zero_is_the_bare_optimizer_bit_for_bit(dtype, compiled, strength):
    params = jax.tree.map(lambda p: p.astype(dtype), PARAMS)

    def run(optimizer):
        update = jax.jit(optimizer.update) if compiled else optimizer.update
        p, state = params, optimizer.init(params)
        for g in gradients(4, params):
            updates, state = update(g, state, p)
            p = optax.apply_updates(p, updates)
        return p

    bare = optax.adam(optax.cosine_decay_schedule(0.1, 10))
    penalty = add_lotion_penalty(INT4, strength=strength, batch_size=1e9)
    assert_same(run(optax.chain(penalty, bare)), run(bare))


def test_leaves_outside_the_mask_are_left_alone():
    params = {"first": PARAMS["w"], "second": PARAMS["w"], "b": PARAMS["b"]}
    (g,) = gradients(1, params)
    transformation: Any = add_lotion_penalty(
        INT4, batch_size=64, mask={"first": True, "second": False, "b": True}
    )
    updates, state = first_update(transformation, g, params)
    assert_same(updates["second"], g["second"])
    assert isinstance(state.nu["second"], optax.MaskedNode)
    for name in ("first", "b"):
        assert np.any(updates[name] != g[name])


# --- composition --------------------------------------------------------------------


def train(key, strength, steps=6):
    """Adam with the penalty on a noisy quadratic."""
    optimizer: Any = optax.chain(
        add_lotion_penalty(INT4, strength=strength, batch_size=4), optax.adam(0.05)
    )
    draws = jax.random.normal(key, (1 + steps, 3, 4))
    params: Any = {"w": draws[0], "b": jnp.ones(3)}

    def step(carry, noise):
        params, state = carry
        grads = {"w": params["w"] - 1.0 + noise, "b": params["b"]}
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), state[0].penalty

    carry = params, optimizer.init(params)
    (params, _), penalties = jax.lax.scan(step, carry, draws[1:])
    return params, penalties


@pytest.mark.slow
def test_seeds_and_strengths_swept_together_equal_the_loop_in_one_trace():
    traces = 0

    def counted(key, strength):
        nonlocal traces
        traces += 1
        return train(key, strength)

    keys = jax.random.split(jax.random.key(0), 3)
    strengths = jnp.array([0.0, 0.3, 1.0, 3.0])
    over_strengths = jax.vmap(counted, (None, 0))
    swept = jax.jit(jax.vmap(over_strengths, (0, None)))(keys, strengths)
    swept = [np.asarray(leaf) for leaf in jax.tree.leaves(swept)]
    assert traces == 1
    alone = jax.jit(train)
    for i in range(3):
        for j in range(4):
            expected = alone(keys[i], strengths[j])
            for a, b in zip(swept, jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a[i, j], b, rtol=1e-4, atol=1e-5)


def test_layers_may_have_formats_of_their_own():
    params = {"first": PARAMS, "second": PARAMS}
    (g,) = gradients(1, params)
    formats = {
        "first": make_quantizer("int2", per_block(3)),
        "second": make_quantizer("fp4"),
    }
    penalties: Any = {k: add_lotion_penalty(q) for k, q in formats.items()}
    whole: Any = optax.multi_transform(
        penalties, {"first": "first", "second": "second"}
    )

    @jax.jit
    def both(g):
        alone = {
            k: p.update(g[k], p.init(params[k]), params[k])[0]
            for k, p in penalties.items()
        }
        return whole.update(g, whole.init(params), params)[0], alone

    updates, alone = both(g)
    assert_same(updates, alone)
    assert np.any(updates["first"]["w"] != updates["second"]["w"])


def test_sharded_parameters_give_the_same_updates_where_they_are():
    rng = np.random.default_rng(2)
    params = {"w": jnp.asarray(rng.standard_normal((16, 10)), jnp.float32)}
    (g,) = gradients(1, params)
    optimizer: Any = optax.chain(
        add_lotion_penalty(make_quantizer("int4", per_block(4, 1)), batch_size=64),
        optax.sgd(0.1),
    )

    @jax.jit
    def step(g, params):
        state = optimizer.init(params)
        updates, state = optimizer.update(g, state, params)
        return optax.apply_updates(params, updates), state

    expected = step(g, params)
    sharding = jax.NamedSharding(device_mesh("data", 8), jax.P("data"))
    new, state = step(*jax.device_put((g, params), sharding))
    assert new["w"].sharding.is_equivalent_to(sharding, 2)
    assert state[0].nu["w"].sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_allclose(new["w"], expected[0]["w"], rtol=1e-6)
    # The sum over devices is in another order.
    np.testing.assert_allclose(state[0].penalty, expected[1][0].penalty, rtol=1e-5)


# --- difficult weights --------------------------------------------------------------


def test_zero_huge_and_tiny_groups_give_finite_updates():
    rows = [np.zeros(4), [0, 1e30, 3e29, -1e29], [1e-40, 2e-41, 0, 0], [5, 1, 2, 4.9]]
    w = jnp.asarray(rows, jnp.float32)
    transformation: Any = add_lotion_penalty(make_quantizer("int4", per_block(4)))
    updates, _ = first_update(transformation, jnp.ones((4, 4)), w)
    assert np.all(np.isfinite(updates))
    np.testing.assert_array_equal(updates[jnp.array([0, 2])], jnp.ones((2, 4)))
    assert np.any(updates[1] != 1)
    assert np.any(updates[3] != 1)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_on_the_grid_of_a_narrow_dtype_the_penalty_is_zero_and_so_is_its_slope(dtype):
    # The last weight is off the grid: the rest have a slope of 0, but for the largest.
    w = INT4.round_nearest(PARAMS["w"].astype(dtype))
    transformation: Any = add_lotion_penalty(INT4, curvature=jnp.ones_like(w))
    updates, state = first_update(transformation, 0 * w, w)
    np.testing.assert_array_equal(updates, np.zeros(w.shape))
    assert state.penalty == 0
    w = jnp.asarray([[7.0, 2.25, 3.0]], dtype)
    transformation = add_lotion_penalty(INT4, curvature=jnp.ones_like(w))
    updates, _ = first_update(transformation, 0 * w, w)
    _, slope = penalty_and_slope("int4", w, np.ones((1, 3)), per_tensor())
    np.testing.assert_allclose(np.asarray(updates, np.float32), slope, rtol=1e-2)


@pytest.mark.parametrize("wrap", ["multi_transform", "masked", "constant"])
def test_a_curvature_of_all_leaves_serves_a_part_of_them(wrap):
    params = {"a": jnp.array([[3.0, 0.75]]), "b": {"c": jnp.array([[3.0, 0.75]])}}
    c = jax.tree.map(lambda p: 2 * jnp.ones_like(p), params)
    constant: Any = {"curvature": c} if wrap == "constant" else {}
    one = add_lotion_penalty(make_quantizer("int3"), **constant)
    if wrap == "multi_transform":
        parts: Any = {"x": one, "y": optax.set_to_zero()}
        transformation: Any = optax.multi_transform(parts, {"a": "x", "b": "y"})
    else:
        transformation = optax.masked(one, {"a": True, "b": False})
    extra = {} if constant else {"curvature": c}
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = transformation.update(
        zero, transformation.init(params), params, **extra
    )
    # 1/2 c (s (l + h) - 2 w) for the second; 2/2 0.75 / 3 through the scale.
    np.testing.assert_allclose(updates["a"], [[0.25, -0.5]], rtol=1e-6)
    np.testing.assert_array_equal(updates["b"]["c"], np.zeros((1, 2)))


def test_updates_of_another_shape_are_refused():
    transformation: Any = add_lotion_penalty(INT4)
    state = transformation.init(PARAMS)
    with pytest.raises(
        ValueError, match=r"updates\['w'\] must have the shape \(4, 7\)"
    ):
        transformation.update({**PARAMS, "w": jnp.ones((1, 7))}, state, PARAMS)


def test_a_nan_stays_in_its_group_and_shows_in_the_penalty():
    w = PARAMS["w"].at[1, 2].set(jnp.nan)
    transformation: Any = add_lotion_penalty(make_quantizer("int4", per_block(7)))
    updates, state = first_update(transformation, jnp.ones((4, 7)), w)
    assert np.isnan(state.penalty)
    assert np.all(np.isnan(updates[1]))
    assert np.all(np.isfinite(updates[jnp.array([0, 2, 3])]))


def test_scalars_cost_nothing_and_empty_leaves_pass():
    params = {
        "scalar": jnp.float32(0.3),
        "one": jnp.ones((1, 1)),
        "none": jnp.ones((0, 3)),
    }
    mask = jax.tree.map(lambda _: True, params)
    transformation: Any = add_lotion_penalty(INT4, strength=1e6, mask=mask)
    (g,) = gradients(1, params)
    updates, state = first_update(transformation, g, params)
    assert_same(updates, g)
    assert state.penalty == 0


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "extra", "message"),
    [
        ({"strength": np.inf}, {}, "strength must be finite and >= 0, got inf"),
        ({"strength": None}, {}, "strength must be a number, got None"),
        ({"batch_size": np.inf}, {}, "batch_size must be finite and > 0, got inf"),
        ({"curvature": None}, {}, "curvature must be .* got None"),
        ({"differentiate_scale": 1}, {}, "differentiate_scale must be True or False"),
        ({"quantizer": "int4"}, {}, "quantizer must be made by make_quantizer"),
        ({"strength": -0.5}, {}, "strength must be >= 0, got -0.5"),
        ({"batch_size": -1}, {}, "batch_size must be > 0, got -1"),
        ({"b2": 1.5}, {}, r"b2 must be in \[0, 1\), got 1.5"),
        ({"curvature": "adam"}, {}, "curvature must be .* got 'adam': .*lotion_adamw"),
        ({"mask": {"w": True, "i": True}}, {}, r"params\['i'\] .*floating.*int32"),
        ({}, {"curvature": {"w": jnp.ones((4, 7))}}, "curvature must be a pytree like"),
        (
            {},
            {"curvature": {"w": jnp.ones(7), "i": None}},
            r"curvature\['w'\] .*\(4, 7\)",
        ),
        (
            {},
            {"curvature": {"w": -jnp.ones((4, 7)), "i": None}},
            r"curvature\['w'\] must be >= 0",
        ),
        ({"curvature": jnp.ones(3)}, {}, "curvature must be a pytree like"),
    ],
)
def test_bad_arguments_are_refused(arguments, extra, message):
    params = {"w": PARAMS["w"], "i": jnp.ones(2, jnp.int32)}

    def call():
        transformation: Any = add_lotion_penalty(**{"quantizer": INT4, **arguments})
        transformation.update(params, transformation.init(params), params, **extra)

    with pytest.raises(ValueError, match=message):
        call()


def test_params_are_required():
    transformation: Any = add_lotion_penalty(INT4)
    with pytest.raises(ValueError, match="needs params=, got None"):
        transformation.update(PARAMS, transformation.init(PARAMS))
