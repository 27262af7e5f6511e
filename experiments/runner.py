"""Runs an experiment: from its module and a scale to the files of its result."""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import rich
from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.claims import Claim, figure_with_spread, verdict
from experiments.figures import house_style, save_figure
from experiments.files import (
    InputError,
    cannot_write,
    open_run_folder,
    plain,
    read_document,
    replaced_whole,
    write_json,
)
from experiments.progress import stage_progress
from experiments.results import Result, write_csv
from experiments.stages import Stages

PACKAGES = ("jaxopt-suite", "jax", "jaxlib", "numpy", "optax", "scipy")
BASE_SEED = 0


def configuration(module: ModuleType, scale: str, num_seeds: int | None = None) -> Any:
    """The config of ``scale``, with another number of seeds where one is given.

    Raises:
        InputError: no such scale, or its config refuses that number of seeds.
    """
    if scale not in module.SCALES:
        raise InputError(
            f"unknown scale {scale!r}: {short_name(module)} has "
            f"{', '.join(module.SCALES)}"
        )
    config = module.SCALES[scale]
    if num_seeds is None:
        return config
    try:
        return dataclasses.replace(config, num_seeds=num_seeds)
    except ValueError as error:
        raise InputError(f"--seeds {num_seeds}: {error}") from error


def run_experiment(
    module: ModuleType,
    scale: str,
    out: Path,
    *,
    num_seeds: int | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> Result:
    """Runs ``module`` and writes what it found to ``out/NAME/SCALE/``.

    Args:
        module: the experiment.
        scale: a key of its ``SCALES``.
        out: the folder of all results.
        num_seeds: replaces the number of seeds of the config.
        resume: whether stages that an earlier run has finished are read back.
        console: where progress goes; if None the terminal, or else standard error.

    Returns:
        What the experiment found; its figures are closed.

    Raises:
        InputError: something the caller can put right, in one line.
    """
    config = configuration(module, scale, num_seeds)
    document = describe(module, scale, config)
    folder = out / document["experiment"] / scale
    open_run_folder(folder, document, resume=resume)
    names = getattr(module, "STAGES", None)
    # Rich's own console where it can be: a bar within a stage then joins this one.
    shown = rich.get_console()
    console = console or (shown if shown.is_terminal else Console(stderr=True))
    with house_style(), stage_progress(console, names and len(names)) as observer:
        stages = Stages(
            folder / "checkpoints",
            tag=f"{folder.parent.name} {scale} {document['fingerprint'][:16]}",
            resume=resume,
            observer=observer,
            names=names,
        )
        result = module.run(config, jax.random.key(BASE_SEED), stages=stages)
    write_result(folder, document, result)
    return result


def describe(module: ModuleType, scale: str, config: Any) -> dict[str, Any]:
    """What ``config.json`` says of a run before it starts.

    The fingerprint is of everything that the numbers depend on.
    """
    device = jax.devices()[0]
    document = {
        "experiment": short_name(module),
        "scale": scale,
        "num_seeds": config.num_seeds,
        "base_seed": BASE_SEED,
        "config": plain(config),
        "versions": {name: _version(name) for name in PACKAGES},
        "device": {"kind": device.device_kind, "count": jax.device_count()},
        "float64": jnp.zeros([]).dtype == jnp.float64,
    }
    encoded = json.dumps(document, sort_keys=True).encode()
    return {
        **document,
        "fingerprint": hashlib.sha256(encoded).hexdigest(),
        "summary": (module.__doc__ or "").strip().partition("\n")[0],
        "status": "running",
        "figures": [],
    }


def _version(package: str) -> str | None:
    """The installed version; None where the package runs from its source alone."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def write_result(folder: Path, document: Mapping[str, Any], result: Result) -> None:
    """Writes metrics, claims and figures; ``config.json`` says so once all are there.

    Raises:
        InputError: the folder cannot be written.
    """
    figures = [f"{name}.png" for name in result.figures]
    earlier = read_document(folder)["figures"]
    try:
        # The names come first: a run that dies while it writes still owns its files.
        owned = {**document, "figures": sorted({*figures, *earlier})}
        write_json(folder / "config.json", owned)
        with replaced_whole(folder / "metrics.csv") as partial:
            write_csv(partial, result.metrics)
        write_json(folder / "claims.json", [c.to_json() for c in result.claims])
        for name, figure in result.figures.items():
            save_figure(figure, folder / f"{name}.png")
        for name in set(earlier) - set(figures):
            (folder / name).unlink(missing_ok=True)
        finished = {**document, "figures": figures, "status": "finished"}
        write_json(folder / "config.json", finished)
    except OSError as error:
        raise cannot_write(folder, error) from error


def print_claims(claims: tuple[Claim, ...], title: str) -> None:
    """Prints the claims as a table to standard output."""
    console = Console()
    if not console.is_terminal:
        # A pipe has no width of its own, and 80 columns would break every sentence.
        console = Console(width=120)
    console.print(claims_table(claims, title))


def claims_table(claims: tuple[Claim, ...], title: str) -> Table:
    """The claims as a rich table; one that does not hold says NO."""
    table = Table(title=title, show_lines=True)
    for column in ("claim", "paper", "measured", "threshold"):
        table.add_column(column)
    table.add_column("holds", justify="center")
    styles = {True: "green", False: "bold red", None: "dim"}
    for claim in claims:
        table.add_row(
            Text(claim.text),
            Text(claim.paper or "-"),
            Text(figure_with_spread(claim.measured, claim.interval)),
            Text("-" if claim.threshold is None else str(claim.threshold)),
            Text(verdict(claim.holds), style=styles[claim.holds]),
        )
    return table


def shape_check(module: ModuleType, scale: str = "full") -> bool:
    """Builds the run of ``scale`` without computing it, if ``module`` says how.

    Returns:
        Whether it does: its function ``shapes(config)`` was called. That function
        raises whatever is wrong with the run, by ``jax.eval_shape``.
    """
    if not hasattr(module, "shapes"):
        return False
    module.shapes(configuration(module, scale))
    return True


def short_name(module: ModuleType) -> str:
    """The name an experiment is run by."""
    return module.__name__.rpartition(".")[2]
