import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxopt_suite.core import device_mesh, fetch, shard_leading


def test_a_mesh_over_all_or_the_first_devices():
    assert device_mesh("agents").shape == {"agents": jax.device_count()}
    mesh = device_mesh("data", 3)
    assert list(mesh.devices) == jax.devices()[:3]
    assert mesh.axis_types == (AxisType.Auto,)


def test_rows_are_laid_out_and_come_back_as_they_were():
    mesh = device_mesh("data", 4)
    tree = {
        "x": np.arange(24.0, dtype=np.float32).reshape(8, 3),
        "half": jnp.arange(4, dtype=jnp.bfloat16),
        "key": jax.random.split(jax.random.key(0), 8),
        "flag": np.arange(4) > 1,
    }
    laid = shard_leading(tree, mesh, "data")
    for leaf in jax.tree.leaves(laid):
        assert leaf.sharding.spec == PartitionSpec("data")
        shares = [shard.data.shape[0] for shard in leaf.addressable_shards]
        assert shares == [len(leaf) // 4] * 4
    back = fetch(laid)
    assert jnp.all(back.pop("key") == tree.pop("key"))
    for name, leaf in back.items():
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype == tree[name].dtype
        np.testing.assert_array_equal(leaf, tree[name])


def test_one_axis_of_a_mesh_with_two():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    laid = shard_leading(jnp.arange(8.0), mesh, "b")
    assert laid.sharding == NamedSharding(mesh, PartitionSpec("b"))
    np.testing.assert_array_equal(laid, np.arange(8.0))


def test_a_computation_on_laid_out_rows_gives_the_same_numbers():
    x = jax.random.normal(jax.random.key(1), (8, 5))
    laid = shard_leading(x, device_mesh("data"), "data")
    f = jax.jit(lambda x: jnp.sin(x).sum(1))
    np.testing.assert_allclose(f(laid), f(x), rtol=1e-6)


def test_meshes_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"num_devices must be at most 8.* got 9"):
        device_mesh("data", 9)
    with pytest.raises(ValueError, match="num_devices must be an integer >= 1, got 0"):
        device_mesh("data", 0)
    mesh = device_mesh("data", 4)
    with pytest.raises(ValueError, match="axis must be one of data, got 'seeds'"):
        shard_leading(jnp.zeros(4), mesh, "seeds")
    with pytest.raises(
        ValueError, match=r"tree\['w'\]\[1\] .* multiple of 4.* \(6, 2\)"
    ):
        shard_leading({"w": [jnp.zeros(4), jnp.zeros((6, 2))]}, mesh, "data")
    with pytest.raises(ValueError, match=r"multiple of 4.* got shape \(\)"):
        shard_leading(jnp.zeros([]), mesh, "data")
