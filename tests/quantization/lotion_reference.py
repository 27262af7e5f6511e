"""The LOTION penalty and its gradient in NumPy, in float64, from their formulas."""

import numpy as np
from rounding_reference import grid_of, groups_of, reference


def penalty_and_slope(name, w, c, granularity, differentiate_scale=True):
    """``1/2 sum c sigma^2`` and its gradient in w; no group may be zero."""
    grid = grid_of(name)
    r = reference(grid, w, granularity)
    w, c = np.asarray(w, np.float64), np.asarray(c, np.float64)
    s, lo, hi = r["scale"], r["lo"], r["hi"]
    inside = (r["delta"] > 1e-9) & (r["delta"] < 1 - 1e-9)
    slope = np.where(inside, 0.5 * c * (s * lo + s * hi - 2 * w), 0.0)
    along_scale = np.where(
        inside, 0.5 * c * (-lo * (s * hi - w) + hi * (w - s * lo)), 0
    )
    for members in groups_of(w.shape, granularity):
        if differentiate_scale:
            largest = max(members, key=lambda i: abs(w[i]))
            total = sum(along_scale[i] for i in members)
            slope[largest] += total * np.sign(w[largest]) / grid[-1]
    return 0.5 * np.sum(c * r["variance"]), slope
