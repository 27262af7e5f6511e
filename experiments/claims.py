"""Claims: sentences of a paper made measurable, and whether they hold here."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np


class Threshold(NamedTuple):
    """The closed range in which a measured figure bears a claim out.

    Made by :func:`at_least`, :func:`at_most` or :func:`between`.

    Attributes:
        low: least figure that does, ``-inf`` for none.
        high: largest figure that does, ``inf`` for none.
    """

    low: float
    high: float

    def holds(self, measured: float) -> bool:
        """Whether ``measured`` is in the range; NaN never is."""
        return bool(self.low <= measured <= self.high)

    def __str__(self) -> str:
        if np.isinf(self.high):
            return f">= {self.low:.6g}"
        if np.isinf(self.low):
            return f"<= {self.high:.6g}"
        return f"in [{self.low:.6g}, {self.high:.6g}]"


def at_least(low: float) -> Threshold:
    """The claim holds from ``low`` upwards.

    Raises:
        ValueError: ``low`` is not finite.

    Example:
        >>> at_least(30.0).holds(126.0), str(at_least(30.0))
        (True, '>= 30')
    """
    _check_finite("low", low)
    return Threshold(float(low), np.inf)


def at_most(high: float) -> Threshold:
    """The claim holds up to ``high``.

    Raises:
        ValueError: ``high`` is not finite.
    """
    _check_finite("high", high)
    return Threshold(-np.inf, float(high))


def between(low: float, high: float) -> Threshold:
    """The claim holds from ``low`` to ``high``, both included.

    Raises:
        ValueError: an end is not finite, or ``low > high``.
    """
    _check_finite("low", low)
    _check_finite("high", high)
    if low > high:
        raise ValueError(f"low must be <= high, got low={low} and high={high}")
    return Threshold(float(low), float(high))


class Interval(NamedTuple):
    """The spread of a measured figure.

    Attributes:
        low: lower end, ``-inf`` where the data bound nothing from below.
        high: upper end, ``inf`` where they bound nothing from above.
        method: how it was made and over what, for the reader.
    """

    low: float
    high: float
    method: str


@dataclasses.dataclass(frozen=True)
class Claim:
    """One sentence of a paper's abstract, or one row of its tables, made measurable.

    Whether it holds is computed from ``measured`` and ``threshold``, never told.

    Attributes:
        text: the sentence.
        measured: the figure found here, a number.
        threshold: the range that bears it out; None for a figure that is reported only.
        interval: the spread of ``measured`` and its method; None where there is none.
        paper: the figure as the source prints it; None where it prints none.

    Raises:
        ValueError: ``text`` is empty, or ``measured`` is not one real number.

    Example:
        >>> Claim("MoM beats the mean", measured=126.0, threshold=at_least(30.0)).holds
        True
    """

    text: str
    measured: float
    threshold: Threshold | None = None
    interval: Interval | None = None
    paper: str | None = None

    def __post_init__(self):
        if not self.text.strip():
            raise ValueError(f"text must say what is claimed, got {self.text!r}")
        measured = np.asarray(self.measured)
        if measured.ndim != 0 or measured.dtype.kind not in "biuf":
            raise ValueError(f"measured must be one real number, got {self.measured!r}")
        object.__setattr__(self, "measured", float(measured))

    @property
    def holds(self) -> bool | None:
        """True or False; None without a threshold."""
        if self.threshold is None:
            return None
        return self.threshold.holds(self.measured)

    def to_json(self) -> dict[str, Any]:
        """The claim with its verdict, as ``claims.json`` holds it."""
        return {
            "text": self.text,
            "paper": self.paper,
            "measured": self.measured,
            "interval": self.interval and self.interval._asdict(),
            "threshold": self.threshold and str(self.threshold),
            "holds": self.holds,
        }


def _check_finite(name: str, value: float) -> None:
    if not np.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")


def verdict(holds: bool | None) -> str:
    """``"yes"``, ``"NO"``, or ``"-"`` for a figure that is reported only."""
    return {True: "yes", False: "NO", None: "-"}[holds]


def figure_with_spread(measured: float, interval: Interval | None) -> str:
    """The measured figure with the ends of its interval, for a table.

    Example:
        >>> figure_with_spread(126.0, Interval(80.0, np.inf, "95% bootstrap"))
        '126 [80, inf]'
    """
    if interval is None:
        return f"{measured:.4g}"
    return f"{measured:.4g} [{interval.low:.4g}, {interval.high:.4g}]"
