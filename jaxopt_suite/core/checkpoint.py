"""Checkpoints of pytrees of arrays, on Orbax: atomic, checked, never overwritten.

A folder holds one run: its last two steps, each with a tag that says whose it is and a
list of its leaves. What does not fit is refused with one line that says what to do.
Needs ``orbax-checkpoint`` (the ``experiments`` extra), imported at the first call.
"""

import os
import pathlib
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxopt_suite.core import checks
from jaxopt_suite.core.mesh import place

_UNFINISHED = ".orbax-checkpoint-tmp"


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be used as asked; nothing has been written."""


def save(
    directory: str | os.PathLike, step: int, tree: PyTree, *, tag: str = ""
) -> None:
    """Saves a pytree as the checkpoint of ``step`` and keeps the one before.

    The step appears at once and whole, or not at all, even if the process is killed.
    In a run of several processes all of them call this, with a folder that all see.

    Args:
        directory: a folder of this run's own; it is made where it is missing.
        step: the step's number, above those already there.
        tree: pytree of arrays, sharded or not, typed keys included. What each process
            holds on its own must be the same on all; the first process writes it.
        tag: whose checkpoint this is (a method and its settings, say).

    Raises:
        CheckpointError: the folder holds another tag's checkpoint, other files, or a
            step that is not below ``step``.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save(folder, 10, {"w": jnp.ones(2), "key": jax.random.key(0)})
        >>> latest_step(folder)
        10
    """
    checks.check_integer("step", step, 0)
    folder = pathlib.Path(directory).absolute()
    latest = latest_step(folder, tag=tag)
    if latest is not None and latest >= step:
        raise CheckpointError(
            f"{folder} holds step {latest}, so step {step} cannot be saved: resume "
            f"from it, or use an empty folder"
        )
    ocp = _orbax()
    leaves = [_storable(leaf) for leaf in jax.tree.leaves(tree)]
    about = {"tag": tag, "leaves": _describe(tree), "checksums": _checksums(leaves)}
    # Orbax takes no empty arrays, and no empty tree: hence the step as an array.
    arrays = {f"leaf_{i}": leaf for i, leaf in enumerate(leaves) if leaf.size}
    arrays["step"] = np.asarray(step, np.int64)
    with _manager(folder, create=True) as manager:
        manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about)
            ),
        )


def latest_step(directory: str | os.PathLike, *, tag: str = "") -> int | None:
    """The number of the newest step in a folder; None where there is none.

    Raises:
        CheckpointError: the newest step has another tag, or cannot be read.
    """
    newest = _newest(pathlib.Path(directory).absolute(), tag)
    return None if newest is None else newest[0]


def restore(
    directory: str | os.PathLike, like: PyTree, *, tag: str = ""
) -> tuple[int, PyTree] | None:
    """Restores the newest checkpoint of a folder.

    Args:
        directory: the folder given to :func:`save`.
        like: a tree of the same structure, shapes and dtypes. Each leaf comes back as
            its leaf is: NumPy, on one device, or sharded over the same devices.
        tag: the tag given to :func:`save`.

    Returns:
        ``(step, tree)``, or None where the folder holds no checkpoint.

    Raises:
        CheckpointError: the checkpoint has another tag, other leaves, or is damaged (a
            flipped bit goes unseen only in arrays spread over several hosts).

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save(folder, 3, {"w": jnp.ones(2)})
        >>> restore(folder, {"w": jnp.zeros(2)})
        (3, {'w': Array([1., 1.], dtype=float32)})
        >>> restore(folder, {"w": jnp.zeros(4)})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        jaxopt_suite.core.checkpoint.CheckpointError: ... ['w']: float32[2]; ...
    """
    folder = pathlib.Path(directory).absolute()
    newest = _newest(folder, tag)
    if newest is None:
        return None
    step, about = newest
    _require_same_leaves(folder, step, about["leaves"], _describe(like))
    leaves, treedef = jax.tree.flatten(like)
    arrays = _read_arrays(folder, step, [_abstract(leaf) for leaf in leaves])
    if _checksums(arrays) != about["checksums"]:
        raise CheckpointError(_damaged(folder, step, "its checksums do not match"))
    restored = [_as(leaf, array) for leaf, array in zip(leaves, arrays, strict=True)]
    return step, jax.tree.unflatten(treedef, restored)


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            "checkpoints need orbax-checkpoint: install jaxopt-suite[experiments]"
        ) from error
    return ocp


def _manager(folder: pathlib.Path, *, create: bool = False) -> Any:
    ocp = _orbax()
    return ocp.CheckpointManager(
        folder,
        options=ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(2),
            create=create,
            cleanup_tmp_directories=create,
            enable_async_checkpointing=False,
        ),
    )


def _newest(folder: pathlib.Path, tag: str) -> tuple[int, dict[str, Any]] | None:
    """Number and description of the newest step, whose tag must be ``tag``."""
    _refuse_other_files(folder)
    steps = [int(p.name) for p in folder.glob("*") if p.name.isdigit()]
    if not steps:
        return None
    step, ocp = max(steps), _orbax()
    try:
        with _manager(folder) as manager:
            args = ocp.args.Composite(about=ocp.args.JsonRestore())
            about = manager.restore(step, args=args)["about"]
        found = about["tag"], about["leaves"], about["checksums"]
    except Exception as error:
        raise CheckpointError(_damaged(folder, step, type(error).__name__)) from error
    if found[0] != tag:
        raise CheckpointError(
            f"{folder} holds a checkpoint of {found[0]!r}, not of {tag!r}: use another "
            f"folder, or the settings it was made with"
        )
    return step, about


def _read_arrays(folder: pathlib.Path, step: int, abstract: list[Any]) -> list[Any]:
    ocp = _orbax()
    wanted = {
        f"leaf_{i}": leaf for i, leaf in enumerate(abstract) if np.prod(leaf.shape)
    }
    wanted["step"] = np.zeros([], np.int64)
    try:
        with _manager(folder) as manager:
            args = ocp.args.Composite(arrays=ocp.args.StandardRestore(wanted))
            found = manager.restore(step, args=args)["arrays"]
    except Exception as error:
        raise CheckpointError(_damaged(folder, step, type(error).__name__)) from error
    return [found.get(f"leaf_{i}", leaf) for i, leaf in enumerate(abstract)]


def _damaged(folder: pathlib.Path, step: int, why: str) -> str:
    return (
        f"the checkpoint of step {step} in {folder} cannot be read ({why}): delete "
        f"{folder / str(step)} to go on from the step before, or use an empty folder"
    )


def _refuse_other_files(folder: pathlib.Path) -> None:
    for entry in sorted(folder.glob("*")):
        if not (entry.name.isdigit() or _UNFINISHED in entry.name):
            raise CheckpointError(
                f"{folder} holds {entry.name!r}, which is no checkpoint: use a folder "
                f"of their own for the checkpoints"
            )


def _require_same_leaves(
    folder: pathlib.Path, step: int, found: list[str], wanted: list[str]
) -> None:
    if found == wanted:
        return
    there = next((x for x in found if x not in wanted), "the same in another order")
    asked = next((x for x in wanted if x not in found), "the same in another order")
    raise CheckpointError(
        f"the checkpoint of step {step} in {folder} has {len(found)} leaves, first "
        f"other one {there}; wanted are {len(wanted)}, first other one {asked}: use "
        f"the settings it was made with, or an empty folder"
    )


def _data(leaf: Any) -> Any:
    """The leaf itself, or the bits behind typed keys, concrete or abstract."""
    if not checks.is_key_array(leaf):
        return leaf if hasattr(leaf, "shape") else np.asarray(leaf)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.random.key_data(leaf)


def _is_global(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _storable(leaf: Any) -> Any:
    # Orbax writes what one process holds from NumPy, and global arrays shard by shard.
    data = _data(leaf)
    return data if _is_global(data) else np.asarray(data)


def _abstract(leaf: Any) -> Any:
    data = _data(leaf)
    if _is_global(data):
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=data.sharding)
    return np.zeros(data.shape, data.dtype)


def _as(like: Any, array: Any) -> Any:
    """The restored ``array`` in the kind and place of the leaf ``like``."""
    if checks.is_key_array(like):
        data = _as(_data(like), array)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
    if _is_global(array) or isinstance(like, (np.ndarray, np.generic)):
        return array
    if isinstance(like, jax.Array) and like.committed:
        return place(array, like.sharding)
    return jnp.asarray(array)


def _describe(tree: PyTree) -> list[str]:
    """One line per leaf: its path, dtype and shape."""
    return [
        f"{jax.tree_util.keystr(path)}: {jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _checksums(leaves: list[Any]) -> list[int | None]:
    """CRC-32 of what this process holds in full; None for the rest."""
    return [
        None if _is_global(leaf) else zlib.crc32(np.ascontiguousarray(leaf).tobytes())
        for leaf in leaves
    ]
