"""The command line in processes of its own: start, kill, go on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.__main__ import main

ROOT = Path(__file__).parents[2]
TOYS = Path(__file__).parent / "toys"
WITH_TOY = f"""
import sys, experiments
experiments.__path__.append({str(TOYS)!r})
from experiments.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def start(code, *arguments, **variables):
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_the_module_runs_and_lists_without_importing_jax():
    look = "import sys; sys.argv[1:] = ['list']; import runpy\n"
    look += "try: runpy.run_module('experiments', run_name='__main__')\n"
    look += "except SystemExit as end: print(end.code, 'jax' in sys.modules)"
    listing = start(["-c", look])
    unknown = start(["-m", "experiments"], "run", "nothing_like_it")
    assert listing.communicate()[0].splitlines()[-1] == "0 False"
    out, err = unknown.communicate()
    assert (unknown.returncode, out) == (2, "")
    assert err.startswith("error: unknown experiment 'nothing_like_it'")


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(toy, tmp_path):
    arguments = ["run", "toy_walk", "--scale", "smoke", "--out"]
    reached, killed_out = tmp_path / "reached", str(tmp_path / "killed")
    process = start(["-c", WITH_TOY], *arguments, killed_out, TOY_PAUSE=str(reached))
    deadline = time.monotonic() + 300
    while not reached.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder = tmp_path / "killed" / "toy_walk" / "smoke"
    assert json.loads((folder / "config.json").read_text())["status"] == "running"
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        "start.npz",
        "walk",
    }

    resumed = start(["-c", WITH_TOY], *arguments, killed_out, "--resume")
    _, err = resumed.communicate()
    assert resumed.returncode == 0
    assert err.splitlines()[1:3] == ["start: read back", "walk: started"]

    assert main([*arguments, str(tmp_path / "whole")]) == 0
    whole = tmp_path / "whole" / "toy_walk" / "smoke"
    for name in ("metrics.csv", "claims.json", "config.json", "walk.png"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
