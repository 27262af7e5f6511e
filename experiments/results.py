"""What an experiment returns: metrics with named axes, figures, claims."""

import csv
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RESERVED = ("metric", "value")


@dataclasses.dataclass(frozen=True)
class Metric:
    """An array whose axes have names, and whose positions along them have labels.

    Attributes:
        values: real numbers or truth values, an array once it is here.
        axes: ``(name, labels)`` for every axis of ``values``, in order. The axis of
            repetitions is called ``"seed"``.

    Raises:
        ValueError: axes and shape disagree, a name or a label occurs twice, or the
            values are no real numbers.

    Example:
        >>> Metric([[0.1, 0.2]], (("method", ["mom"]), ("seed", range(2)))).values.shape
        (1, 2)
    """

    values: Any
    axes: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self):
        values = np.asarray(self.values)
        axes = tuple((name, tuple(map(str, labels))) for name, labels in self.axes)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "axes", axes)
        names, shape = [name for name, _ in axes], tuple(len(ls) for _, ls in axes)
        if shape != values.shape:
            described = ", ".join(f"{name} ({len(ls)})" for name, ls in axes) or "none"
            raise ValueError(
                f"axes must label shape {values.shape} axis by axis, got {described}"
            )
        if len(set(names)) < len(names) or set(names) & set(_RESERVED):
            raise ValueError(
                f"axes must have distinct names other than {' and '.join(_RESERVED)}, "
                f"got {names}"
            )
        for name, labels in axes:
            if len(set(labels)) < len(labels):
                raise ValueError(f"axes: labels of {name} must differ, got {labels}")
        # ml_dtypes floats (bfloat16) are of no NumPy kind but convert to float.
        if not (values.dtype.kind in "biufV" and np.can_cast(values.dtype, np.float64)):
            raise ValueError(f"values must be real numbers, got dtype {values.dtype}")

    def rows(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """``(labels, value)`` for every entry, the last axis fastest.

        A float is printed so that reading it as a double gives the same bits.
        """
        number = {"b": bool, "i": int, "u": int}.get(self.values.dtype.kind, float)
        labels = itertools.product(*(ls for _, ls in self.axes))
        for where, value in zip(labels, self.values.ravel(), strict=True):
            yield where, repr(number(value))


@dataclasses.dataclass(frozen=True)
class Result:
    """Everything an experiment found.

    Attributes:
        metrics: name to :class:`Metric`; ``metrics.csv`` holds every entry of them.
        figures: name to matplotlib figure; a name becomes a file name.
        claims: what is claimed, what was measured, and what would bear it out.

    Raises:
        ValueError: an item of another type, or a name that cannot be a file name.
    """

    metrics: Mapping[str, Metric]
    figures: Mapping[str, "Figure"]
    claims: tuple[Claim, ...]

    def __post_init__(self):
        object.__setattr__(self, "claims", tuple(self.claims))
        for name, metric in self.metrics.items():
            if not isinstance(metric, Metric):
                raise ValueError(f"metrics[{name!r}] must be a Metric, got {metric!r}")
        for name in self.figures:
            check_name("figures", name)
        for claim in self.claims:
            if not isinstance(claim, Claim):
                raise ValueError(f"claims must hold Claims only, got {claim!r}")


def check_name(argument: str, name: str) -> None:
    """Requires a name of letters, digits, ``-`` and ``_``, which is a safe file name.

    Raises:
        ValueError: it is something else.
    """
    plain = name.replace("-", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum()):
        raise ValueError(
            f"{argument}: a name must be made of letters, digits, - and _, got {name!r}"
        )


def write_csv(path: Path, metrics: Mapping[str, Metric]) -> None:
    """Writes metrics in long form: metric, one column per axis name, value.

    An axis that a metric does not have is an empty cell.
    """
    columns = list(dict.fromkeys(n for m in metrics.values() for n, _ in m.axes))
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["metric", *columns, "value"])
        for name, metric in metrics.items():
            axes = [axis for axis, _ in metric.axes]
            for labels, value in metric.rows():
                at = dict(zip(axes, labels, strict=True))
                writer.writerow([name, *(at.get(c, "") for c in columns), value])
