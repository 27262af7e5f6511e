"""Medians over microbatches and over groups of a batch, for any model."""

import equinox as eqx
import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.experimental import aggregating

from jaxopt_suite.stochastic import (
    accumulate_median_of_means,
    group_gradients,
    median_of_means_steps,
    robustify,
)

PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.ones([], jnp.bfloat16)}


def stream(count, seed=0):
    """Heavy-tailed gradients of PARAMS, one after the other along the first axis."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: jnp.asarray(rng.standard_cauchy((count, *p.shape)), p.dtype), PARAMS
    )


def scanned(transformation, gradients, params=PARAMS):
    """Updates and states after each call, stacked."""

    def step(state, gradient):
        updates, state = transformation.update(gradient, state, params)
        return state, (updates, state)

    return jax.jit(lambda g: jax.lax.scan(step, transformation.init(params), g)[1])(
        gradients
    )


def window_medians(gradients, k):
    return jax.tree.map(
        lambda x: np.median(
            np.asarray(x, np.float32).reshape(-1, k, *x.shape[1:]), axis=1
        ),
        gradients,
    )


# --- one gradient per call ----------------------------------------------------------


def test_every_kth_call_returns_the_median_of_the_last_k_and_the_others_zero():
    gradients = stream(15)
    updates, states = scanned(accumulate_median_of_means(5), gradients)
    ready = np.arange(15) % 5 == 4
    np.testing.assert_array_equal(states.ready, ready)
    np.testing.assert_array_equal(states.micro_step, (np.arange(15) + 1) % 5)
    for name, median in window_medians(gradients, 5).items():
        assert updates[name].dtype == PARAMS[name].dtype
        np.testing.assert_array_equal(updates[name][ready], median)
        np.testing.assert_array_equal(
            updates[name][~ready], np.zeros_like(updates[name][~ready])
        )


def test_one_gradient_a_window_passes_everything_through():
    gradients = stream(3)
    updates, states = scanned(accumulate_median_of_means(1), gradients)
    np.testing.assert_array_equal(updates["w"], gradients["w"])
    assert np.all(states.ready)


def test_values_that_are_not_finite_stay_in_their_window_and_coordinate():
    gradients = {"w": jnp.ones((6, 2, 2)), "b": jnp.ones(6, jnp.bfloat16)}
    gradients["w"] = gradients["w"].at[0, 0, 0].set(jnp.inf).at[1, 1, 1].set(jnp.nan)
    updates, _ = scanned(accumulate_median_of_means(3), gradients)
    expected = np.zeros((6, 2, 2))
    expected[[2, 5]] = 1.0
    expected[2, 1, 1] = np.nan
    np.testing.assert_array_equal(updates["w"], expected)


def test_the_inner_state_advances_once_per_window():
    gradients = stream(12)
    ours, states = scanned(median_of_means_steps(optax.adamw(0.1), 3), gradients)
    np.testing.assert_array_equal(states.inner_state[0].count, np.arange(1, 13) // 3)
    medians = jax.tree.map(
        lambda m, p: jnp.asarray(m, p.dtype), window_medians(gradients, 3), PARAMS
    )
    theirs, inner_states = scanned(optax.adamw(0.1), medians)
    # Fusions round a bfloat16 at other places: a few units of 2^-8.
    for name, unit in {"w": 1e-6, "b": 2.0**-5}.items():
        np.testing.assert_allclose(
            np.float32(ours[name][2::3]), np.float32(theirs[name]), rtol=unit
        )
        np.testing.assert_array_equal(ours[name].reshape(4, 3, -1)[:, :2], 0.0)
        for moment in ("mu", "nu"):
            moments = getattr(states.inner_state[0], moment)[name]
            expected = getattr(inner_states[0], moment)[name]
            np.testing.assert_allclose(
                np.float32(moments[2::3]), np.float32(expected), rtol=unit
            )
            np.testing.assert_array_equal(moments[3::3], moments[2:-1:3])
            np.testing.assert_array_equal(moments[:2], np.zeros_like(moments[:2]))


def test_extra_arguments_reach_the_inner_optimizer():
    seen = optax.GradientTransformationExtraArgs(
        lambda params: jnp.zeros([]),
        lambda updates, state, params=None, **extra: (updates, state + extra["value"]),
    )
    optimizer = median_of_means_steps(seen, 3)
    state, update = optimizer.init(jnp.zeros([])), jax.jit(optimizer.update)
    for value in (1.0, 10.0, 100.0, 1000.0):
        _, state = update(jnp.ones([]), state, value=value)
    assert state.inner_state == 100.0


def test_it_accumulates_inside_optax_process():
    process = aggregating.process(
        optax.identity(), accumulate_median_of_means(3), optax.adam(0.1)
    )
    gradients = {"w": stream(6)["w"]}
    params = {"w": PARAMS["w"]}
    ours, states = scanned(process, gradients, params)
    theirs, expected = scanned(
        median_of_means_steps(optax.adam(0.1), 3), gradients, params
    )
    np.testing.assert_array_equal(ours["w"], theirs["w"])
    counts = np.asarray(states[2][0].count)
    np.testing.assert_array_equal(counts, [0, 0, 1, 1, 1, 2])
    np.testing.assert_array_equal(counts, expected.inner_state[0].count)


# --- one gradient per group ---------------------------------------------------------


def squares(params, batch):
    x, y = batch
    errors = x @ params["w"] + params["b"] - y
    return jnp.mean(errors**2), {"largest": jnp.max(jnp.abs(errors))}


def regression(batch, seed=0):
    rng = np.random.default_rng(seed)
    params = {"w": jnp.asarray(rng.normal(size=3), jnp.float32), "b": jnp.zeros([])}
    x = jnp.asarray(rng.normal(size=(batch, 3)), jnp.float32)
    return params, (x, jnp.asarray(rng.normal(size=batch), jnp.float32))


@pytest.mark.parametrize("mode", ["vmap", "map"])
def test_group_gradients_equal_the_closed_form_in_each_group(mode):
    params, (x, y) = regression(12)
    fn = jax.jit(group_gradients(squares, 3, has_aux=True, mode=mode))
    (values, aux), grads = fn(params, (x, y))
    for j in range(3):
        rows = slice(4 * j, 4 * j + 4)
        xs, errors = np.asarray(x[rows]), np.asarray(x[rows] @ params["w"] - y[rows])
        np.testing.assert_allclose(values[j], np.mean(errors**2), rtol=1e-5)
        np.testing.assert_allclose(aux["largest"][j], np.abs(errors).max(), rtol=1e-5)
        np.testing.assert_allclose(grads["w"][j], errors @ xs / 2, rtol=1e-4)
        np.testing.assert_allclose(
            grads["b"][j], 2 * errors.mean(), rtol=1e-4, atol=1e-6
        )


def test_the_group_gradients_average_to_the_gradient_of_the_batch():
    params, batch = regression(12)
    loss = lambda params, batch: squares(params, batch)[0]  # noqa: E731
    values, grads = jax.jit(group_gradients(loss, 4))(params, batch)
    value, gradient = jax.jit(jax.value_and_grad(loss))(params, batch)
    np.testing.assert_allclose(values.mean(), value, rtol=1e-5)
    np.testing.assert_allclose(grads["w"].mean(axis=0), gradient["w"], rtol=1e-4)


class Count(eqx.Module):
    """An Equinox layer with leaves that have no gradient."""

    linear: eqx.nn.Linear
    calls: jax.Array
    name: str = eqx.field(static=True)

    def __call__(self, x):
        return jnp.tanh(self.linear(x)[0])


class Layer(linen.Module):
    @linen.compact
    def __call__(self, x):
        return jnp.tanh(linen.Dense(1)(x)[..., 0])


def equinox_model():
    model = Count(eqx.nn.Linear(3, 1, key=jax.random.key(0)), jnp.arange(2), "layer")
    return model, lambda model, x: jax.vmap(model)(x)


def linen_model():
    layer = Layer()
    return layer.init(jax.random.key(0), jnp.zeros(3)), layer.apply


def nnx_model():
    try:
        from flax import nnx
    except AttributeError:
        pytest.skip("this Flax reaches for a name that this JAX has moved")
    graph, params = nnx.split(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    return params, lambda params, x: jnp.tanh(nnx.merge(graph, params)(x)[..., 0])


@pytest.mark.parametrize("model", [equinox_model, linen_model, nnx_model])
def test_any_optimizer_made_robust_ignores_a_corrupted_group_of_any_model(model):
    # The model's gradient is linear in the targets that are 1e20 in the last group.
    params, predict = model()
    x = jax.random.normal(jax.random.key(1), (20, 3))
    y = jnp.zeros(20).at[-3].set(1e20)

    def loss(params, batch):
        x, y = batch
        return jnp.mean((predict(params, x) - y) ** 2)

    optimizer = robustify(optax.adam(0.1), 5)
    assert isinstance(optimizer, aggregating.Aggregator)
    trained = eqx.filter(params, eqx.is_inexact_array)
    state = optimizer.init(trained)

    @eqx.filter_jit
    def train(params, trained, state):
        _, grads = group_gradients(loss, 5)(params, (x, y))
        updates, _ = optimizer.update(grads, state, trained)
        return eqx.apply_updates(params, updates), updates, grads

    moved, updates, grads = train(params, trained, state)
    assert jax.tree.structure(moved) == jax.tree.structure(params)
    for update, gradient in zip(
        jax.tree.leaves(updates), jax.tree.leaves(grads), strict=True
    ):
        gradient = np.asarray(gradient)
        assert gradient.shape == (5, *update.shape)
        assert np.abs(gradient[-1]).max() > 1e15
        median = np.median(gradient, axis=0)
        # Adam's first step is a sign, as long as the gradient is far above its eps.
        assert np.abs(median).min() > 1e-4
        np.testing.assert_allclose(update, -0.1 * np.sign(median), rtol=1e-3)


def test_robustify_with_one_group_is_the_optimizer_on_the_mean():
    gradients = stream(6)["w"]
    optimizer, plain = robustify(optax.adam(0.1), 1), optax.adam(0.1)
    ours, _ = jax.jit(optimizer.update)(gradients, optimizer.init(PARAMS["w"]))
    mean = gradients.mean(axis=0)
    theirs, _ = jax.jit(plain.update)(mean, plain.init(PARAMS["w"]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# --- bad input ----------------------------------------------------------------------


def mean_loss(params, batch):
    return jnp.mean(batch) * params


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accumulate_median_of_means(2), "num_groups .*odd.*got 2"),
        (lambda: median_of_means_steps(optax.sgd(1.0), 0), "num_groups .*odd.*got 0"),
        (lambda: robustify(optax.sgd(1.0), 4), "num_groups .*odd.*got 4"),
        (lambda: group_gradients(mean_loss, 0), "num_groups .*>= 1, got 0"),
        (
            lambda: group_gradients(mean_loss, 3, mode="scan"),
            "mode must be one of vmap, map, got 'scan'",
        ),
        (
            lambda: group_gradients(mean_loss, 3)(1.0, jnp.ones(10)),
            "batch size 10 and num_groups 3",
        ),
        (
            lambda: group_gradients(mean_loss, 3)(1.0, jnp.ones(0)),
            "batch size 0 and num_groups 3",
        ),
        (
            lambda: group_gradients(mean_loss, 3)(1.0, [jnp.ones(3), jnp.ones(6)]),
            r"got 3 at batch\[0\] and 6 at batch\[1\]",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integer_gradients_are_refused():
    transformation = accumulate_median_of_means(3)
    state = transformation.init({"a": jnp.zeros(2)})
    with pytest.raises(ValueError, match=r"\['a'\] must have a floating dtype"):
        transformation.update({"a": jnp.arange(2)}, state)
