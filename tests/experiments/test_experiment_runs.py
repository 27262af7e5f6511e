"""A run from the command line to its files, and everything that is refused."""

import csv
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.__main__ import main
from jaxopt_suite.core import checkpoint


def run(out, *options):
    return main(["run", "toy_walk", "--scale", "smoke", "--out", str(out), *options])


def exit_code(arguments):
    try:
        return main(arguments)
    except SystemExit as error:
        return error.code


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


@pytest.fixture
def finished(toy_results, toy, tmp_path):
    """The folder of a finished run at smoke scale."""
    shutil.copytree(toy_results, tmp_path, dirs_exist_ok=True)
    return tmp_path / "toy_walk" / "smoke"


def test_a_run_writes_what_the_script_returns(toy, tmp_path, capsys):
    assert run(tmp_path) == 0
    printed = capsys.readouterr()
    folder = tmp_path / "toy_walk" / "smoke"
    names = {path.name for path in folder.iterdir()}
    tables = {"config.json", "metrics.csv", "claims.json"}
    assert names == tables | {"walk.png", "checkpoints"}
    assert (folder / "walk.png").read_bytes().startswith(b"\x89PNG")
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == [
        *("start", "start", "walk", "walk")
    ]

    expected = toy.run(toy.SCALES["smoke"], jax.random.key(0))
    with (folder / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    path = [float(row["value"]) for row in rows if row["metric"] == "path"]
    np.testing.assert_array_equal(path, expected.metrics["path"].values.ravel())
    claims = json.loads((folder / "claims.json").read_text())
    assert [claim["holds"] for claim in claims] == [True, True, None]
    size = np.abs(expected.metrics["path"].values).max(1)
    assert claims[0]["measured"] == np.median(size)
    assert claims[0]["interval"]["low"] == size.min()
    for text in ("the walk | stays *within* its <limit>", "1.5", "<= 1000", "yes"):
        assert text in printed.out

    config = json.loads((folder / "config.json").read_text())
    assert config["config"] == {"num_seeds": 6, "num_steps": 12, "limit": 1000.0}
    assert config["num_seeds"] == 6
    assert (config["experiment"], config["scale"]) == ("toy_walk", "smoke")
    assert config["versions"]["jax"] == jax.__version__
    assert config["device"] == {"kind": "cpu", "count": 8}
    assert (
        config["summary"]
        == "A random walk, whose steps are a long scan within a stage."
    )
    for place in (tmp_path, Path.cwd(), Path.home(), Path(sys.prefix)):
        assert str(place) not in (folder / "config.json").read_text()


def test_a_claim_that_does_not_hold_is_named_and_makes_the_exit_code(
    toy, tmp_path, capsys
):
    code = main(["run", "toy_walk", "--out", str(tmp_path), "--seeds", "3"])
    printed = capsys.readouterr()
    assert code == 1
    assert "NO" in printed.out
    named = [line for line in printed.err.splitlines() if "does not hold" in line]
    assert named == ["does not hold: the walk | stays *within* its <limit>"]
    config = json.loads((tmp_path / "toy_walk/default/config.json").read_text())
    assert config["num_seeds"] == config["config"]["num_seeds"] == 3


def test_resuming_a_finished_run_reads_every_stage_and_writes_the_same(
    finished, tmp_path, capsys
):
    before = contents(finished)
    assert run(tmp_path, "--resume") == 0
    assert capsys.readouterr().err.count("read back") == 2
    assert contents(finished) == before


def test_a_new_run_replaces_an_earlier_one_of_its_own(finished, tmp_path, capsys):
    before = contents(finished)
    (finished / ".hidden").touch()
    assert run(tmp_path, "--seeds", "2") == 0
    after = contents(finished)
    assert "done in" in capsys.readouterr().err
    assert set(after) == {*before, Path(".hidden")}
    metrics = after[Path("metrics.csv")].splitlines()
    assert len(metrics) == 1 + 2 * 12 + 2 + 1


def test_a_figure_that_is_no_longer_made_goes_away(
    finished, toy, tmp_path, monkeypatch
):
    made = toy.run

    def renamed(*arguments, **options):
        result = made(*arguments, **options)
        figures = {"other": result.figures["walk"]}
        return type(result)(result.metrics, figures, result.claims)

    monkeypatch.setattr(toy, "run", renamed)
    assert run(tmp_path, "--resume") == 0
    assert [path.name for path in finished.glob("*.png")] == ["other.png"]
    assert run(tmp_path) == 0


def harm(folder, kind):
    stage = folder / "checkpoints" / "start.npz"
    match kind:
        case "a file of somebody else":
            (folder / "thesis.txt").write_text("mine")
        case "no config":
            (folder / "config.json").unlink()
        case "a damaged config":
            (folder / "config.json").write_text('{"experiment": "toy')
        case "another experiment":
            text = (folder / "config.json").read_text()
            (folder / "config.json").write_text(text.replace("toy_walk", "other"))
        case "a damaged stage":
            stage.write_bytes(stage.read_bytes()[:100])
        case "a foreign checkpoint within a stage":
            (folder / "checkpoints" / "walk.npz").unlink()
            other = folder / "checkpoints" / "walk"
            checkpoint.save(other, 4, {"x": np.ones(2)}, tag="another")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("a file of somebody else", [], r"not of this run (thesis.txt): choose"),
        ("a file of somebody else", ["--resume"], "not of this run (thesis.txt)"),
        ("no config", [], "not of this run (checkpoints, claims.json, metrics.csv"),
        ("a damaged config", [], "config.json is damaged, or of no run: choose"),
        ("another experiment", [], "not of this run"),
        ("other seeds", ["--resume", "--seeds", "4"], "(num_seeds, config differ)"),
        ("a damaged stage", ["--resume"], "start.npz is damaged: leave --resume out"),
        ("a foreign checkpoint within a stage", ["--resume"], "of 'another', not of"),
    ],
)
def test_what_is_not_this_runs_is_refused_and_left_alone(
    finished, tmp_path, capsys, kind, options, message
):
    harm(finished, kind)
    before = contents(finished)
    assert run(tmp_path, *options) == 2
    *progress, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert all(text.startswith(("start", "walk")) for text in progress)
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "toy_wolk"], "'toy_wolk': did you mean toy_walk? `python -m exp"),
        (["run", "Zzz"], "unknown experiment 'Zzz': `python -m experiments list`"),
        (["run", "toy_walk", "--scale", "huge"], "'smoke', 'default', 'full'"),
        (["run", "toy_walk", "--seeds", "0"], "must be an integer >= 1, got '0'"),
        (["run", "toy_walk", "--seeds", "x"], "must be an integer >= 1, got 'x'"),
        (["run", "toy_walk", "--seeds", "1"], "--seeds 1: num_seeds must be >= 2"),
        (["run", "toy_walk", "--out", "file"], "cannot write to file/toy_walk/default"),
        (["run", "toy_walk", "--out", "/dev/null/x"], "cannot write to /dev/null/x"),
        (["report", "--out", "nothing"], "no finished run under nothing"),
        (["report", "--out", "file"], "no finished run under file"),
        (["dance"], "invalid choice: 'dance'"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    toy, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    assert exit_code(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert contents(tmp_path) == {Path("file"): b"mine"}


@pytest.mark.parametrize("module", ["rich", "matplotlib"])
def test_a_missing_extra_says_what_to_install(
    toy, tmp_path, monkeypatch, capsys, module
):
    for name in list(sys.modules):
        if name.partition(".")[0] == module:
            monkeypatch.setitem(sys.modules, name, None)
    for name in ("runner", "figures", "progress"):
        monkeypatch.delitem(sys.modules, f"experiments.{name}", raising=False)
    assert run(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {module}")
    assert line.endswith("is missing: pip install 'jaxopt-suite[experiments]'")


def test_a_script_that_raises_is_no_claim_that_fails(
    toy, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("TOY_RAISE", "1")
    assert run(tmp_path) == 3
    assert "Traceback" in capsys.readouterr().err
    folder = tmp_path / "toy_walk" / "smoke"
    assert json.loads((folder / "config.json").read_text())["status"] == "running"


def test_an_interrupted_run_says_how_to_go_on(toy, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(toy, "run", interrupted)
    assert run(tmp_path) == 130
    assert "--resume goes on" in capsys.readouterr().err
