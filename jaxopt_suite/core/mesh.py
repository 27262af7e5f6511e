"""Devices and hosts: lay lanes, agents or data over them, and bring results back.

Every process of a multi-host run calls these with the same values, as JAX's
multi-controller runtime asks (``jax.distributed.initialize`` first).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import PyTree

from jaxopt_suite.core import checks


def device_mesh(axis_name: str, num_devices: int | None = None) -> Mesh:
    """A one-dimensional mesh over the devices of all processes.

    Args:
        axis_name: the axis's name, such as ``"lanes"``, ``"agents"`` or ``"data"``.
        num_devices: how many devices, the first ones; None takes all.

    Returns:
        A mesh whose axis has type ``Auto``.

    Raises:
        ValueError: ``num_devices`` is below 1 or above the number of devices.

    Example:
        >>> device_mesh("agents", 4).shape["agents"]
        4
    """
    devices = jax.devices()
    count = len(devices) if num_devices is None else num_devices
    checks.check_integer("num_devices", count)
    if count > len(devices):
        raise ValueError(
            f"num_devices must be at most {len(devices)}, the devices there are, "
            f"got {count}"
        )
    return jax.make_mesh(
        (count,), (axis_name,), devices=devices[:count], axis_types=(AxisType.Auto,)
    )


def place(value: Any, sharding: Sharding) -> jax.Array:
    """Lays an array that every process holds in full out under ``sharding``."""
    if checks.is_key_array(value):
        data = place(jax.random.key_data(value), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return jax.device_put(value, sharding)
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda i: host[i])


def shard_leading(tree: PyTree, mesh: Mesh, axis: str) -> PyTree:
    """Shards the leading axis of every leaf over one axis of a mesh.

    Args:
        tree: pytree of arrays, the same on every process; typed keys are welcome.
        mesh: the devices.
        axis: name of the mesh axis. The leading size must be a multiple of its size.

    Returns:
        The same tree of global arrays, each device holding its own rows.

    Raises:
        ValueError: ``axis`` is not of the mesh, a leaf is a scalar, or its leading size
            is not a multiple of the axis's size (the message has the leaf's path).

    Example:
        >>> rows = shard_leading(jnp.zeros((8, 3)), device_mesh("data", 4), "data")
        >>> rows.addressable_shards[0].data.shape
        (2, 3)
    """
    checks.check_choice("axis", axis, mesh.axis_names)
    sharding, count = NamedSharding(mesh, PartitionSpec(axis)), mesh.shape[axis]

    def put(path, leaf):
        shape = jnp.shape(leaf)
        if not shape or shape[0] % count:
            raise ValueError(
                f"tree{jax.tree_util.keystr(path)} must have a leading axis whose size "
                f"is a multiple of {count}, the size of {axis!r}, got shape {shape}"
            )
        return place(leaf, sharding)

    return jax.tree_util.tree_map_with_path(put, tree)


def fetch(tree: PyTree) -> PyTree:
    """Brings every leaf to every host in full, as NumPy arrays.

    Args:
        tree: pytree of arrays, sharded over any devices of any process. Where a leaf
            has parts on other hosts, all processes must call this together.

    Returns:
        The tree with NumPy leaves. Typed key arrays stay key arrays, on this host.

    Example:
        >>> fetch({"loss": jnp.arange(3)})
        {'loss': array([0, 1, 2], dtype=int32)}
    """

    def one(leaf):
        if checks.is_key_array(leaf):
            data = one(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        remote = isinstance(leaf, jax.Array) and not (
            leaf.is_fully_addressable or leaf.is_fully_replicated
        )
        if remote:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    return jax.tree.map(one, tree)
