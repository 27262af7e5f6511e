"""Long runs in chunks: progress, metrics as they come, and restart after a kill."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from jaxopt_suite.core import checkpoint, checks
from jaxopt_suite.core.mesh import fetch
from jaxopt_suite.core.types import Transformation


def run_chunks(
    loop: Transformation,
    state: PyTree,
    num_steps: int,
    *,
    chunk: int,
    directory: str | os.PathLike | None = None,
    resume: bool = False,
    tag: str = "",
    on_chunk: Callable[[int, PyTree, PyTree], None] | None = None,
    progress: str | None = None,
) -> tuple[PyTree, PyTree]:
    """Runs ``loop.update(None, state)`` ``num_steps`` times, ``chunk`` at a time.

    One compiled loop serves all chunks, the last, shorter one too. With a ``directory``
    the state and all outputs so far are saved after each chunk, so a run that is killed
    loses at most one chunk, and once resumed ends with the same numbers bit for bit.

    Args:
        loop: the iteration, such as :func:`optimization_loop` or
            :func:`interaction_loop` make it; called with inputs None.
        state: the state to start from, ``loop.init(...)``. A resumed run is given it
            too: the checkpoint must have its shapes and dtypes, and gets its layout.
        num_steps: number of updates in all, those before a restart included.
        chunk: updates per compiled call. The host sees nothing in between.
        directory: folder for checkpoints, of this run's own; None saves nothing.
        resume: go on from the newest checkpoint in ``directory``, if there is one.
        tag: whose run this is; a checkpoint with another tag is refused.
        on_chunk: ``on_chunk(steps_done, state, rows)``, after the chunk is saved;
            ``rows`` are that chunk's outputs. A resumed run calls it first with the
            rows that it found, so that whoever writes them out sees every row once.
        progress: a label shows a progress bar (needs ``rich``); None shows nothing.

    Returns:
        ``(state, outputs)``, outputs as NumPy arrays with leading axis ``num_steps``.

    Raises:
        ValueError: ``num_steps`` or ``chunk`` is below 1, or ``resume`` comes without
            ``directory``.
        CheckpointError: the folder's checkpoint is another run's, damaged, beyond
            ``num_steps``, or there although ``resume`` is False.

    Example:
        >>> from jaxopt_suite.core import Transformation
        >>> halve = Transformation(lambda: jnp.ones([]), lambda _, x: (x, x / 2))
        >>> run_chunks(halve, halve.init(), 5, chunk=2)[1]
        array([1.    , 0.5   , 0.25  , 0.125 , 0.0625], dtype=float32)
    """
    checks.check_integer("num_steps", num_steps)
    checks.check_integer("chunk", chunk)
    if resume and directory is None:
        raise ValueError("resume=True needs directory=, got None")
    start = jax.tree.map(_strongly_typed, state)
    done, state, outputs = 0, start, []
    if directory is not None:
        done, state, outputs = _find(loop, start, num_steps, directory, resume, tag)
    if on_chunk is not None and done:
        on_chunk(done, state, outputs[0])
    with _progress_bar(progress, num_steps, done) as advance:
        while done < num_steps:
            steps = min(chunk, num_steps - done)
            state, rows = _advance(loop, state, np.int32(steps), chunk=chunk)
            # The compiler may choose another layout; one layout is one compile.
            state = jax.tree.map(_laid_out_as, start, state)
            rows = jax.tree.map(functools.partial(_first, steps), fetch(rows))
            outputs.append(rows)
            done += steps
            if directory is not None:
                outputs = [jax.tree.map(_concatenate, *outputs)]
                saved = {"state": state, "outputs": outputs[0]}
                checkpoint.save(directory, done, saved, tag=tag)
            if on_chunk is not None:
                on_chunk(done, state, rows)
            advance(steps)
    return state, jax.tree.map(_concatenate, *outputs)


@functools.partial(jax.jit, static_argnames=("loop", "chunk"))
def _advance(
    loop: Transformation, state: PyTree, steps: Int[Array, ""], *, chunk: int
) -> tuple[PyTree, PyTree]:
    """``steps <= chunk`` updates; the outputs fill the first rows of ``chunk``."""

    def step(i, carry):
        state, rows = carry
        row, state = loop.update(None, state)
        return state, jax.tree.map(lambda buffer, x: buffer.at[i].set(x), rows, row)

    return jax.lax.fori_loop(0, steps, step, (state, _empty_rows(loop, state, chunk)))


def _empty_rows(loop: Transformation, state: PyTree, count: int) -> PyTree[Array]:
    row = jax.eval_shape(lambda state: loop.update(None, state)[0], state)
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), row)


def _find(
    loop: Transformation,
    start: PyTree,
    num_steps: int,
    directory: str | os.PathLike,
    resume: bool,
    tag: str,
) -> tuple[int, PyTree, list[PyTree]]:
    """Steps done, state and outputs in the folder, or those of a fresh start."""
    step = checkpoint.latest_step(directory, tag=tag)
    if step is None:
        return 0, start, []
    if not resume or step > num_steps:
        why = f"beyond num_steps={num_steps}" if resume else "and resume is False"
        raise checkpoint.CheckpointError(
            f"{os.fspath(directory)} holds step {step} of this run, {why}: pass "
            f"resume=True and num_steps >= {step} to go on, or use an empty folder"
        )
    like = {"state": start, "outputs": fetch(_empty_rows(loop, start, step))}
    found = checkpoint.restore(directory, like, tag=tag)
    assert found is not None
    return step, found[1]["state"], [found[1]["outputs"]]


def _strongly_typed(leaf: Any) -> jax.Array:
    # A Python scalar's weak type would cost a second compile after the first chunk.
    leaf = jnp.asarray(leaf)
    weak = getattr(jax.typeof(leaf), "weak_type", False)
    return leaf.astype(leaf.dtype) if weak else leaf


def _laid_out_as(like: jax.Array, value: jax.Array) -> jax.Array:
    if not like.committed or value.sharding == like.sharding:
        return value
    return jax.device_put(value, like.sharding)


def _first(steps: int, rows: Any) -> Any:
    return rows[:steps]


def _concatenate(*blocks: Any) -> Any:
    if len(blocks) == 1:
        return blocks[0]
    join = jnp.concatenate if checks.is_key_array(blocks[0]) else np.concatenate
    return join(blocks)


@contextlib.contextmanager
def _progress_bar(
    label: str | None, total: int, done: int
) -> Iterator[Callable[[int], None]]:
    """A ``rich`` bar on the first process; yields what moves it on."""
    if label is None or jax.process_index() != 0:
        yield lambda steps: None
        return
    try:
        from rich import progress
    except ImportError as error:
        raise ImportError(
            "a progress bar needs rich: install jaxopt-suite[experiments]"
        ) from error
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns) as bar:
        task = bar.add_task(label, total=total, completed=done)
        yield lambda steps: bar.advance(task, steps)
