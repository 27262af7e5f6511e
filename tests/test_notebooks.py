"""The notebooks: committed with their outputs, and running as they stand."""

import copy
import os
import re
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
HOSTS = {"arxiv.org", "colab.research.google.com", "github.com"}
FOLDERS = (ROOT, Path.home(), tempfile.gettempdir(), "/home", "/Users")
LOCAL = {f"{folder}/" for folder in FOLDERS if len(str(folder)) > 1}
LARGEST = 400_000

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell):
    """The kinds of a cell's outputs: pictures, and the names of its streams."""
    data = [kind for output in cell.outputs for kind in output.get("data", {})]
    return {*data, *(o.name for o in cell.outputs if o.output_type == "stream")}


def texts(notebook):
    """All that a reader can read: sources, printed text, tracebacks."""
    for cell in notebook.cells:
        yield cell.source
        for output in cell.get("outputs", []):
            yield output.get("text", "")
            yield "\n".join(output.get("traceback", []))
            data = output.get("data", {})
            yield from (text for kind, text in data.items() if kind != "image/png")


def faults(notebook):
    """What must not be committed."""
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"not run from top to bottom: execution counts {counts}"
    for cell in code_cells(notebook):
        if "stderr" in kinds(cell) or any(
            output.output_type == "error" for output in cell.outputs
        ):
            yield f"cell {cell.execution_count} has a warning or an error"
    for text in texts(notebook):
        yield from (f"local path {path}" for path in LOCAL if path in text)
        found = set(re.findall(r"https?://([^/\s)\"']+)", text)) - HOSTS
        yield from (f"host {host}" for host in sorted(found))
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "kernel is not python3"


def test_all_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == [
        "annealing_and_quantization",
        "bandits",
        "heavy_tails",
        "quickstart",
    ]


@each_notebook
def test_committed_with_outputs_and_nothing_local(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert not list(faults(notebook))
    assert path.stat().st_size < LARGEST
    assert any("image/png" in kinds(cell) for cell in code_cells(notebook))
    badge = f"/github/jaxopt-suite/jaxopt_suite/blob/main/notebooks/{path.name})"
    assert f"(https://colab.research.google.com{badge}" in notebook.cells[0].source
    assert "except ImportError:\n    %pip install" in code_cells(notebook)[0].source


def break_order(cell):
    cell.execution_count = None


def break_with_error(cell):
    cell.outputs = [nbformat.v4.new_output("error", traceback=["Boom"])]


def break_with_warning(cell):
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="careful")]


def break_with_path(cell):
    cell.outputs = [nbformat.v4.new_output("stream", text=f"{ROOT}/x.py")]


def break_with_host(cell):
    cell.source = "open('https://example.com/data')"


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (break_order, "execution counts"),
        (break_with_error, "an error"),
        (break_with_warning, "a warning"),
        (break_with_path, "local path"),
        (break_with_host, "host example.com"),
    ],
)
def test_every_fault_is_seen(spoil, fault):
    notebook = copy.deepcopy(read(NOTEBOOKS[0]))
    spoil(code_cells(notebook)[3])
    assert any(fault in seen for seen in faults(notebook))


@pytest.mark.slow
@each_notebook
def test_runs_and_shows_what_was_committed(path, tmp_path):
    notebook = read(path)
    committed = [kinds(cell) for cell in code_cells(notebook)]
    # The kernel is a reader's: its own devices and backend, and this checkout's code.
    env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "MPLBACKEND")}
    env |= {"JAXOPT_NOTEBOOK_SCALE": "smoke", "PYTHONPATH": str(ROOT)}
    # Programs that run for milliseconds: to optimize them is most of the time.
    env |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute(env=env)
    assert [kinds(cell) for cell in code_cells(notebook)] == committed
    assert not list(faults(notebook))
    assert not list(tmp_path.iterdir())
