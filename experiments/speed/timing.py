"""Ratios of run times, measured in turns so that a busy machine hits both sides."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        at_least: the ratio that is demanded; None: it is only reported.
        at_most: what the ratio must not exceed; None: it may be as large as it likes.
    """

    what: str
    ours: float
    peer: float
    low: float
    high: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratio(self) -> float:
        """Median seconds of the peer over ours; above 1 ours is faster."""
        return self.peer / self.ours

    @property
    def holds(self) -> bool | None:
        """Whether the ratio is as demanded; None if nothing is."""
        if self.at_least is None and self.at_most is None:
            return None
        low = -float("inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return low <= self.ratio <= high


class Run(NamedTuple):
    """What :func:`cpu_times` times.

    Attributes:
        start: gets ready and returns the call to be timed.
        units: how much one such call does.
    """

    start: Callable[[], Callable[[], Any]]
    units: float


def seconds(
    call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds, of the wall clock if not told otherwise, until the result is there."""
    start = clock()
    jax.block_until_ready(call())
    return clock() - start


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
    return ratio_of(what, *zip(*pairs, strict=True))


def ratio_of(
    what: str,
    ours: Sequence[float],
    peer: Sequence[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Ratio:
    """The ratio of seconds measured in the same turns."""
    ratios = [p / o for o, p in zip(ours, peer, strict=True)]
    return Ratio(
        what,
        statistics.median(ours),
        statistics.median(peer),
        min(ratios),
        max(ratios),
        at_least,
        at_most,
    )


def cpu_times(runs: Mapping[str, Run], turns: int) -> dict[str, list[float]]:
    """CPU seconds per unit of each run, turn by turn, after one run that is not timed.

    CPU time of all threads: what other programs do leaves it alone but for the cache.
    """
    for run in runs.values():
        seconds(run.start())
    found = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            used = seconds(run.start(), time.process_time)
            found[name].append(used / run.units)
    return found


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps all threads of this process on one core, where the system lets one."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    _keep_on({min(cores)})
    try:
        yield
    finally:
        _keep_on(cores)


def _keep_on(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        # A thread may have ended since it was listed.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)
