"""The look of all figures: Figure objects only, no global pyplot state."""

import functools
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogFormatterSciNotation,
    LogLocator,
    NullFormatter,
)

from experiments.claims import Threshold
from experiments.files import replaced_whole

# Okabe and Ito's palette, which people of every colour vision can tell apart; the
# pale yellow is left out because it vanishes on white.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.prop_cycle": cycler(color=PALETTE, marker=MARKERS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "figure.titlesize": 11,
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.markersize": 4,
    "savefig.dpi": 200,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def house_style() -> AbstractContextManager[None]:
    """Within its block, whatever is drawn has the look of all figures.

    A run is wrapped in it, so scripts need not mention it; a notebook may.
    """
    return matplotlib.rc_context(STYLE)


def new_figure(
    title: str = "",
    rows: int = 1,
    columns: int = 1,
    *,
    panel: tuple[float, float] = (4.4, 3.2),
    **subplots: Any,
) -> tuple[Figure, np.ndarray]:
    """A figure in the house style with a grid of panels.

    Args:
        title: over all panels.
        rows: rows of panels.
        columns: columns of panels.
        panel: width and height of one, in inches.
        **subplots: further arguments of ``Figure.subplots``, such as ``sharey``.

    Returns:
        The figure, and its axes as an array of shape ``(rows, columns)``.

    Example:
        >>> figure, axes = new_figure("Error", columns=2, sharey=True)
        >>> axes.shape
        (1, 2)
    """
    with house_style():
        size = (columns * panel[0], rows * panel[1])
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **subplots)
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure, axes


def log_axes(axes: Axes, which: str = "xy", ticks: Sequence[float] = ()) -> None:
    """Makes the named axes logarithmic, with labels that a narrow range keeps too.

    Args:
        axes: the panel.
        which: ``"x"``, ``"y"`` or ``"xy"``.
        ticks: the values that the x axis labels, where it has only a few.
    """
    for name in which:
        axis = {"x": axes.xaxis, "y": axes.yaxis}[name]
        getattr(axes, f"set_{name}scale")("log")
        if name == "x" and len(ticks):
            axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
            axis.set_minor_formatter(NullFormatter())
            continue
        axis.set_major_locator(LogLocator(numticks=8))
        axis.set_major_formatter(LogFormatterSciNotation())
        axis.set_minor_locator(LogLocator(subs=(2, 5), numticks=8))
        axis.set_minor_formatter(FuncFormatter(functools.partial(_narrow_label, axis)))


def _narrow_label(axis: Axis, value: float, position: int | None) -> str:
    """A label between decades, where the decades alone leave nothing to read."""
    del position
    low, high = axis.get_view_interval()
    return f"{value:g}" if low > 0 and high < 30 * low else ""


def plot_spread(
    axes: Axes, x: Any, samples: Any, label: str, *, quantiles=(0.05, 0.5, 0.95)
) -> None:
    """A line at the middle quantile over the last axis, and a band between the others.

    Args:
        axes: the panel.
        x: positions, of shape ``(n,)``.
        samples: of shape ``(n, seeds)``.
        label: the line's name.
        quantiles: lower edge of the band, line, upper edge.
    """
    low, middle, high = np.quantile(np.asarray(samples), quantiles, axis=-1)
    (line,) = axes.plot(x, middle, label=label)
    axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def label_lines(axes: Axes) -> None:
    """Writes every line's name at its right end in its own colour, without overlap.

    Lines whose label begins with an underscore have no name.
    """
    axes.margins(x=0.05)
    named = [
        (line, np.asarray(line.get_xydata(), float))
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    ]
    ends = [(line, data[np.isfinite(data).all(-1)]) for line, data in named]
    ends = [(line, data[-1]) for line, data in ends if len(data)]
    if not ends:
        return
    points = axes.transData.transform([end for _, end in ends])
    per_point = axes.figure.dpi / 72
    heights = _spread_apart(points[:, 1] / per_point, gap=9.5)
    for (line, end), point, height in zip(ends, points, heights, strict=True):
        axes.annotate(
            str(line.get_label()),
            xy=(float(end[0]), float(end[1])),
            xytext=(6, height - point[1] / per_point),
            textcoords="offset points",
            color=line.get_color(),
            fontsize=8,
            va="center",
            annotation_clip=False,
        )


def _spread_apart(heights: np.ndarray, gap: float) -> np.ndarray:
    """Heights in the same order, moved so that none is within ``gap`` of another."""
    order = np.argsort(heights, kind="stable")
    moved = heights[order].copy()
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    # Centre again: the pass only pushed upwards.
    moved -= np.mean(moved - heights[order])
    result = np.empty_like(moved)
    result[order] = moved
    return result


def threshold_line(axes: Axes, threshold: Threshold, *, along: str = "y") -> None:
    """Draws the ends of a claim's threshold as dashed reference lines.

    Args:
        axes: the panel.
        threshold: what bears the claim out.
        along: the axis that carries the measured figure, ``"y"`` or ``"x"``.
    """
    ends = [end for end in threshold if np.isfinite(end)]
    draw = axes.axhline if along == "y" else axes.axvline
    for end in ends:
        draw(end, color=GREY, linestyle="--", linewidth=1, marker="", label="_")
    upright = along == "x"
    at = (ends[-1], 0.98) if upright else (0.02, ends[-1])
    axes.annotate(
        f"claim: {threshold}",
        xy=at,
        xycoords=("data", "axes fraction") if upright else ("axes fraction", "data"),
        xytext=(3, -2) if upright else (0, 3),
        textcoords="offset points",
        color=GREY,
        fontsize=8,
        va="top" if upright else "bottom",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
    )


def save_figure(figure: Figure, path: Path) -> None:
    """Writes ``figure`` as a PNG, whole or not at all, and closes it."""
    with house_style(), replaced_whole(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
    figure.clear()
