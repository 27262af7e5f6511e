import importlib
from pathlib import Path

import pytest

import experiments
from experiments.__main__ import main

TOYS = Path(__file__).parent / "toys"


@pytest.fixture(scope="module")
def toy():
    """The toy experiment, found and imported as the real ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "__path__", [*experiments.__path__, str(TOYS)])
        yield importlib.import_module("experiments.toy_walk")


@pytest.fixture(scope="module")
def toy_results(toy, tmp_path_factory):
    """A folder of results that holds a finished run of the toy; to be copied."""
    out = tmp_path_factory.mktemp("results")
    assert main(["run", "toy_walk", "--scale", "smoke", "--out", str(out)]) == 0
    return out
