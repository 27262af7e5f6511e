"""Keeps a pytree of NumPy arrays in one file, so that it comes back bit for bit.

The file is an npz: the leaves in order, and a JSON header that holds the containers
and the tag of the run. Nothing in it is executed on reading.
"""

import importlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from experiments.files import InputError, replaced_whole

_UNREADABLE = (
    OSError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


def save_tree(path: Path, tree: PyTree, tag: str) -> None:
    """Writes ``tree``, whole or not at all.

    Raises:
        ValueError: a leaf is no array of numbers, or a container is none of dict (with
            string keys), list, tuple, None and importable NamedTuple.
    """
    leaves: list[np.ndarray] = []
    structure = _describe(tree, leaves)
    header = {
        "tag": tag,
        "structure": structure,
        "dtypes": [leaf.dtype.name for leaf in leaves],
    }
    arrays = {str(i): leaf for i, leaf in enumerate(leaves)}
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with replaced_whole(path) as partial, partial.open("wb") as stream:
        np.savez(stream, header=encoded, **arrays)  # pyright: ignore[reportArgumentType]


def load_tree(path: Path, tag: str) -> PyTree:
    """Reads back what :func:`save_tree` wrote under the same tag.

    Raises:
        InputError: the file is damaged, or its tag is another.
    """
    try:
        # NumPy leaves a file that it opened itself open where it cannot read it.
        with path.open("rb") as stream, np.load(stream) as stored:
            header = json.loads(stored["header"].tobytes())
            found, dtypes = header["tag"], header["dtypes"]
            if found == tag:
                leaves = [
                    stored[str(i)].view(np.dtype(d)) for i, d in enumerate(dtypes)
                ]
                return _rebuild(header["structure"], leaves)
    except _UNREADABLE as error:
        raise InputError(
            f"checkpoint {path} is damaged: leave --resume out to start anew, or "
            "remove it to compute this stage again; nothing was changed"
        ) from error
    raise InputError(
        f"checkpoint {path} belongs to another run: leave --resume out to start anew, "
        "or choose another --out; nothing was changed"
    )


def _describe(tree: PyTree, leaves: list[np.ndarray]) -> Any:
    """The containers of ``tree`` as JSON, with its leaves appended to ``leaves``."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise ValueError(f"a stage's dict must have string keys, got {list(tree)}")
        return {"dict": {k: _describe(item, leaves) for k, item in tree.items()}}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        kind = f"{type(tree).__module__}:{type(tree).__qualname__}"
        if _named_tuple(kind) is not type(tree):
            raise ValueError(
                f"a stage's NamedTuple must be importable, got {kind}: define it at "
                "the top level of its module, or return a dict"
            )
        return {"named": kind, "items": [_describe(item, leaves) for item in tree]}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [_describe(item, leaves) for item in tree]}
    if not isinstance(tree, np.ndarray) or tree.dtype.hasobject:
        what = "an array of objects" if isinstance(tree, np.ndarray) else type(tree)
        raise ValueError(
            "a stage must return arrays in dicts, lists, tuples and NamedTuples, got "
            f"{what}"
        )
    leaves.append(tree)
    return len(leaves) - 1


def _rebuild(structure: Any, leaves: list[np.ndarray]) -> PyTree:
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    if "dict" in structure:
        return {k: _rebuild(item, leaves) for k, item in structure["dict"].items()}
    if "named" in structure:
        kind = _named_tuple(structure["named"])
        if kind is None:
            raise ValueError(f"no NamedTuple {structure['named']}")
        return kind(*(_rebuild(item, leaves) for item in structure["items"]))
    if "list" in structure:
        return [_rebuild(item, leaves) for item in structure["list"]]
    return tuple(_rebuild(item, leaves) for item in structure["tuple"])


def _named_tuple(kind: str) -> type | None:
    """The NamedTuple class ``"module:name"``, or None where that is something else."""
    module, _, name = kind.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    is_class = isinstance(found, type) and issubclass(found, tuple)
    return found if is_class and hasattr(found, "_fields") else None
