"""Rounding to a scaled grid in NumPy, in float64, one group and weight at a time."""

import itertools

import ml_dtypes
import numpy as np

NAMES = ("int2", "int3", "int4", "int8", "fp4", "fp8", "nf4")


def grid_of(name):
    """The grid, typed in anew or read off the bit patterns of ``ml_dtypes``."""
    if name.startswith("int"):
        top = 2 ** (int(name[3:]) - 1) - 1
        return np.arange(-top, top + 1, dtype=np.float64)
    if name in ("fp4", "fp8"):
        dtype = ml_dtypes.float4_e2m1fn if name == "fp4" else ml_dtypes.float8_e4m3fn
        patterns = np.arange(16 if name == "fp4" else 256, dtype=np.uint8)
        values = patterns.view(dtype).astype(np.float64)
        return np.unique(values[np.isfinite(values)])
    half = [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]
    other = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
    return np.array(other + half)


def groups_of(shape, granularity):
    """Index tuples of the weights of each group."""
    if granularity.kind == "tensor":
        yield list(np.ndindex(*shape))
        return
    axis = granularity.axis % len(shape)
    size = granularity.size
    key = {
        "channel": lambda index: index[axis],
        "block": lambda index: (*index[:axis], index[axis] // size, *index[axis + 1 :]),
    }[granularity.kind]
    for _, members in itertools.groupby(sorted(np.ndindex(*shape), key=key), key):
        yield list(members)


def reference(grid, w, granularity):
    """Arrays scale, lo, hi, delta, nearest value and variance, all in w's shape."""
    w = np.asarray(w, np.float64)
    out = {k: np.zeros(w.shape) for k in ("scale", "lo", "hi", "delta", "nearest")}
    for members in groups_of(w.shape, granularity):
        scale = max(abs(w[i]) for i in members) / grid[-1]
        for i in members:
            z = np.clip(w[i] / scale, grid[0], grid[-1])
            above = min(np.searchsorted(grid, z, side="right"), len(grid) - 1)
            lo, hi = grid[above - 1], grid[above]
            out["scale"][i], out["lo"][i], out["hi"][i] = scale, lo, hi
            out["delta"][i] = (z - lo) / (hi - lo)
            out["nearest"][i] = scale * (lo if z - lo < hi - z else hi)
    s, lo, hi = out["scale"], out["lo"], out["hi"]
    out["variance"] = np.maximum((w - s * lo) * (s * hi - w), 0)
    return out
