"""Baselines against values worked out by hand, and what all of them have in common."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen
from lotion_reference import penalty_and_slope

from jaxopt_suite.quantization import (
    add_dampening_penalty,
    add_lotion_penalty,
    apply_quantized,
    dampening,
    lsq,
    make_quantizer,
    per_block,
    per_tensor,
    pseudo_noise,
    ptq,
    quantize_params_fn,
    quantize_tree,
    quest,
    rat,
    ste,
    ste_clip,
)

INT4 = make_quantizer("int4")
FACTORIES = {
    "ptq": ptq,
    "ste": ste,
    "rat": rat,
    "lsq": lsq,
    "quest": quest,
    "pseudo_noise": pseudo_noise,
    "dampening": lambda quantizer, mask=None: dampening(quantizer, 0.1, mask),
    "ste_clip": lambda quantizer, mask=None: ste_clip(quantizer, 0.5, mask),
}
METHODS = {name: factory(INT4) for name, factory in FACTORIES.items()}
# With int4 per tensor the scale is 1.
W = jnp.array([[7.0, -2.25, 0.5, 1.5]])
CAST = jnp.array([[7.0, -2.0, 0.0, 2.0]])
WEIGHTS = jnp.array([[1.0, 2.0, 3.0, 4.0]])


def value_and_pull(method, w=W, key=None):
    """The transformed weights, and what a gradient of WEIGHTS becomes."""

    @jax.jit
    def run(w):
        state = method.init(w)
        value, pull_back = jax.vjp(lambda w: method.apply(state, key, w), w)
        return value, pull_back(WEIGHTS)[0], method.deploy(state, w)

    return run(w)


# --- one method after the other -----------------------------------------------------


def test_ptq_trains_in_full_precision():
    value, gradient, shipped = value_and_pull(METHODS["ptq"])
    np.testing.assert_array_equal(value, W)
    np.testing.assert_array_equal(gradient, WEIGHTS)
    np.testing.assert_array_equal(shipped, CAST)


def test_ste_rounds_forward_and_does_nothing_backward():
    value, gradient, shipped = value_and_pull(METHODS["ste"])
    np.testing.assert_array_equal(value, CAST)
    np.testing.assert_array_equal(gradient, WEIGHTS)
    np.testing.assert_array_equal(shipped, CAST)


def test_rat_rounds_at_random_forward_and_does_nothing_backward():
    key = jax.random.key(3)
    value, gradient, shipped = value_and_pull(METHODS["rat"], key=key)
    np.testing.assert_array_equal(value, quantize_tree(INT4, W, key=key))
    assert np.any(value != CAST)
    np.testing.assert_array_equal(gradient, WEIGHTS)
    np.testing.assert_array_equal(shipped, CAST)


def test_pseudo_noise_is_uniform_over_one_step_of_the_grid():
    method = pseudo_noise(make_quantizer("fp4"))
    # In fp4 with scale 1 the cells of these weights are 1, 2, and .5 wide.
    w = jnp.repeat(jnp.array([[2.4], [5.0], [0.3]]), 1000, axis=1).at[0, 0].set(6.0)
    run = jax.jit(
        lambda w: jax.vjp(lambda w: method.apply((), jax.random.key(0), w), w)
    )
    value, pull_back = run(w)
    noise = np.asarray(value - w)[:, 1:] / np.array([[1.0], [2.0], [0.5]])
    assert np.all(np.abs(noise) <= 0.5 + 1e-6)
    # A uniform variance of 1/12 has a relative standard error of 2.8 %.
    np.testing.assert_allclose(noise.var(axis=1), 1 / 12, rtol=0.15)
    np.testing.assert_array_equal(pull_back(value)[0], value)


def test_pseudo_noise_leaves_groups_of_zeros_alone():
    method = pseudo_noise(make_quantizer("int4", per_block(2)))
    w = jnp.array([[0.0, 0.0, 2e-38, 0.0, 7.0, 2.5]])
    noisy = method.apply((), jax.random.key(0), w)
    np.testing.assert_array_equal(noisy[:, :4], w[:, :4])
    assert np.all(noisy[:, 4:] != w[:, 4:])


def test_ste_clip_has_no_gradient_outside_its_range():
    # Half of the range of int4: the scale is 1/2 and 7 is clipped to 3.5.
    value, gradient, shipped = value_and_pull(METHODS["ste_clip"])
    np.testing.assert_allclose(value, [[3.5, -2.0, 0.5, 1.5]], rtol=1e-6)
    np.testing.assert_array_equal(gradient, [[0.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(shipped, value)


def test_ste_clip_on_the_whole_range_is_the_plain_estimator():
    # The scale of some of these rows, times 7, is below the largest weight.
    quantizer = make_quantizer("int4", per_block(8))
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.standard_normal((64, 8)), jnp.float32)
    method = ste_clip(quantizer, 1.0)

    @jax.jit
    def both(w):
        value, pull_back = jax.vjp(lambda w: method.apply((), None, w), w)
        return value, quantizer.round_nearest(w), pull_back(w)[0]

    value, nearest, gradient = both(w)
    np.testing.assert_allclose(value, nearest, rtol=1e-6)
    np.testing.assert_array_equal(gradient, w)


def lsq_slopes(method, state, w, upstream):
    """The forward weights, the slopes of the pair, and the deployed weights."""

    @jax.jit
    def run(state):
        value, pull_back = jax.vjp(
            lambda *pair: method.apply(pair[0], None, pair[1]), state, w
        )
        by_state, by_weight = pull_back(upstream)
        return value, by_state.scale, by_weight, method.deploy(state, w)

    return run(state)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_lsq_starts_and_learns_by_its_formulas(sign):
    method = METHODS["lsq"]
    state = method.init(W)
    np.testing.assert_allclose(state.scale, 2 * 11.25 / 4 / np.sqrt(7), rtol=1e-6)
    # With scale 1/2: z = 14, -4.5, 1, 3, cast to 7, -4, 1, 3; the first is clipped.
    state = state._replace(scale=jnp.float32(0.5 * sign))
    value, by_scale, by_weight, shipped = lsq_slopes(method, state, W, WEIGHTS)
    np.testing.assert_allclose(value, [[3.5, -2.0, 0.5, 1.5]], rtol=1e-6)
    np.testing.assert_array_equal(by_weight, [[0.0, 2.0, 3.0, 4.0]])
    expected = sign * (1 * 7 + 2 * 0.5) / np.sqrt(4 * 7)
    np.testing.assert_allclose(by_scale, expected, rtol=1e-6)
    np.testing.assert_array_equal(shipped, value)


def test_lsq_has_a_scale_for_every_block():
    method = lsq(make_quantizer("int2", per_block(3)))
    w = jnp.array([[1.0, 2.0, 3.0, 8.0], [0.0, 0.0, 0.0, -2.0]])
    state = method.init(w)
    # 2 mean |w|: the last block has one weight, and a zero block has scale 1.
    np.testing.assert_allclose(state.scale, [[4.0, 16.0], [1.0, 4.0]], rtol=1e-6)
    _, by_scale, _, _ = lsq_slopes(method, state, w, jnp.ones((2, 4)))
    # z = 1/4 1/2 3/4 | 1/2, 0 0 0 | -1/2, cast to 0 0 1 | 0 and 0 0 0 | 0.
    expected = [[-0.5 / np.sqrt(3), -0.5], [0.0, 0.5]]
    np.testing.assert_allclose(by_scale, expected, atol=1e-6)


def test_lsq_trains_as_a_pair_and_finds_a_better_scale():
    w = jnp.asarray(np.random.default_rng(0).standard_normal((8, 32)), jnp.float32)
    quantizer = make_quantizer("int3")
    method = lsq(quantizer)
    optimizer = optax.adam(0.01)

    def loss(state):
        return jnp.mean((method.apply(state, None, w) - w) ** 2)

    def step(carry, _):
        state, opt = carry
        updates, opt = optimizer.update(jax.grad(loss)(state), opt, state)
        moved: Any = optax.apply_updates(state, updates)
        return (moved, opt), None

    start = method.init(w)
    carry = start, optimizer.init(start)
    (state, _), _ = jax.lax.scan(step, carry, length=100)
    # The best scale of Gaussian weights in int3 is 0.651.
    assert abs(float(jnp.abs(state.scale)) - 0.651) < 0.05


def test_a_learned_scale_does_not_hide_a_nan():
    method = lsq(make_quantizer("fp4"))
    w = W.at[0, 1].set(jnp.nan)
    for values in lsq_slopes(method, method.init(W), w, WEIGHTS)[::3]:
        np.testing.assert_array_equal(np.isnan(values), np.isnan(w))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dampening_adds_the_slope_of_its_penalty(dtype):
    w = W.astype(dtype)
    method = dampening(INT4, 0.5)
    state = method.init(w)
    value, pull_back = jax.vjp(lambda w: method.apply(state, None, w), w)
    np.testing.assert_array_equal(value, CAST)
    # 2 * 0.5 * (w - cast w)
    expected = WEIGHTS + jnp.array([[0.0, -0.25, 0.5, -0.5]])
    (gradient,) = pull_back(WEIGHTS.astype(dtype))
    np.testing.assert_array_equal(gradient, expected)
    assert value.dtype == gradient.dtype == dtype


def test_the_two_forms_of_dampening_agree_and_log_the_penalty():
    schedule = optax.linear_schedule(0.0, 1.0, 4)
    penalty: Any = add_dampening_penalty(INT4, schedule)
    state = penalty.init(W)

    @jax.jit
    def in_the_loss(strength):
        method = dampening(INT4, strength)
        return jax.grad(lambda w: jnp.sum(WEIGHTS * method.apply((), None, w)))(W)

    for t in range(3):
        updates, state = penalty.update(WEIGHTS, state, W)
        np.testing.assert_array_equal(updates, in_the_loss(schedule(t)))
    assert float(state.penalty) == 0.25**2 + 2 * 0.5**2


# --- what all have in common --------------------------------------------------------


class Layer(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    activation: Any
    name: str


@pytest.mark.parametrize("name", METHODS)
def test_any_pytree_is_welcome_and_other_leaves_stay(name):
    method, key = METHODS[name], jax.random.key(0)
    w = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8)), jnp.float32)
    layer = Layer(w, jnp.ones(8), jax.nn.relu, "first")

    def outputs(params):
        state = method.init(params)
        return method.apply(state, key, params), method.deploy(state, params)

    for done in outputs([layer]):
        assert done[0].activation is jax.nn.relu
        assert done[0].name == "first"
        np.testing.assert_array_equal(done[0].bias, layer.bias)
    plain = outputs({"params": {"kernel": w, "skip": jnp.ones(8)}})
    for ours, other in zip(outputs([layer]), plain, strict=True):
        np.testing.assert_array_equal(ours[0].weight, other["params"]["kernel"])
    masked = FACTORIES[name](INT4, {"a": True, "b": False})
    both = {"a": w, "b": w}
    state = masked.init(both)
    for done in (masked.apply(state, key, both), masked.deploy(state, both)):
        np.testing.assert_array_equal(done["b"], w)
    np.testing.assert_array_equal(done["a"], outputs([layer])[1][0].weight)


def test_flax_and_equinox_models_run_on_rounded_weights():
    x = jnp.asarray(np.random.default_rng(1).standard_normal((5, 8)), jnp.float32)
    method = ste(make_quantizer("int4", per_tensor()))
    dense = linen.Dense(4)
    params: Any = dense.init(jax.random.key(0), x)
    linear = eqx.nn.Linear(8, 4, key=jax.random.key(0))
    kernel = params["params"]["kernel"]
    linear = eqx.tree_at(
        lambda m: (m.weight, m.bias), linear, (kernel.T, params["params"]["bias"])
    )
    in_flax = apply_quantized(dense.apply, method)
    in_equinox = apply_quantized(lambda model, x: jax.vmap(model)(x), method)
    expected = x @ INT4.round_nearest(kernel)
    for fn, model in ((in_flax, params), (in_equinox, linear)):
        got = fn(method.init(model), None, model, x)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


# --- what LOTION has and randomized rounding lacks ----------------------------------


RNG = np.random.default_rng(0)
FACTOR = RNG.standard_normal((64, 64)) / 8
HESSIAN = FACTOR @ FACTOR.T
POINT, TARGET = RNG.standard_normal((2, 8, 8))
PLAIN = (HESSIAN @ (POINT - TARGET).ravel()).reshape(8, 8)


def test_lotion_adds_the_slope_of_the_penalty_to_the_plain_gradient():
    diagonal = np.diag(HESSIAN).reshape(8, 8)
    _, slope = penalty_and_slope("int4", POINT, diagonal, per_tensor())
    assert np.abs(slope).max() > 0.1
    with jax.enable_x64(True):
        penalty: Any = add_lotion_penalty(INT4, curvature=jnp.asarray(diagonal))
        params, g = jnp.asarray(POINT), jnp.asarray(PLAIN)
        updates, _ = jax.jit(penalty.update)(g, penalty.init(params), params)
    np.testing.assert_allclose(np.asarray(updates) - PLAIN, slope, atol=1e-6)


@pytest.mark.slow
def test_the_mean_gradient_of_rat_is_the_plain_gradient_and_lacks_that_slope():
    method, draws, chunk = METHODS["rat"], 100_000, 2_000
    h, w, target, plain = (
        jnp.asarray(x, jnp.float32) for x in (HESSIAN, POINT, TARGET, PLAIN)
    )

    def loss(w, key):
        x = (method.apply((), key, w) - target).ravel()
        return 0.5 * x @ h @ x

    @jax.jit
    def moments(keys):
        def one(keys):
            error = jax.vmap(jax.grad(loss), (None, 0))(w, keys) - plain
            return jnp.sum(error, axis=0), jnp.sum(error**2, axis=0)

        return jax.lax.map(one, keys.reshape(-1, chunk))

    keys = jax.random.split(jax.random.key(0), draws)
    first, second = (np.asarray(m, np.float64).sum(axis=0) for m in moments(keys))
    mean = first / draws
    standard_error = np.sqrt((second / draws - mean**2) / draws)
    # 64 numbers within five standard errors: false alarm 4e-5.
    assert np.all(np.abs(mean) <= 5 * standard_error)
    assert standard_error.max() < 0.01  # where the slope is above 0.1


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: quantize_params_fn(INT4, mode="up"),
            "mode must be one of nearest, ra",
        ),
        (lambda: quantize_params_fn(INT4, mode="random")(W), "key must be a typed key"),
        (lambda: METHODS["pseudo_noise"].apply((), None, W), "key must be a typed key"),
        (lambda: ste_clip(INT4, 0.0), r"ratio must be in \(0, 1\], got 0.0"),
        (lambda: ste_clip(INT4, 1.5), r"ratio must be in \(0, 1\], got 1.5"),
        (lambda: dampening(INT4, np.inf), "strength must be finite and >= 0, got inf"),
        (lambda: lsq(cast(Any, "int4")), "quantizer must be made by make_quantizer"),
        (lambda: dampening(INT4, -1.0), "strength must be >= 0, got -1.0"),
        (lambda: add_dampening_penalty(INT4, -1.0), "strength must be >= 0, got -1.0"),
        (
            lambda: ste(INT4, {"v": True}).init({"w": W}),
            "mask must be a pytree of bools",
        ),
        (
            lambda: lsq(INT4, True).init({"i": jnp.ones(2, jnp.int32)}),
            r"params\['i'\] .*floating",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
