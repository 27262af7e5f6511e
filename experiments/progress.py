"""One bar over the stages of a run; plain lines where there is no terminal."""

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from experiments.stages import Observer


@contextlib.contextmanager
def stage_progress(console: Console, total: int | None) -> Iterator[Observer]:
    """An observer that shows on ``console`` how the stages of a run go on.

    Args:
        console: where to; it is a live bar only if this is a terminal.
        total: the number of stages, if it is known.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    live = console.is_terminal
    with Progress(*columns, console=console, disable=not live) as progress:
        task = progress.add_task("", total=total)

        def observe(name: str, seconds: float | None, restored: bool) -> None:
            if seconds is None:
                progress.update(task, description=name)
                line = None if live else f"{name}: started"
            else:
                progress.advance(task)
                ending = "read back" if restored else f"done in {seconds:.1f} s"
                line = f"{name}: {ending}"
            if line:
                console.print(line, markup=False, highlight=False)

        yield observe
