"""Ratios of run times, measured in turns so that a busy machine hits both sides."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Ratio(NamedTuple):
    """How many times longer the peer takes than ours.

    Attributes:
        what: what is compared.
        ours: median seconds of our piece.
        peer: median seconds of the peer.
        low: least ratio over the turns.
        high: largest ratio over the turns.
    """

    what: str
    ours: float
    peer: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """Median seconds of the peer over ours; above 1 ours is faster."""
        return self.peer / self.ours


def seconds(call: Callable[[], Any]) -> float:
    """Wall-clock seconds until the result of ``call`` is there."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def compare(
    what: str,
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    *,
    turns: int = 7,
    warm_up: bool = True,
) -> Ratio:
    """Times both in turns.

    Args:
        what: what is compared.
        ours: our piece.
        peer: what it is measured against.
        turns: how often each runs.
        warm_up: whether each runs once before, so that compiling is left out.
    """
    if warm_up:
        seconds(ours)
        seconds(peer)
    pairs = [(seconds(ours), seconds(peer)) for _ in range(turns)]
    ratios = [p / o for o, p in pairs]
    return Ratio(
        what,
        statistics.median(o for o, _ in pairs),
        statistics.median(p for _, p in pairs),
        min(ratios),
        max(ratios),
    )
