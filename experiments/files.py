"""Files of a run: whole or not there, strict JSON, and never somebody else's."""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

OUTPUTS = ("config.json", "metrics.csv", "claims.json", "checkpoints")


class InputError(Exception):
    """Something the person at the command line can put right; its text is one line."""


def cannot_write(path: Path, error: OSError) -> InputError:
    """What to say of ``error``, which came of writing ``path``."""
    return InputError(f"cannot write to {path}: {error.strerror or error}")


@contextlib.contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` in one step at the end of the block.

    A process that dies within the block leaves the old ``path`` as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    yield partial
    with partial.open("rb+") as stream:
        os.fsync(stream.fileno())
    os.replace(partial, path)


def plain(value: Any) -> Any:
    """``value`` in the types of strict JSON; NaN and infinities become their names.

    Raises:
        TypeError: something else than numbers, strings, sequences, mappings, arrays
            and dataclasses of them.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"cannot be written as JSON: {value!r} ({type(value).__name__})")


def write_json(path: Path, value: Any) -> None:
    """Writes strict JSON, whole or not at all."""
    text = json.dumps(plain(value), indent=2, allow_nan=False, ensure_ascii=False)
    with replaced_whole(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def read_document(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a run; it has at least experiment, scale, status, figures.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = folder / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        figures = [str(name) for name in document["figures"]]
        keys = ("experiment", "scale", "status")
        return {**document, "figures": figures} | {k: str(document[k]) for k in keys}
    except (LookupError, OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged, or of no run: choose another --out or move it away"
        ) from error


def open_run_folder(folder: Path, document: Mapping[str, Any], *, resume: bool) -> None:
    """Makes ``folder`` ready for the run that ``document`` describes.

    An earlier run of the same experiment and scale is cleared away, or kept where
    ``resume`` goes on with it. Files whose names begin with a dot are left alone.

    Raises:
        InputError: the folder cannot be written, holds files of anything else, or
            ``resume`` is asked for and it holds a run with other settings.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = {e for e in os.listdir(folder) if not e.startswith(".")}
        if entries:
            earlier = _own_document(folder, entries, document)
            if resume:
                _check_same_run(folder, earlier, document)
                return
            # It is no finished run any more from here on, even if this one dies now.
            write_json(folder / "config.json", {**earlier, "status": "running"})
            for name in sorted(entries - {"config.json"}):
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_json(folder / "config.json", document)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _own_document(
    folder: Path, entries: set[str], document: Mapping[str, Any]
) -> dict[str, Any]:
    """The ``config.json`` of the earlier run that all files in ``folder`` are of."""
    own = read_document(folder) if "config.json" in entries else {}
    same = all(own.get(key) == document[key] for key in ("experiment", "scale"))
    foreign = entries - {*OUTPUTS, *own["figures"]} if same else entries
    if foreign:
        raise InputError(
            f"{folder} holds files that are not of this run "
            f"({', '.join(sorted(foreign)[:5])}): choose another --out or move them "
            "away; nothing was changed"
        )
    return own


def _check_same_run(
    folder: Path, earlier: Mapping[str, Any], document: Mapping[str, Any]
) -> None:
    if earlier.get("fingerprint") == document["fingerprint"]:
        return
    keys = [k for k in document if k not in ("fingerprint", "figures", "status")]
    differing = [k for k in keys if earlier.get(k) != plain(document[k])]
    raise InputError(
        f"{folder} holds a run with other settings "
        f"({', '.join(differing) or 'fingerprint'} differ): leave --resume out to "
        "replace it, or choose another --out; nothing was changed"
    )
