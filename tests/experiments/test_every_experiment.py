"""What holds for every experiment there is."""

import csv
import importlib
import json

import pytest

from experiments.__main__ import main
from experiments.discovery import find_experiments
from experiments.runner import configuration, shape_check

EXPERIMENTS = find_experiments()


def test_the_toy_is_found_where_modules_are_looked_for(toy):
    summary = "A random walk, whose steps are a long scan within a stage."
    found = find_experiments()
    assert found == dict(sorted({**EXPERIMENTS, "toy_walk": summary}.items()))
    assert shape_check(toy, "full")


def test_an_experiment_without_shapes_says_so(toy, monkeypatch):
    monkeypatch.delattr(toy, "shapes")
    assert not shape_check(toy)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_summary_and_three_scales(name):
    assert EXPERIMENTS[name], "the docstring's first line is the summary"
    module = importlib.import_module(f"experiments.{name}")
    assert {"smoke", "default", "full"} <= set(module.SCALES)
    for scale in module.SCALES:
        assert configuration(module, scale, 2).num_seeds == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_builds_at_full_size(name):
    assert shape_check(importlib.import_module(f"experiments.{name}"), "full")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_at_smoke_scale(name, tmp_path):
    code = main(["run", name, "--scale", "smoke", "--out", str(tmp_path)])
    folder = tmp_path / name / "smoke"
    config = json.loads((folder / "config.json").read_text())
    assert config["status"] == "finished"
    assert config["figures"]
    for figure in config["figures"]:
        assert (folder / figure).read_bytes().startswith(b"\x89PNG")
    with (folder / "metrics.csv").open(newline="") as stream:
        assert len(list(csv.reader(stream))) > 1
    claims = json.loads((folder / "claims.json").read_text())
    failed = [claim["text"] for claim in claims if claim["holds"] is False]
    assert any(claim["threshold"] for claim in claims)
    assert (code, failed) == (0, [])
