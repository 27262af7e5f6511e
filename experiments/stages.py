"""Stages: the parts of a run, each of which is computed once and kept."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.files import cannot_write
from experiments.results import check_name
from experiments.store import load_tree, save_tree

# Told ``(stage, None, False)`` when a stage begins and ``(stage, seconds, restored)``
# when it ends.
Observer = Callable[[str, float | None, bool], None]


class Stages:
    """Calls the stages of a run; without a folder it only computes.

    ``stages("law", fn, *args)`` returns ``fn(*args)``, a pytree, with NumPy arrays for
    leaves. With a folder the result is kept there, and a later run with ``resume``
    reads it instead of computing it, bit for bit the same. So ``fn`` must depend on its
    arguments and on the config only.

    Args:
        folder: where results are kept; None to keep none.
        tag: what identifies the run, so that no other run's results are read.
        resume: whether results that are there already are read.
        observer: called as a stage begins and ends.
        names: the stages there are; None if any name will do.

    Attributes:
        tag: as given, for checkpoints within a stage.
        resume: as given, likewise.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        tag: str = "",
        resume: bool = False,
        observer: Observer = lambda name, seconds, restored: None,
        names: tuple[str, ...] | None = None,
    ):
        self.tag, self.resume = tag, resume
        self._folder, self._observer = folder, observer
        self._names, self._seen = names, set[str]()

    def __call__(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        """The result of stage ``name``, with NumPy arrays for leaves.

        Raises:
            ValueError: the name cannot be a file name, came before in this run, or is
                not in the experiment's ``STAGES``; or the result is no pytree of
                arrays in dicts, lists, tuples and NamedTuples.
            InputError: its checkpoint is damaged, another run's, or cannot be written.
        """
        if self._folder is None:
            return _to_numpy(fn(*args))
        path = self._claim(self._folder, name)
        start = time.perf_counter()
        self._observer(name, None, False)
        restored = self.resume and path.exists()
        if restored:
            result = load_tree(path, self.tag)
        else:
            result = _to_numpy(fn(*args))
            try:
                path.parent.mkdir(exist_ok=True)
                save_tree(path, result, self.tag)
            except OSError as error:
                raise cannot_write(path, error) from error
        # The stage is finished: nothing goes on from within it any more.
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self._observer(name, time.perf_counter() - start, restored)
        return result

    def directory(self, name: str) -> Path | None:
        """The folder for checkpoints within stage ``name``; None to keep none."""
        return None if self._folder is None else self._folder / name

    def _claim(self, folder: Path, name: str) -> Path:
        """The file of stage ``name``, which no earlier stage of this run has."""
        check_name("stage", name)
        if name in self._seen:
            raise ValueError(f"stage names must differ within a run, got {name} twice")
        if self._names is not None and name not in self._names:
            raise ValueError(f"stage must be in STAGES {self._names}, got {name!r}")
        self._seen.add(name)
        return folder / f"{name}.npz"


def _to_numpy(tree: Any) -> Any:
    """``tree`` with NumPy arrays of its own for leaves."""

    def convert(leaf):
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
            raise ValueError(
                "a stage must return arrays of numbers, got a key: return "
                "jax.random.key_data of it, or split it outside"
            )
        return np.array(jax.device_get(leaf))

    return jax.tree.map(convert, tree)


COMPUTE = Stages()
