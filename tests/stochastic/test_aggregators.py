"""Aggregators: over devices, in chains, with keys and schedules of the group size."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from optax.experimental import aggregating

from jaxopt_suite.stochastic import (
    adaptive_median_of_means,
    aggregate_clip_then_mean,
    aggregate_geometric_median,
    aggregate_mean,
    aggregate_median_of_means,
    aggregate_medoid,
    aggregate_trimmed_mean,
    clip_then_mean,
    geometric_median,
    median_of_means_tree,
    medoid,
    trimmed_mean,
)

PARAMS = {"w": jnp.zeros((2, 3)), "b": jnp.zeros([]), "h": jnp.zeros(2, jnp.bfloat16)}


def gradients(batch, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: jnp.asarray(rng.standard_cauchy((batch, *p.shape)), p.dtype), PARAMS
    )


def numpy_median(samples, num_groups=5):
    x = np.asarray(samples, np.float64)
    return np.median(x.reshape(num_groups, -1, *x.shape[1:]).mean(axis=1), axis=0)


def largest_finite(samples):
    x = np.asarray(samples, np.float64)
    return np.abs(np.nan_to_num(x, posinf=0, neginf=0)).max(axis=0)


def assert_trees_equal(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


def updated(aggregator, samples) -> Any:
    return aggregator.update(samples, aggregator.init(PARAMS))[0]


# --- devices ------------------------------------------------------------------------


def spread(kind, devices, update, samples):
    """Runs ``update`` with the samples divided over some of the host's devices."""
    if kind == "shard_map":
        auto = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((devices,), ("d",), auto, devices=jax.devices()[:devices])
        # No mapped output axis: the result must be known to be the same everywhere.
        mapped = jax.shard_map(
            update, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec()
        )
        return jax.jit(mapped)(samples)
    split = jax.tree.map(lambda x: x.reshape(devices, -1, *x.shape[1:]), samples)
    mapped = jax.pmap(update, axis_name="d", devices=jax.devices()[:devices])(split)
    for leaf in jax.tree.leaves(mapped):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
    return jax.tree.map(lambda x: x[0], mapped)


def on_devices(kind, devices, num_groups, samples, axis_name="d", **mom):
    aggregator = aggregate_median_of_means(num_groups, axis_name=axis_name, **mom)
    return spread(kind, devices, lambda s: updated(aggregator, s), samples)


def on_one_device(num_groups, samples, **mom):
    aggregator = aggregate_median_of_means(num_groups, **mom)
    return jax.jit(lambda s: updated(aggregator, s))(samples)


def with_extremes(batch):
    """Cauchy samples, an infinity, both infinities in one group, a NaN, many -inf."""
    rng = np.random.default_rng(batch)
    w = rng.standard_cauchy((batch, 7)).astype(np.float32)
    w[0, 0], w[:2, 1], w[-1, 2] = np.inf, [np.inf, -np.inf], np.nan
    w[: batch // 2 + 2, 3] = -np.inf
    return {"w": jnp.asarray(w), "h": jnp.asarray(w[:, 4], jnp.bfloat16)}


def cases(*pairs, fast):
    """Every pair under both kinds of mapping; all but the fast ones marked slow."""
    every = [(kind, *pair) for kind in ("shard_map", "pmap") for pair in pairs]
    later = lambda case: pytest.param(*case, marks=pytest.mark.slow)  # noqa: E731
    return [case if case in fast else later(case) for case in every]


ONE_TO_FIVE = [("shard_map", 1), ("shard_map", 3), ("shard_map", 5), ("pmap", 3)]
DIVIDING = cases((1,), (3,), (5,), fast=ONE_TO_FIVE)
TWO_TO_EIGHT = [("shard_map", 2, 5), ("shard_map", 4, 15), ("shard_map", 8, 5)]
STRADDLING = cases((2, 5), (2, 15), (4, 5), (4, 15), (8, 5), (8, 15), fast=TWO_TO_EIGHT)


@pytest.mark.parametrize(("kind", "devices"), DIVIDING)
def test_devices_that_divide_the_groups_equal_one_device_bit_for_bit(kind, devices):
    samples = with_extremes(15 * devices)
    ours = on_devices(kind, devices, 15, samples)
    assert_trees_equal(ours, on_one_device(15, samples))


@pytest.mark.parametrize(("kind", "devices", "num_groups"), STRADDLING)
def test_groups_across_devices_equal_one_device_to_rounding(kind, devices, num_groups):
    samples = with_extremes(15 * devices)
    ours = on_devices(kind, devices, num_groups, samples)
    alone = on_one_device(num_groups, samples)
    for name, x in samples.items():
        a, b = (np.asarray(tree[name], np.float64) for tree in (ours, alone))
        finite = np.isfinite(a)
        # What is not finite is so on one device, and the same: inf, -inf or NaN.
        np.testing.assert_array_equal(finite, np.isfinite(b))
        np.testing.assert_array_equal(a[~finite], b[~finite])
        scale = largest_finite(x)
        unit = 1e-2 if x.dtype == jnp.bfloat16 else 1e-6
        difference = np.abs(a[finite] - b[finite])
        assert np.all(difference <= unit * scale[finite]), name
    assert np.isnan(alone["w"][2])
    assert alone["w"][3] == -np.inf
    assert np.isfinite(np.asarray(alone["w"])[[0, 4, 5, 6]]).all()


def test_float64_across_devices_is_equal_to_float64_rounding():
    with jax.enable_x64(True):
        samples = jnp.asarray(np.random.default_rng(0).standard_cauchy((30, 5)))
        ours = on_devices("shard_map", 2, 5, samples)
        alone = on_one_device(5, samples)
        scale = np.abs(samples).max(axis=0)
    assert ours.dtype == jnp.float64
    assert np.all(np.abs(ours - alone) <= 1e-14 * scale)


@pytest.mark.slow
def test_smoothing_draws_the_same_noise_on_all_devices_as_on_one():
    samples = gradients(9)["w"]
    mom = {"smoothing": 0.5, "key": jax.random.key(3)}
    ours = on_devices("shard_map", 3, 3, samples, **mom)
    np.testing.assert_allclose(ours, on_one_device(3, samples, **mom), rtol=1e-5)


def test_the_samples_may_be_spread_over_two_mesh_axes():
    samples = gradients(20)["w"]
    aggregator = aggregate_median_of_means(5, axis_name=("host", "chip"))
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("host", "chip"), auto, devices=jax.devices()[:4])
    run = jax.shard_map(
        lambda s: updated(aggregator, s),
        mesh=mesh,
        in_specs=PartitionSpec(("host", "chip")),
        out_specs=PartitionSpec(),
    )
    scale = float(jnp.abs(samples).max())
    np.testing.assert_allclose(
        jax.jit(run)(samples), on_one_device(5, samples), atol=1e-6 * scale
    )


def test_the_message_about_devices_has_all_the_numbers():
    with pytest.raises(ValueError, match="num_groups 7 for 2 devices with 15 samples"):
        on_devices("shard_map", 2, 7, jnp.ones((30, 2)))


def test_an_empty_tree_stays_empty_on_devices_too():
    for axis_name in (None, "d"):
        aggregator = aggregate_median_of_means(3, axis_name=axis_name)
        empty: Any = lambda: aggregator.update({}, aggregator.init({}))[0]  # noqa: E731
        run = lambda x: x + len(empty())  # noqa: E731
        np.testing.assert_array_equal(
            jax.vmap(run, axis_name="d")(jnp.ones(3)), jnp.ones(3)
        )


# --- alone and in chains ------------------------------------------------------------

PAIRS = {
    "median_of_means": (
        aggregate_median_of_means(5),
        lambda s: median_of_means_tree(s, 5),
    ),
    "geometric_median": (
        aggregate_geometric_median(5, num_iters=7, eps=1e-3),
        lambda s: geometric_median(s, 5, num_iters=7, eps=1e-3),
    ),
    "medoid": (aggregate_medoid(5), lambda s: medoid(s, 5)),
    "trimmed_mean": (aggregate_trimmed_mean(2), lambda s: trimmed_mean(s, 2)),
    "clip_then_mean": (
        aggregate_clip_then_mean(0.3),
        lambda s: clip_then_mean(s, 0.3),
    ),
    "mean": (
        aggregate_mean(),
        lambda s: jax.tree.map(lambda x: x.mean(0, jnp.float32).astype(x.dtype), s),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_each_aggregator_is_its_function_and_counts(name):
    aggregator, function = PAIRS[name]
    assert isinstance(aggregator, aggregating.Aggregator)
    samples = gradients(15)

    @jax.jit
    def both(samples):
        state: Any = aggregator.init(PARAMS)
        _, state = aggregator.update(samples, state, PARAMS, value=1.0)
        ours, state = aggregator.update(samples, state)
        return ours, function(samples), state.count

    ours, expected, count = both(samples)
    assert_trees_equal(ours, expected, rtol=1e-6)
    assert (int(count), count.dtype) == (2, jnp.int32)
    assert aggregator.update({}, aggregator.init({}))[0] == {}


def test_a_chain_feeds_the_median_to_the_optimizer():
    samples = gradients(15)
    optimizer = optax.chain(aggregate_median_of_means(5), optax.adamw(0.1))
    inner = optax.adamw(0.1)

    @jax.jit
    def both(samples):
        ours, _ = optimizer.update(samples, optimizer.init(PARAMS), PARAMS)
        reduced = median_of_means_tree(samples, 5)
        return ours, inner.update(reduced, inner.init(PARAMS), PARAMS)[0]

    assert_trees_equal(*both(samples), rtol=1e-6)


def test_parts_of_a_model_may_be_aggregated_in_different_ways():
    optimizer = optax.multi_transform(
        {
            "median": optax.chain(aggregate_median_of_means(5), optax.sgd(1.0)),
            "mean": optax.chain(aggregate_mean(), optax.sgd(1.0)),
        },
        {"w": "median", "b": "mean", "h": "median"},
    )
    samples = gradients(15)
    ours, _ = jax.jit(optimizer.update)(samples, optimizer.init(PARAMS), PARAMS)
    np.testing.assert_allclose(ours["w"], -numpy_median(samples["w"]), rtol=1e-4)
    np.testing.assert_allclose(ours["h"], -numpy_median(samples["h"]), rtol=1e-2)
    np.testing.assert_allclose(ours["b"], -np.mean(samples["b"]), rtol=1e-4)


def test_it_is_the_middle_of_optax_process():
    process = aggregating.process(
        optax.scale(2.0), aggregate_median_of_means(5), optax.trace(0.9)
    )
    assert isinstance(process, aggregating.Aggregator)
    samples = gradients(15)

    @jax.jit
    def two(samples):
        _, state = process.update(samples, process.init(PARAMS))
        return process.update(samples, state)[0]

    # A trace of the same gradient g twice is (1 + 0.9) g.
    ours = two(samples)
    np.testing.assert_allclose(ours["w"], 3.8 * numpy_median(samples["w"]), rtol=1e-4)
    np.testing.assert_allclose(ours["b"], 3.8 * numpy_median(samples["b"]), rtol=1e-4)


def test_the_smoothing_key_is_split_at_every_update():
    aggregator = aggregate_median_of_means(3, smoothing=1.0, key=jax.random.key(0))
    samples, state = jnp.zeros((3, 100)), cast(Any, aggregator.init(jnp.zeros(100)))
    update = jax.jit(aggregator.update)
    keys, draws = [], []
    for _ in range(3):
        keys.append(tuple(np.asarray(jax.random.key_data(state.key))))
        reduced, state = update(samples, state)
        draws.append(np.asarray(reduced))
    assert len(set(keys)) == 3
    assert not np.any(draws[0] == draws[1])
    again, _ = update(samples, aggregator.init(jnp.zeros(100)))
    np.testing.assert_array_equal(draws[0], again)
    assert cast(Any, aggregate_median_of_means(3).init(PARAMS)).key is None


def test_smoothing_may_be_traced():
    samples, key = jnp.zeros((3, 4)), jax.random.key(0)

    def run(smoothing):
        return updated(
            aggregate_median_of_means(3, smoothing=smoothing, key=key), samples
        )

    swept = jax.jit(jax.vmap(run))(jnp.array([0.5, 1.0]))
    np.testing.assert_allclose(swept[1], 2 * swept[0], rtol=1e-6)
    alone = jax.jit(lambda: run(1.0))()
    np.testing.assert_allclose(swept[1], alone, rtol=1e-6)


# --- a schedule of the group size ---------------------------------------------------


def group_size_by_hand(batch, wanted):
    allowed = [n for n in range(1, batch + 1) if batch % n == 0 and batch // n % 2]
    return max([n for n in allowed if n <= wanted], default=allowed[0])


@pytest.mark.parametrize("batch", [60, 75])
def test_adaptive_groups_equal_a_loop_over_group_sizes_in_one_trace(batch):
    wanted = np.array([0, 1, 2, 3, 4, 5, 8, 14, 15, 30, 44, 59, 75, 1000])
    samples = with_extremes(batch)
    params = jax.tree.map(lambda x: x[0], samples)
    traces = 0

    def schedule(count):
        nonlocal traces
        traces += 1
        return jnp.asarray(wanted)[count]

    aggregator = adaptive_median_of_means(schedule)
    step, state = jax.jit(aggregator.update), aggregator.init(params)
    for count, want in enumerate(wanted):
        ours, state = step(samples, state)
        n = group_size_by_hand(batch, want)
        assert state.group_size == n
        assert state.count == count + 1
        for name, x in samples.items():
            assert ours[name].dtype == x.dtype
            scale = largest_finite(x).max()
            unit = 1e-2 if x.dtype == jnp.bfloat16 else 1e-6
            with np.errstate(invalid="ignore"):  # inf - inf in a group
                expected = numpy_median(x, batch // n)
            np.testing.assert_allclose(
                np.float64(ours[name]), expected, rtol=unit, atol=unit * scale
            )
    assert traces == 1
    assert aggregator.update({}, aggregator.init({}))[0] == {}


# --- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: aggregate_median_of_means(4), "num_groups .*odd.*got 4"),
        (lambda: aggregate_geometric_median(0), "num_groups .*odd.*got 0"),
        (lambda: aggregate_geometric_median(3, num_iters=-1), "num_iters .*got -1"),
        (lambda: aggregate_geometric_median(3, eps=-1.0), "eps .*> 0, got -1.0"),
        (lambda: aggregate_medoid(cast(Any, 2.5)), "num_groups .*odd.*got 2.5"),
        (lambda: aggregate_trimmed_mean(-1), "trim .*>= 0, got -1"),
        (lambda: aggregate_clip_then_mean(0.0), "max_norm .*> 0, got 0.0"),
        (
            lambda: adaptive_median_of_means(cast(Any, 3)),
            "group_size .*schedule.*got 3",
        ),
        (
            lambda: aggregate_median_of_means(3, smoothing=-1.0, key=jax.random.key(0)),
            "smoothing .*>= 0, got -1.0",
        ),
        (
            lambda: aggregate_median_of_means(3, smoothing=0.1),
            "smoothing 0.1 needs a key",
        ),
    ],
)
def test_bad_arguments_are_refused_by_the_factory(factory, message):
    with pytest.raises(ValueError, match=message):
        factory()


@pytest.mark.parametrize(
    "aggregator",
    [pair[0] for pair in PAIRS.values()] + [adaptive_median_of_means(lambda count: 1)],
    ids=[*PAIRS, "adaptive"],
)
def test_bad_samples_are_refused_by_the_update(aggregator):
    state = aggregator.init(jnp.zeros([]))
    with pytest.raises(ValueError, match=r"\['b'\] must have a floating dtype"):
        aggregator.update({"a": jnp.ones(5), "b": jnp.arange(5)}, state)
    with pytest.raises(ValueError, match=r"got 5 at .*\['a'\] and 10 at .*\['b'\]"):
        aggregator.update({"a": jnp.ones(5), "b": jnp.ones(10)}, state)


def test_the_number_of_groups_must_divide_the_batch():
    with pytest.raises(ValueError, match="batch size 12 and num_groups 5"):
        updated(aggregate_median_of_means(5), jnp.ones(12))
