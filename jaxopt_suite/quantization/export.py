"""Quantized weights for storage, and for the library that serves them."""

import contextlib
import json
import os
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxopt_suite.quantization.formats import QuantFormat, get_format
from jaxopt_suite.quantization.granularity import Granularity
from jaxopt_suite.quantization.masks import Mask, at_path, is_array, resolve_mask
from jaxopt_suite.quantization.packing import pack_int4, unpack_int4
from jaxopt_suite.quantization.rounding import (
    Quantizer,
    check_quantizer,
    decode,
    make_quantizer,
)

_VERSION = 1


def save_quantized(
    path: str | os.PathLike,
    quantizer: Quantizer,
    params: PyTree,
    mask: Mask = None,
) -> None:
    """Writes a pytree with its selected leaves as codes and scales, to one npz file.

    Leaf number i is ``codes_i`` and ``scales_i``, or ``array_i`` if it is not selected;
    leaves that are no arrays are left out. Codes of up to four bits lie two to a byte
    (:func:`pack_int4`) in row-major order. ``about`` is JSON: the quantizer, and path,
    shape and dtype of each leaf.

    Args:
        path: the file, written as named; an existing one is replaced.
        quantizer: rounds the selected leaves to nearest.
        params: any pytree.
        mask: which leaves, as in :func:`quantize_tree`.

    Raises:
        ValueError: the mask does not fit ``params``, a leaf is no array of numbers (a
            typed key), or two paths print alike.

    Example:
        >>> import tempfile, pathlib
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.npz"
        >>> params = {"w": jnp.array([[7.0, 2.25]]), "b": jnp.ones(2)}
        >>> save_quantized(path, make_quantizer("int4"), params)
        >>> load_quantized(path)["w"]
        Array([[7., 2.]], dtype=float32)
    """
    check_quantizer("quantizer", quantizer)
    chosen = jax.tree.leaves(resolve_mask(mask, params))
    arrays, about = {}, []
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for i, ((where, leaf), selected) in enumerate(zip(leaves, chosen, strict=True)):
        if not is_array(leaf):
            continue
        name = _name(where)
        if any(name == other for _, other, *_ in about):
            raise ValueError(
                f"params must have one leaf for each path, got two for {name!r}: "
                "rename a key that has a slash in it"
            )
        _check_numbers(name, leaf)
        if selected:
            codes, scales = at_path(where, quantizer.codes, leaf)
            if quantizer.format.bits <= 4:
                codes = pack_int4(codes.ravel())
            arrays[f"codes_{i}"] = np.asarray(codes)
            arrays[f"scales_{i}"] = np.asarray(scales)
        else:
            # NumPy has no name for bfloat16 in a file, so bytes.
            array = np.ascontiguousarray(leaf)
            arrays[f"array_{i}"] = np.frombuffer(array.tobytes(), np.uint8)
        about.append([i, name, list(leaf.shape), str(leaf.dtype)])
    how = [list(quantizer.format), list(quantizer.granularity)]
    note = {"version": _VERSION, "quantizer": how, "leaves": about}
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, about=json.dumps(note), **arrays)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _check_numbers(name: str, leaf: Any) -> None:
    numbers = any(jnp.issubdtype(leaf.dtype, kind) for kind in (np.number, np.bool_))
    if not numbers or isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError(
            f"params at {name!r} must be an array of numbers, got {leaf.dtype} as "
            f"{type(leaf).__name__}: save the jax.random.key_data of a typed key"
        )


def load_quantized(path: str | os.PathLike, like: PyTree | None = None) -> PyTree:
    """Reads what :func:`save_quantized` wrote, its codes turned back into weights.

    They equal the rounding to nearest of the weights saved, but that a group's largest
    weight may be off by a unit in the last place, as scale times code is.

    Args:
        path: the file.
        like: a pytree with the leaves of what was saved, in the same order, by path,
            shape and dtype; its arrays may be ``jax.ShapeDtypeStruct``. Leaves that are
            no arrays are taken from it.

    Returns:
        A pytree like ``like``; without it, a dict from each leaf's path, such as
        ``"layers/0/weight"``, to its array.

    Raises:
        ValueError: the file is of another kind or version, or ``like`` has other
            leaves; the message has the paths of the first one.

    Example:
        >>> import tempfile, pathlib
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.npz"
        >>> params = [jnp.array([[7.0, -2.25]])]
        >>> save_quantized(path, make_quantizer("int4"), params)
        >>> load_quantized(path, like=params)
        [Array([[ 7., -2.]], dtype=float32)]
    """
    note, arrays = _read(path)
    (grid, qmax, name), granularity = note["quantizer"]
    quantizer = make_quantizer(
        QuantFormat(tuple(grid), qmax, name), Granularity(*granularity)
    )
    saved = {i: (where, tuple(n), dtype) for i, where, n, dtype in note["leaves"]}
    if like is not None:
        _check_like(path, saved, like)
    found = {
        i: _restored(quantizer, arrays, i, shape, jnp.dtype(dtype))
        for i, (_, shape, dtype) in saved.items()
    }
    if like is None:
        return {saved[i][0]: array for i, array in found.items()}
    leaves, structure = jax.tree.flatten(like)
    restored = [found.get(i, leaf) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, restored)


def _read(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the file says of itself, and its arrays."""
    foreign = (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile)
    with contextlib.suppress(*foreign):
        # Opened here, as NumPy leaves a broken archive open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
        note = json.loads(str(arrays.pop("about")))
        if note["version"] == _VERSION:
            return note, arrays
    raise ValueError(
        f"path must be a file of save_quantized, version {_VERSION}, got {path}"
    )


def _check_like(path: str | os.PathLike, saved: dict[int, tuple], like: PyTree) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(like)
    wanted = {
        i: (_name(where), tuple(leaf.shape), str(leaf.dtype))
        for i, (where, leaf) in enumerate(leaves)
        if is_array(leaf)
    }
    for i in sorted(wanted.keys() | saved.keys()):
        if wanted.get(i) != saved.get(i):
            here, there = (
                "{!r} of shape {} and dtype {}".format(*of[i]) if i in of else "nothing"
                for of in (wanted, saved)
            )
            raise ValueError(
                f"like must have the leaves that were saved, got {here} where {path} "
                f"has {there}"
            )


def _restored(
    quantizer: Quantizer,
    arrays: dict[str, np.ndarray],
    i: int,
    shape: tuple[int, ...],
    dtype: Any,
) -> Array:
    if f"array_{i}" in arrays:
        data = arrays[f"array_{i}"].tobytes()
        return jnp.asarray(np.frombuffer(data, dtype).reshape(shape))
    codes = jnp.asarray(arrays[f"codes_{i}"])
    if quantizer.format.bits <= 4:
        signed = quantizer.format.is_integer
        size = int(np.prod(shape))
        codes = unpack_int4(codes, size, signed=signed).reshape(shape)
    scales = jnp.asarray(arrays[f"scales_{i}"])
    return quantizer.dequantize(codes, scales).astype(dtype)


def to_qwix(w: Float[Array, "..."], quantizer: Quantizer) -> Any:
    """The weights rounded to nearest, as a ``qwix.QArray`` with our codes and scales.

    ``qwix.dequantize`` turns it back into weights. Its own calibration scales integers
    to the end of the grid plus a half, so that a second quantization changes them; the
    calibration ``"absmax,7.5/7"`` (as a number) gives our scale for int4.

    Args:
        w: the weights, of one axis or more.
        quantizer: a format of this library; a block size that divides its axis.

    Raises:
        ImportError: qwix is missing: ``pip install 'jaxopt-suite[quantization]'``.
        ValueError: the format is one of your own, or the last block is short.

    Example:
        >>> from jaxopt_suite.quantization import make_quantizer
        >>> to_qwix(jnp.array([7.0, 2.25]), make_quantizer("int4")).qvalue
        Array([7, 2], dtype=int4)
    """
    check_quantizer("quantizer", quantizer)
    fmt, granularity = quantizer.format, quantizer.granularity
    # What qwix calls the format, and how it keeps the codes.
    kinds = {
        f"int{b}": (f"int{b}", jnp.int4 if b < 5 else jnp.int8) for b in range(2, 9)
    }
    kinds |= {"int4": (jnp.int4, jnp.int4), "int8": (jnp.int8, jnp.int8)}
    kinds |= {
        "fp4": (jnp.float4_e2m1fn, jnp.float4_e2m1fn),
        "fp8": (jnp.float8_e4m3fn, jnp.float8_e4m3fn),
        "nf4": ("nf4", jnp.uint4),
    }
    if fmt.name not in kinds or fmt != get_format(fmt.name):
        raise ValueError(
            f"format must be one of {', '.join(kinds)}, got {fmt.name!r} with the grid "
            f"{fmt.grid}"
        )
    codes, scales = quantizer.codes(w)
    if granularity.kind == "tensor":
        scales = scales.reshape((1,) * codes.ndim)
    # A tile of qwix is the axis by the number of scales, so none may be short.
    sizes = zip(codes.shape, scales.shape, strict=True)
    if granularity.kind == "block" and any(
        k not in (1, n) and n != k * granularity.size for n, k in sizes
    ):
        raise ValueError(
            f"size of per_block must divide its axis for qwix, got {granularity.size} "
            f"for an array of shape {codes.shape}"
        )
    qtype, dtype = kinds[fmt.name]
    values = codes if fmt.name == "nf4" else decode(fmt, codes)
    return _qwix().QArray(values.astype(dtype), scales, None, qtype)


def _qwix() -> Any:
    try:
        import qwix
    except ImportError as error:
        raise ImportError(
            "a QArray needs qwix: pip install 'jaxopt-suite[quantization]'"
        ) from error
    return qwix
