import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

from jaxopt_suite.core import (
    LoopState,
    Problem,
    device_mesh,
    optimization_loop,
    optimize,
    sweep,
)

CURVATURE = np.array([1.0, 0.5, 0.25], np.float32)
KEYS = jax.random.split(jax.random.key(7), 3)


def noisy_quadratic(noise=1.0):
    return Problem(
        init=lambda key: jax.random.uniform(key, (3,)),
        grad=lambda key, x: CURVATURE * x + noise * jax.random.uniform(key, x.shape),
        metrics=lambda x: {"loss": jnp.sum(CURVATURE * x**2) / 2},
    )


def descend_by_hand(key, rate, steps):
    """The documented key discipline, in NumPy."""
    init_key, grad_key = jax.random.split(key)
    x = np.asarray(jax.random.uniform(init_key, (3,)), np.float64)
    losses = [np.sum(CURVATURE * x**2) / 2]
    for t in range(steps):
        noise = np.asarray(jax.random.uniform(jax.random.fold_in(grad_key, t), (3,)))
        x = x - rate * (CURVATURE * x + noise)
        losses.append(np.sum(CURVATURE * x**2) / 2)
    return x, np.array(losses)


@pytest.mark.parametrize("record_every", [1, 4])
def test_optimize_equals_a_loop_by_hand(record_every):
    key = jax.random.key(1)
    result = optimize(
        optax.sgd(0.3), noisy_quadratic(), key, 12, record_every=record_every
    )
    x, losses = descend_by_hand(key, 0.3, 12)
    np.testing.assert_allclose(result.params, x, rtol=1e-5)
    np.testing.assert_allclose(result.record["loss"], losses[::record_every], rtol=1e-5)


def test_params_and_record_replace_those_of_the_problem():
    result = optimize(
        optax.sgd(0.5, momentum=0.9),
        noisy_quadratic(0.0),
        jax.random.key(0),
        2,
        params=jnp.array([4.0, 0.0, 0.0]),
        record=lambda params, state: (params[0], optax.tree.get(state, "trace")[0]),
    )
    # v <- 0.9 v + x, x <- x - v / 2: from x = 4, v = 4, 5.6.
    np.testing.assert_allclose(result.record[0], [4.0, 2.0, -0.8], rtol=1e-6)
    np.testing.assert_allclose(result.record[1], [0.0, 4.0, 5.6], rtol=1e-6)
    np.testing.assert_allclose(optax.tree.get(result.state, "trace")[0], 5.6, rtol=1e-6)


def test_the_loop_taken_one_update_at_a_time_is_the_driver():
    key, problem = jax.random.key(2), noisy_quadratic()
    loop = optimization_loop(optax.adam(0.1), problem, record_every=2)
    state, rows = loop.init(key), []
    assert isinstance(state, LoopState)
    for _ in range(3):
        row, state = loop.update(None, state)
        rows.append(row["loss"])
    result = optimize(optax.adam(0.1), problem, key, 6, record_every=2)
    np.testing.assert_allclose(result.record["loss"][1:], rows, rtol=1e-6)
    np.testing.assert_allclose(result.params, state.params, rtol=1e-6)
    assert int(state.step) == 6


def test_the_oracle_repeats_the_steps_own_sample():
    def update(updates, state, params=None, **extra):
        difference = jnp.max(jnp.abs(extra["grad_fn"](params) - updates))
        return updates, jnp.maximum(state, difference)

    oracle = optax.GradientTransformationExtraArgs(lambda params: jnp.zeros([]), update)
    tx = optax.chain(oracle, optax.sgd(0.1))
    result = optimize(tx, noisy_quadratic(), jax.random.key(3), 5)
    assert result.state[0] == 0.0


def test_sharpness_aware_minimization_gets_its_second_gradient():
    adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.2))
    tx = optax.contrib.sam(optax.sgd(0.3), adversary, opaque_mode=True)
    key = jax.random.key(4)
    result = optimize(tx, noisy_quadratic(), key, 1)
    init_key, grad_key = jax.random.split(key)
    x = np.asarray(jax.random.uniform(init_key, (3,)))
    noise = np.asarray(jax.random.uniform(jax.random.fold_in(grad_key, 0), (3,)))
    first = CURVATURE * x + noise
    second = CURVATURE * (x + 0.2 * first / np.linalg.norm(first)) + noise
    np.testing.assert_allclose(result.params, x - 0.3 * second, rtol=1e-5)


def test_bare_transformations_and_per_example_gradients_work():
    mean = optax.GradientTransformation(
        lambda params: (), lambda updates, state, params=None: (updates.mean(0), state)
    )
    problem = Problem(
        init=lambda key: jnp.ones(2),
        grad=lambda key, x: x * jnp.array([[1.0], [3.0]]),
        metrics=jnp.sum,
    )
    tx = optax.chain(mean, optax.sgd(0.25))
    np.testing.assert_allclose(
        optimize(tx, problem, jax.random.key(0), 2).record, [2.0, 1.0, 0.5]
    )


def test_memory_is_that_of_the_record():
    def bytes_of(num_steps):
        run = functools.partial(
            optimize,
            optax.adam(0.1),
            noisy_quadratic(),
            num_steps=num_steps,
            record_every=num_steps // 10,
        )
        memory = jax.jit(run).lower(jax.random.key(0)).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    assert bytes_of(100_000) == bytes_of(100)  # ten rows each


def test_optimize_says_what_is_wrong():
    tx, problem, key = optax.sgd(0.1), noisy_quadratic(), jax.random.key(0)
    with pytest.raises(ValueError, match="num_steps=10 and record_every=4"):
        optimize(tx, problem, key, 10, record_every=4)
    with pytest.raises(ValueError, match="num_steps must be an integer >= 1, got 0"):
        optimize(tx, problem, key, 0)
    with pytest.raises(ValueError, match="record_every must be an integer >= 1"):
        optimize(tx, problem, key, 10, record_every=0)


class Counted:
    """A run that counts how often it is traced."""

    def __init__(self):
        self.traces = 0

    def __call__(self, key, rate, offset):
        self.traces += 1
        result = optimize(
            optax.sgd(rate), noisy_quadratic(), key, 10, params=offset, record_every=5
        )
        return {"loss": result.record["loss"], "key": key, "rate": rate}


# The names are not in alphabetical order, and one value is a vector.
GRID = {"rate": np.array([0.1, 0.4], np.float32), "offset": np.eye(3)[:, [0, 2, 1]]}


@functools.cache
def looped_sweep():
    """Every run on its own, one after the other."""
    one = jax.jit(Counted())
    losses = [
        [[one(key, rate, offset)["loss"] for key in KEYS] for offset in GRID["offset"]]
        for rate in GRID["rate"]
    ]
    return np.array(losses)


def test_a_sweep_is_one_trace_and_equals_the_loop():
    run = Counted()
    swept = sweep(run, KEYS, GRID)
    assert run.traces == 1
    np.testing.assert_allclose(swept["loss"], looped_sweep(), rtol=1e-5)
    assert swept["loss"].shape == (2, 3, 3, 3)
    np.testing.assert_array_equal(
        swept["rate"], np.broadcast_to(GRID["rate"][:, None, None], (2, 3, 3))
    )
    assert jnp.all(swept["key"] == KEYS)
    sweep(run, KEYS[::-1], {**GRID, "rate": GRID["rate"] / 2})
    assert run.traces == 1


@pytest.mark.parametrize(
    ("shape", "axis_type"), [((8,), AxisType.Auto), ((2, 3), AxisType.Explicit)]
)
def test_a_mesh_gives_the_same_numbers(shape, axis_type):
    names = ("a", "b")[: len(shape)]
    mesh = jax.make_mesh(
        shape,
        names,
        axis_types=(axis_type,) * len(shape),
        devices=jax.devices()[: np.prod(shape)],
    )
    run = Counted()
    swept = sweep(run, KEYS, GRID, mesh=mesh)  # 18 lanes: padded to 24, or even
    assert run.traces == 1
    np.testing.assert_allclose(swept["loss"], looped_sweep(), rtol=1e-5)
    assert jnp.all(jax.device_get(swept["key"] == KEYS))
    assert swept["loss"].sharding.is_fully_replicated


def test_fewer_lanes_than_devices_and_no_grid():
    draw = functools.partial(jax.random.uniform, shape=(2,))
    on_mesh = sweep(draw, KEYS, {}, mesh=device_mesh("lanes"))
    np.testing.assert_array_equal(on_mesh, [draw(key) for key in KEYS])
    np.testing.assert_array_equal(sweep(draw, KEYS, {}), on_mesh)


def test_devices_work_alone_until_the_results_are_gathered():
    draw = functools.partial(jax.random.uniform, shape=(2,))
    compiled = jax.jit(lambda keys: sweep(draw, keys, {}, mesh=device_mesh("lanes")))
    text = compiled.lower(KEYS).compile().as_text()
    assert text is not None
    assert "all-gather" in text
    for collective in ("all-reduce", "all-to-all", "collective-permute"):
        assert collective not in text


@pytest.mark.parametrize("devices", [None, 8])
def test_the_axis_is_named_lanes(devices):
    mesh = None if devices is None else device_mesh("x", devices)

    def run(key, value):
        return jax.lax.pmax(value, "lanes")

    values = np.arange(8.0)
    swept = sweep(run, KEYS[:1], {"value": values}, mesh=mesh)
    # On a mesh each device sees the lanes that are its own: one each here.
    np.testing.assert_array_equal(swept[:, 0], values if devices else np.full(8, 7.0))


def test_a_sweep_can_be_traced():
    shapes = jax.eval_shape(lambda keys: sweep(Counted(), keys, GRID), KEYS)
    assert shapes["loss"].shape == (2, 3, 3, 3)


def two_names(key, rate, power=1.0):
    return rate * power


@pytest.mark.parametrize(
    ("keys", "grid", "message"),
    [
        (jnp.zeros((3, 2), jnp.uint32), {"rate": [1.0]}, r"typed keys.*uint32\[3,2\]"),
        (KEYS[0], {"rate": [1.0]}, r"one-dimensional.*got key<fry>\[\]"),
        (KEYS[:0], {"rate": [1.0]}, r"got key<fry>\[0\]"),
        (KEYS, {"rate": 0.1}, r"grid\['rate'\] must have a leading axis"),
        (KEYS, {"rate": []}, r"grid\['rate'\].*got shape \(0,\)"),
        (KEYS, {"rate": [1.0], "size": [2]}, r"\['rate', 'size'\].*'size'"),
        (KEYS, {"power": [1.0]}, r"run\(key, rate, power=1.0\).*'rate'"),
    ],
)
def test_a_sweep_says_what_is_wrong(keys, grid, message):
    with pytest.raises(ValueError, match=message):
        sweep(two_names, keys, grid)
