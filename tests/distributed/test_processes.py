"""Real processes: two that make one run, and one that is killed in mid-run."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import two_process_worker
from killed_run import CHUNK, NUM_STEPS, make

from jaxopt_suite.core import run_chunks
from jaxopt_suite.core.checkpoint import latest_step

HERE = pathlib.Path(__file__).parent
# The processes need some 10 s; this only ends a run that hangs.
TIMEOUT = 240


@contextlib.contextmanager
def processes(script, *arguments, devices, log):
    """Starts one process per list of arguments; none of them outlives the test."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    with log.open("w") as output:
        started = [
            subprocess.Popen(
                [sys.executable, str(HERE / script), *map(str, words)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for words in arguments
        ]
        try:
            yield started
        finally:
            for process in started:
                process.kill()
                process.wait()


def free_port():
    """A port that is free, below those that the system hands out by itself."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as attempt, contextlib.suppress(OSError):
            attempt.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")


def wait_until(happened, started, log):
    """Polls; fails with the log if a process fails first, or after TIMEOUT."""
    deadline = time.monotonic() + TIMEOUT
    while not happened():
        assert all(p.poll() in (None, 0) for p in started), log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)


@pytest.mark.slow
def test_two_processes_compute_what_one_computes(tmp_path):
    port, log = free_port(), tmp_path / "log"
    words = [(port, rank, tmp_path) for rank in range(2)]
    with processes("two_process_worker.py", *words, devices=2, log=log) as started:
        one = two_process_worker.everything(tmp_path / "one")
        ended = lambda: all(p.poll() == 0 for p in started)  # noqa: E731
        wait_until(ended, started, log)
    with np.load(tmp_path / "result.npz") as two:
        assert one.keys() == set(two)
        assert two["record"].shape == (3, 5, 5)
        assert two["rows"].shape == (7, 8)
        for name, value in one.items():
            if "keys" in name:
                np.testing.assert_array_equal(two[name], value)
            else:
                np.testing.assert_allclose(two[name], value, rtol=1e-6)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    folder, log = tmp_path / "steps", tmp_path / "log"
    with processes("killed_run.py", (folder,), devices=8, log=log) as started:
        # A step's folder appears only once it is whole.
        saved = lambda: any(p.name.isdigit() for p in folder.glob("*"))  # noqa: E731
        wait_until(saved, started, log)
        started[0].send_signal(signal.SIGKILL)
        assert started[0].wait() == -signal.SIGKILL
    done = latest_step(folder, tag="long run")
    assert done is not None
    assert 0 < done < NUM_STEPS
    loop, start = make()
    first_chunk = []
    state, rows = run_chunks(
        loop,
        start,
        NUM_STEPS,
        chunk=CHUNK * 10,
        directory=folder,
        resume=True,
        tag="long run",
        on_chunk=lambda done, state, rows: first_chunk.append(done),
    )
    assert first_chunk[0] == done
    whole_state, whole_rows = run_chunks(loop, start, NUM_STEPS, chunk=NUM_STEPS)
    np.testing.assert_array_equal(rows, whole_rows)
    assert state.key == whole_state.key
    jax.tree.map(np.testing.assert_array_equal, state[2:], whole_state[2:])
