"""Number formats: the grids that scaled weights are rounded to."""

import functools
from typing import NamedTuple

import numpy as np

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)


class QuantFormat(NamedTuple):
    """A grid of values; a weight divided by its scale is rounded to one of them.

    Hashable, so it may be a static argument. A grid of your own has to be sorted, at
    most 256 values from ``-qmax`` to ``qmax``, and hold 0; :func:`make_quantizer` makes
    a tuple of it.

    Attributes:
        grid: the values, ascending.
        qmax: the largest of them, which the largest weight of a group is scaled to.
        name: for messages and files.
    """

    grid: tuple[float, ...]
    qmax: float
    name: str

    @property
    def bits(self) -> int:
        """Bits of a code: 4 for int4, fp4 and nf4."""
        return (len(self.grid) - 1).bit_length()

    @property
    def is_symmetric(self) -> bool:
        """Whether the grid is the same seen from above and from below."""
        return all(a == -b for a, b in zip(self.grid, self.grid[::-1], strict=True))

    @property
    def is_integer(self) -> bool:
        """Whether the grid is all integers from ``-qmax`` to ``qmax``."""
        return self.is_symmetric and bool(np.all(np.diff(self.grid) == 1.0))


def int_format(bits: int) -> QuantFormat:
    r"""Integers :math:`-q, \dots, q` with :math:`q = 2^{b-1} - 1`.

    Args:
        bits: :math:`b`, 2 to 8; static.

    Raises:
        ValueError: ``bits`` is not an integer from 2 to 8.

    Example:
        >>> int_format(3).grid
        (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
    """
    integer = isinstance(bits, (int, np.integer)) and not isinstance(bits, bool)
    if not integer or not 2 <= bits <= 8:
        raise ValueError(f"bits must be an integer from 2 to 8, got {bits}")
    qmax = 2 ** (int(bits) - 1) - 1
    grid = tuple(float(c) for c in range(-qmax, qmax + 1))
    return QuantFormat(grid, float(qmax), f"int{bits}")


def _mirrored(values: tuple[float, ...], name: str) -> QuantFormat:
    grid = (*(-v for v in values[:0:-1]), *values)
    return QuantFormat(grid, values[-1], name)


def fp4_e2m1() -> QuantFormat:
    """Four-bit floats with two exponent bits and one mantissa bit.

    Example:
        >>> fp4_e2m1().grid[7:]
        (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    """
    return _mirrored((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), "fp4")


def fp8_e4m3() -> QuantFormat:
    """Eight-bit floats: the finite values of ``ml_dtypes.float8_e4m3fn``.

    Example:
        >>> fp8_e4m3().qmax, len(fp8_e4m3().grid)
        (448.0, 253)
    """
    subnormal = tuple(mantissa * 2.0**-9 for mantissa in range(8))
    normal = tuple(
        (8 + mantissa) * 2.0 ** (exponent - 3)
        for exponent in range(-6, 9)
        for mantissa in range(8)
    )
    # The last pattern of bits is a NaN, not 480.
    return _mirrored(subnormal + normal[:-1], "fp8")


def nf4() -> QuantFormat:
    """Sixteen levels at quantiles of a normal law, from -1 to 1; not symmetric.

    Example:
        >>> len(nf4().grid), nf4().qmax
        (16, 1.0)

    Source: Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA" (2023), arXiv 2305.14314.
    """
    return QuantFormat(_NF4, 1.0, "nf4")


def get_format(name: str) -> QuantFormat:
    """The format of a name: ``int2`` to ``int8``, ``fp4``, ``fp8`` or ``nf4``.

    Raises:
        ValueError: there is no format of this name; the message lists them.

    Example:
        >>> get_format("int4").qmax
        7.0
    """
    makers = {f"int{bits}": functools.partial(int_format, bits) for bits in range(2, 9)}
    makers |= {"fp4": fp4_e2m1, "fp8": fp8_e4m3, "nf4": nf4}
    if not isinstance(name, str) or name not in makers:
        raise ValueError(f"format must be one of {', '.join(makers)}, got {name!r}")
    return makers[name]()


def checked_format(fmt: QuantFormat) -> QuantFormat:
    """The format in Python numbers, if absmax scaling and one-byte codes can serve it.

    Raises:
        ValueError: the grid is not sorted, has no 0, has more than 256 values, or does
            not run from ``-qmax`` to ``qmax``.
    """
    try:
        grid, qmax = np.asarray(fmt.grid, np.float64), float(fmt.qmax)
    except (TypeError, ValueError):
        grid, qmax = np.zeros(0), 0.0
    ends = grid.ndim == 1 and 3 <= grid.size <= 256 and grid[0] == -qmax == -grid[-1]
    if not ends or not np.all(np.diff(grid) > 0) or 0 not in grid:
        raise ValueError(
            "format.grid must be 3 to 256 ascending values from -qmax to qmax, 0 among "
            f"them, got qmax={fmt.qmax} and grid={fmt.grid}"
        )
    # A negative zero added to 0.0 is a plain one.
    return QuantFormat(tuple((grid + 0.0).tolist()), qmax, str(fmt.name))


def magnitude_codes(fmt: QuantFormat) -> np.ndarray:
    """The number of each grid value that decides ties: the even one wins.

    It counts 0, 1, 2, ... away from 0 on both sides of a symmetric grid, and from the
    lowest value of any other.
    """
    index = np.arange(len(fmt.grid))
    return np.abs(index - fmt.grid.index(0.0)) if fmt.is_symmetric else index


def code_table(fmt: QuantFormat) -> np.ndarray:
    """The code of each grid value, in the grid's order.

    Integers are their own code (int8). Others are uint8: a sign bit above the magnitude
    code for a symmetric grid, which is the bit pattern of fp4 and fp8, and the index in
    the grid for any other.
    """
    if fmt.is_integer:
        return np.asarray(fmt.grid, np.int8)
    codes = magnitude_codes(fmt)
    if fmt.is_symmetric:
        codes = codes + ((np.asarray(fmt.grid) < 0) << (fmt.bits - 1))
    return codes.astype(np.uint8)
