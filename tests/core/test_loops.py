import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.core import Transformation, device_mesh, run_chunks, shard_leading
from jaxopt_suite.core.checkpoint import CheckpointError


def walk():
    """A random walk; counts how often it is traced."""
    traces = []

    def init(key):
        return {"x": jnp.zeros(2), "key": key, "t": 0}

    def update(inputs, state, **extra):
        assert inputs is None
        traces.append(1)
        key, step = jax.random.split(state["key"])
        x = state["x"] + jax.random.uniform(step, (2,))
        row = {"x": x, "key": step, "t": state["t"]}
        return row, {"x": x, "key": key, "t": state["t"] + 1}

    return Transformation(init, update), traces


def walk_by_hand(steps, key=None):
    key, x, rows = jax.random.key(0) if key is None else key, jnp.zeros(2), []
    for _ in range(steps):
        key, step = jax.random.split(key)
        x = x + jax.random.uniform(step, (2,))
        rows.append(x)
    return np.array(rows)


def start(loop):
    return loop.init(jax.random.key(0))


@pytest.mark.parametrize(("steps", "chunk"), [(10, 4), (8, 4), (3, 5), (4, 1)])
def test_chunks_are_the_loop_in_one_compile(steps, chunk):
    loop, traces = walk()
    seen = []

    def on_chunk(done, state, rows):
        seen.append((done, int(state["t"]), len(rows["x"]), len(traces)))

    state, rows = run_chunks(loop, start(loop), steps, chunk=chunk, on_chunk=on_chunk)
    by_hand = walk_by_hand(steps)
    np.testing.assert_allclose(rows["x"], by_hand, rtol=1e-6)
    np.testing.assert_allclose(state["x"], by_hand[-1], rtol=1e-6)
    np.testing.assert_array_equal(rows["t"], np.arange(steps))
    assert rows["key"].shape == (steps,)
    assert isinstance(rows["x"], np.ndarray)
    dones = [*range(chunk, steps, chunk), steps]
    assert [s[:2] for s in seen] == [(d, d) for d in dones]
    assert sum(s[2] for s in seen) == steps
    # Traced for the first chunk, and never again: not for the shorter last one, and
    # not because the step count began as a Python number.
    assert {s[3] for s in seen} == {len(traces)}
    run_chunks(loop, start(loop), steps + 1, chunk=chunk)
    assert {s[3] for s in seen} == {len(traces)}


def test_a_resumed_run_continues_to_the_same_bits(tmp_path):
    loop, _ = walk()
    whole_state, whole = run_chunks(loop, start(loop), 10, chunk=3)
    run_chunks(loop, start(loop), 6, chunk=3, directory=tmp_path, tag="walk")
    seen = []
    state, rows = run_chunks(
        loop,
        start(loop),
        10,
        chunk=4,
        directory=tmp_path,
        resume=True,
        tag="walk",
        on_chunk=lambda done, state, rows: seen.append((done, *rows["t"])),
    )
    assert seen == [(6, 0, 1, 2, 3, 4, 5), (10, 6, 7, 8, 9)]
    jax.tree.map(np.testing.assert_array_equal, rows["x"], whole["x"])
    np.testing.assert_array_equal(state["x"], whole_state["x"])
    assert state["key"] == whole_state["key"]
    assert jnp.all(rows["key"] == whole["key"])
    # Nothing is left to do: the end comes back from the folder.
    again, rows = run_chunks(
        loop, start(loop), 10, chunk=3, directory=tmp_path, resume=True, tag="walk"
    )
    np.testing.assert_array_equal(again["x"], whole_state["x"])
    assert len(rows["x"]) == 10


def test_a_state_over_devices_is_one_compile_too_and_keeps_its_layout(tmp_path, caplog):
    loop, _ = walk()
    lanes = loop._replace(update=jax.vmap(loop.update, in_axes=(None, 0)))
    keys = jax.random.split(jax.random.key(0), 4)
    begin = shard_leading(jax.vmap(loop.init)(keys), device_mesh("lanes", 4), "lanes")
    options = {"chunk": 2, "directory": tmp_path}
    with jax.log_compiles():
        run_chunks(lanes, begin, 4, **options)
        state, rows = run_chunks(lanes, begin, 7, resume=True, **options)
    compiles = [m for m in caplog.messages if "Compiling jit(_advance)" in m]
    assert len(compiles) == 1
    assert state["x"].sharding == begin["x"].sharding
    np.testing.assert_allclose(rows["x"][:, 0], walk_by_hand(7, keys[0]), rtol=1e-6)


def test_resume_starts_afresh_in_an_empty_folder(tmp_path):
    loop, _ = walk()
    state, _ = run_chunks(
        loop, start(loop), 3, chunk=2, directory=tmp_path / "new", resume=True
    )
    np.testing.assert_allclose(state["x"], walk_by_hand(3)[-1], rtol=1e-6)


def test_a_folder_in_use_is_refused_before_anything_runs(tmp_path):
    loop, traces = walk()
    run_chunks(loop, start(loop), 4, chunk=2, directory=tmp_path, tag="a")
    fresh, traces = walk()
    options = {"chunk": 2, "directory": tmp_path}
    with pytest.raises(
        CheckpointError, match="step 4 of this run, and resume is False"
    ):
        run_chunks(fresh, start(fresh), 4, tag="a", **options)
    with pytest.raises(CheckpointError, match="not of 'b'"):
        run_chunks(fresh, start(fresh), 4, tag="b", resume=True, **options)
    with pytest.raises(CheckpointError, match="step 4 of this run, beyond num_steps=3"):
        run_chunks(fresh, start(fresh), 3, tag="a", resume=True, **options)
    assert not traces
    wider = start(fresh) | {"x": jnp.zeros(3)}
    still = Transformation(fresh.init, lambda _, state, **extra: (state["t"], state))
    with pytest.raises(CheckpointError, match=r"has 6 leaves.*wanted are 4"):
        run_chunks(still, wider, 4, tag="a", resume=True, **options)


def test_a_progress_bar_shows_the_label_and_the_steps(capsys):
    loop, _ = walk()
    run_chunks(loop, start(loop), 5, chunk=2, progress="walking")
    shown = capsys.readouterr().out
    assert "walking" in shown
    assert "5/5" in shown


def test_no_progress_bar_unless_asked(capsys):
    loop, _ = walk()
    run_chunks(loop, start(loop), 5, chunk=2)
    assert capsys.readouterr().out == ""


def test_run_chunks_says_what_is_wrong():
    loop, _ = walk()
    with pytest.raises(ValueError, match="num_steps must be an integer >= 1, got 0"):
        run_chunks(loop, start(loop), 0, chunk=1)
    with pytest.raises(ValueError, match=r"chunk must be an integer >= 1, got 2\.5"):
        run_chunks(loop, start(loop), 5, chunk=2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="resume=True needs directory"):
        run_chunks(loop, start(loop), 5, chunk=2, resume=True)
