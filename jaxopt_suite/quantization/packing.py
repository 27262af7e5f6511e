"""Two four-bit codes to a byte."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt8

from jaxopt_suite.core.checks import check_choice, check_integer


@jax.jit
def pack_int4(codes: Int[Array, "*rest n"]) -> UInt8[Array, "*rest m"]:
    """Packs the low four bits of neighbours along the last axis, the first one lowest.

    Args:
        codes: int8 from -8 to 7, or uint8 from 0 to 15; what lies outside loses its
            upper bits. An odd last axis is filled up with 0.

    Returns:
        Bytes, half as many (rounded up) along the last axis.

    Raises:
        ValueError: ``codes`` is neither int8 nor uint8, or has no axis.

    Example:
        >>> pack_int4(jnp.array([1, -1, 7], jnp.int8))
        Array([241,   7], dtype=uint8)
    """
    codes = jnp.asarray(codes)
    check_choice("codes.dtype", str(codes.dtype), ("int8", "uint8"))
    if not codes.ndim:
        raise ValueError("codes must have at least one axis, got shape ()")
    odd = codes.shape[-1] % 2
    padded = jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, odd)])
    nibbles = padded.astype(jnp.uint8) & 15
    return nibbles[..., ::2] | (nibbles[..., 1::2] << 4)


@functools.partial(jax.jit, static_argnames=("size", "signed"))
def unpack_int4(
    packed: UInt8[Array, "*rest m"], size: int, *, signed: bool = True
) -> Int[Array, "*rest n"]:
    """The inverse of :func:`pack_int4`.

    Args:
        packed: bytes.
        size: length of the last axis before packing; static.
        signed: int8 from -8 to 7, the codes of integer formats; False gives uint8 from
            0 to 15, those of fp4 and nf4.

    Raises:
        ValueError: ``packed`` is not uint8, or does not hold ``size`` codes.

    Example:
        >>> unpack_int4(jnp.array([241, 7], jnp.uint8), 3)
        Array([ 1, -1,  7], dtype=int8)
    """
    packed = jnp.asarray(packed)
    check_choice("packed.dtype", str(packed.dtype), ("uint8",))
    check_integer("size", size, 0)
    if not packed.ndim or packed.shape[-1] != -(-size // 2):
        raise ValueError(
            f"size must be that of the codes in packed, of shape {packed.shape}, got "
            f"{size}"
        )
    nibbles = jnp.stack([packed & 15, packed >> 4], axis=-1)
    nibbles = nibbles.reshape(*packed.shape[:-1], 2 * packed.shape[-1])[..., :size]
    if not signed:
        return nibbles
    codes = nibbles.astype(jnp.int8)
    return jnp.where(codes > 7, codes - 16, codes)
