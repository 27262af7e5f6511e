"""AdamW with the LOTION penalty: optax's without it, a recursion in NumPy with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lotion_reference import penalty_and_slope

from jaxopt_suite.core import device_mesh
from jaxopt_suite.quantization import (
    lotion_adamw,
    make_quantizer,
    per_block,
    per_tensor,
    scale_by_lotion_adam,
)

RNG = np.random.default_rng(0)
PARAMS = {"b": RNG.standard_normal(3), "w": RNG.standard_normal((4, 7))}
INT4 = make_quantizer("int4")


def as_dtype(dtype, tree=PARAMS):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def gradients(steps, seed=1):
    rng = np.random.default_rng(seed)
    draw = lambda p: rng.standard_normal(p.shape)  # noqa: E731
    return [jax.tree.map(draw, PARAMS) for _ in range(steps)]


def run(optimizer: Any, dtype, grads, compiled=True) -> tuple[list[Any], Any]:
    """All updates of a loop, and the last state."""
    params, seen = as_dtype(dtype), []
    state = optimizer.init(params)
    update = jax.jit(optimizer.update) if compiled else optimizer.update
    for g in grads:
        updates, state = update(as_dtype(dtype, g), state, params)
        params = optax.apply_updates(params, updates)
        seen.append(updates)
    return seen, state


def assert_same(got, expected):
    """Equal bit for bit."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


# --- strength 0 ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [(np.float32, False), (np.float32, True), (np.float64, True)],
)
def test_strength_zero_is_adamw_bit_for_bit(dtype, compiled):
    grads = gradients(6)
    # Gradients that stop, and that are huge next to their past, test the clip.
    grads[2:4] = [jax.tree.map(np.zeros_like, g) for g in grads[2:4]]
    grads[4] = jax.tree.map(lambda g: 1e6 * g, grads[4])
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
    decay = optax.linear_schedule(0.1, 0.0, 5)
    with jax.enable_x64(dtype == np.float64):
        expected, _ = run(optax.adamw(rate, weight_decay=decay), dtype, grads, compiled)
        optimizer = lotion_adamw(
            rate, INT4, strength=0.0, batch_size=1e9, weight_decay=decay
        )
        got, state = run(optimizer, dtype, grads, compiled)
    assert_same(got, expected)
    assert state[0].penalty > 0


@pytest.mark.parametrize(("b1", "b2"), [(0.999, 0.999), (0.9999, 0.9999), (0.9, 0.8)])
def test_strength_zero_is_adam_where_the_bound_is_attained_or_none(b1, b2):
    grads = [jax.tree.map(np.ones_like, PARAMS)] * 5

    @jax.jit
    def both(b1, b2, grads):
        # Traced: a pair without a bound is not seen.
        seen = []
        for transformation in (
            optax.scale_by_adam(b1, b2),
            scale_by_lotion_adam(INT4, strength=0.0, b1=b1, b2=b2),
        ):
            one: Any = transformation
            state = one.init(grads[0])
            updates = []
            for g in grads:
                u, state = one.update(g, state, grads[0])
                updates.append(u)
            seen.append(updates)
        return seen

    narrow = [as_dtype(np.float32, g) for g in grads]
    expected, got = both(b1, b2, narrow)
    assert_same(got, expected)


def test_the_slope_left_in_the_momentum_is_clipped_when_the_strength_falls_to_zero():
    w = jnp.array([[3.0, 0.75]])
    schedule = optax.piecewise_constant_schedule(1.0, {1: 0.0})
    transformation: Any = scale_by_lotion_adam(INT4, strength=schedule)
    state, seen = transformation.init(w), []
    for _ in range(3):
        # The largest weight has no gradient, and so no curvature, of its own.
        u, state = transformation.update(jnp.array([[0.0, 2.0]]), state, w)
        seen.append(u)
    bound = 0.1 / np.sqrt(0.001 * (1 - 0.9**2 / 0.999))
    tops = [float(jnp.abs(u)[0, 0]) for u in seen]
    np.testing.assert_allclose(tops, [bound, 2 * bound, 2 * bound], rtol=1e-4)


def test_no_ratio_of_adam_reaches_the_default_clip():
    # Gradients that grow by b2 / b1 a step approach Cauchy-Schwarz's bound, once the
    # bias correction is over.
    b1, b2 = 0.9, 0.999
    bound = (1 - b1) / np.sqrt((1 - b2) * (1 - b1**2 / b2))
    assert abs(bound - 7.27) < 5e-3

    start = jnp.asarray(RNG.uniform(1e-6, 2e-6, (32, 32)), jnp.float32)

    def late_ratios(transformation: Any):
        state = transformation.init(start)._replace(count=jnp.int32(10**6))

        def step(state, t):
            ratio, state = transformation.update((b2 / b1) ** t * start, state, start)
            return state, ratio

        return jax.lax.scan(step, state, jnp.arange(200.0))[1][150:]

    @jax.jit
    def both():
        ours = scale_by_lotion_adam(INT4, strength=0.0)
        return late_ratios(ours), late_ratios(optax.scale_by_adam(b1, b2))

    ours, theirs = both()
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(theirs, bound, rtol=1e-5)
    # Rounding carries some of them past the bound.
    assert np.any(np.asarray(theirs, np.float64) > bound)


# --- with the penalty ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("granularity", "b1", "b2", "max_ratio"),
    [
        (per_tensor(), 0.9, 0.999, None),
        (per_block(3), 0.5, 0.9, 1.0),
    ],
)
def test_steps_follow_the_recursion(granularity, b1, b2, max_ratio):
    strengths = np.array([1.0, 0.0, 3.0, 10.0])
    optimizer: Any = lotion_adamw(
        0.02,
        make_quantizer("int4", granularity),
        strength=lambda count: jnp.asarray(strengths)[count],
        batch_size=8,
        b1=b1,
        b2=b2,
        eps=1e-6,
        weight_decay=0.1,
        max_ratio=max_ratio,
    )
    bound = max_ratio or (1 - b1) / np.sqrt((1 - b2) * (1 - b1**2 / b2))
    beyond = {"b": 0, "w": 0}
    grads = gradients(4)
    grads[2]["b"] = grads[3]["b"] = 10 * grads[1]["b"]
    with jax.enable_x64(True):
        got, state = run(optimizer, np.float64, grads)
    w = {k: v.copy() for k, v in PARAMS.items()}
    m, nu = ({k: np.zeros_like(v) for k, v in w.items()} for _ in range(2))
    penalty = np.nan
    for t, g in enumerate(grads):
        correct = 1 - b2 ** (t + 1)
        for k in w:
            nu[k] = b2 * nu[k] + (1 - b2) * g[k] ** 2
        c = 8 * nu["w"] / correct
        penalty, slope = penalty_and_slope("int4", w["w"], c, granularity)
        pushed = {"b": g["b"], "w": g["w"] + strengths[t] * slope}
        for k in w:
            m[k] = b1 * m[k] + (1 - b1) * pushed[k]
            ratio = m[k] / (1 - b1 ** (t + 1)) / (np.sqrt(nu[k] / correct) + 1e-6)
            beyond[k] += np.sum(np.abs(ratio) > bound)
            if k == "w":
                ratio = np.clip(ratio, -bound, bound)
            update = -0.02 * (ratio + 0.1 * w[k])
            np.testing.assert_allclose(got[t][k], update, rtol=1e-6, atol=1e-9)
            w[k] = w[k] + update
    assert beyond["w"] > 0
    # Leaves that are not quantized are not clipped, and need it only for a given bound.
    assert (beyond["b"] > 0) == (max_ratio is not None)
    np.testing.assert_allclose(state[0].penalty, penalty, rtol=1e-6)


def test_it_keeps_no_more_than_adamw():
    params = as_dtype(np.float32)
    size = lambda state: sum(x.size for x in jax.tree.leaves(state))  # noqa: E731
    ours = size(lotion_adamw(0.1, INT4).init(params))
    assert ours == size(optax.adamw(0.1).init(params)) + 1  # the penalty


def test_statistics_of_bfloat16_weights_are_float32():
    (updates,), state = run(lotion_adamw(0.1, INT4), jnp.bfloat16, gradients(1))
    assert {x.dtype for x in jax.tree.leaves(updates)} == {jnp.dtype(jnp.bfloat16)}
    floats = jax.tree.leaves((state[0].mu, state[0].nu))
    assert {x.dtype for x in floats} == {jnp.dtype(np.float32)}


# --- composition --------------------------------------------------------------------


@pytest.mark.slow
def test_hyperparameters_swept_together_equal_the_loop_in_one_trace():
    traces, names = 0, ("learning_rate", "strength", "batch_size", "b2", "max_ratio")
    grid = np.array(
        [[0.1, 0.0, 1.0, 0.999, 1.0], [0.03, 3.0, 64.0, 0.95, 7.0]], np.float32
    )
    grads = [as_dtype(np.float32, g) for g in gradients(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *grads)

    def train(values):
        nonlocal traces
        traces += 1
        optimizer = lotion_adamw(
            quantizer=INT4, **dict(zip(names, values, strict=True))
        )
        params = as_dtype(np.float32)

        def step(carry, g):
            params, state = carry
            updates, state = optimizer.update(g, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), stacked)[0][0]

    swept = jax.jit(jax.vmap(train))(grid)
    assert traces == 1
    for i, (rate, *rest) in enumerate(grid.tolist()):
        static = dict(zip(names[1:], rest, strict=True))
        expected: Any = as_dtype(np.float32)
        optimizer: Any = lotion_adamw(rate, INT4, **static)
        state, update = optimizer.init(expected), jax.jit(optimizer.update)
        for g in grads:
            updates, state = update(g, state, expected)
            expected = optax.apply_updates(expected, updates)
        for name, value in expected.items():
            np.testing.assert_allclose(swept[name][i], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_sharded_parameters_give_the_same_updates_where_they_are():
    rng = np.random.default_rng(2)
    params, g = (
        {"w": jnp.asarray(rng.standard_normal((16, 10)), jnp.float32)} for _ in "ab"
    )
    quantizer = make_quantizer("fp4", per_block(4, 1))
    optimizer: Any = lotion_adamw(0.1, quantizer, batch_size=64)

    @jax.jit
    def step(g, params):
        updates, state = optimizer.update(g, optimizer.init(params), params)
        return optax.apply_updates(params, updates), state

    expected, _ = step(g, params)
    sharding = jax.NamedSharding(device_mesh("data", 8), jax.P("data"))
    new, state = step(*jax.device_put((g, params), sharding))
    for leaf in (new["w"], state[0].nu["w"]):
        assert leaf.sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_allclose(new["w"], expected["w"], rtol=1e-5)


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strength": np.inf}, "strength must be finite and >= 0, got inf"),
        ({"batch_size": np.inf}, "batch_size must be finite and > 0, got inf"),
        ({"weight_decay": np.nan}, "weight_decay must be >= 0, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must be >= 0, got -0.1"),
        ({"weight_decay": None}, "weight_decay must be a number, got None"),
        ({"differentiate_scale": "no"}, "differentiate_scale must be True or False"),
        ({"strength": -1}, "strength must be >= 0, got -1"),
        ({"batch_size": 0}, "batch_size must be > 0, got 0"),
        ({"b2": 1.0}, r"b2 must be in \[0, 1\), got 1.0"),
        ({"b1": -0.1}, r"b1 must be in \[0, 1\), got -0.1"),
        ({"b1": 0.9, "b2": 0.8}, r"b1\*\*2 < b2.*got b1=0.9 and b2=0.8.*max_ratio"),
        ({"b1": 0.0, "b2": 0.0}, r"b1\*\*2 < b2"),
        ({"max_ratio": 0.0}, "max_ratio must be > 0, got 0.0"),
        ({"eps": -1e-8}, "eps must be >= 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        lotion_adamw(0.1, INT4, **arguments)


def test_a_given_clip_serves_where_the_ratio_has_no_bound():
    updates, _ = run(
        lotion_adamw(0.1, INT4, b1=0.9, b2=0.8, max_ratio=1.0, weight_decay=0.0),
        np.float32,
        gradients(1),
    )
    assert np.max(np.abs(updates[0]["w"])) <= 0.1 * (1 + 1e-6)


def test_params_are_required():
    transformation: Any = scale_by_lotion_adam(INT4)
    params = as_dtype(np.float32)
    with pytest.raises(ValueError, match="needs params=, got None"):
        transformation.update(params, transformation.init(params))


def test_updates_of_another_shape_are_refused():
    transformation: Any = scale_by_lotion_adam(INT4)
    params = as_dtype(np.float32)
    state = transformation.init(params)
    with pytest.raises(ValueError, match=r"updates\['b'\] must have the shape \(3,\)"):
        transformation.update({**params, "b": jnp.ones(1)}, state, params)


def test_the_slope_of_float16_weights_does_not_underflow():
    w = jnp.array([[7e-3, 2.5e-3]], jnp.float16)
    transformation: Any = scale_by_lotion_adam(INT4, b1=0.0, b2=0.5, max_ratio=1e9)
    g = jnp.array([[0.0, 1e-3]], jnp.float16)
    _, state = transformation.update(g, transformation.init(w), w)
    # Beside g of 1e-3 the slope is 1e-6 times an offset of 1e-4 or so.
    _, slope = penalty_and_slope("int4", w, np.float64(g) ** 2, per_tensor())
    assert 0 < abs(slope[0, 0]) < 6e-8 / 2
    np.testing.assert_allclose(state.mu[0, 0], slope[0, 0], rtol=2e-2)
