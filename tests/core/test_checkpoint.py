import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.core import checkpoint, device_mesh, shard_leading
from jaxopt_suite.core.checkpoint import CheckpointError, latest_step, save

TREE = {
    "w": jnp.arange(6.0).reshape(2, 3),
    "half": jnp.array([1.5, -2.0], jnp.bfloat16),
    "key": jax.random.split(jax.random.key(3), 2),
    "other_key": jax.random.key(4, impl="rbg"),
    "flag": np.array([True, False]),
    "count": jnp.int32(7),
    "empty": jnp.zeros((0, 4)),
    "none": None,
}


def restore(folder, like, **options):
    """A checkpoint that must be there."""
    found = checkpoint.restore(folder, like, **options)
    assert found is not None
    return found


def blank(tree):
    return jax.tree.map(lambda x: jnp.zeros_like(x) if hasattr(x, "shape") else x, tree)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert bool(jnp.all(x == y))


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_any_tree_of_arrays_comes_back(tmp_path):
    assert checkpoint.restore(tmp_path / "new", TREE) is None
    assert latest_step(tmp_path / "new") is None
    save(tmp_path / "new", 4, TREE, tag="mine")
    step, tree = restore(tmp_path / "new", blank(TREE), tag="mine")
    assert step == 4
    assert_same(tree, TREE)


def test_numpy_stays_numpy_and_devices_stay_devices(tmp_path):
    second = jax.devices()[1]
    mesh = device_mesh("data", 4)
    tree = {
        "host": np.arange(3.0),
        "second": jax.device_put(jnp.arange(3.0), second),
        "rows": shard_leading(jnp.arange(8.0), mesh, "data"),
        "keys": shard_leading(jax.random.split(jax.random.key(0), 4), mesh, "data"),
    }
    save(tmp_path, 1, tree)
    _, back = restore(tmp_path, tree)
    assert isinstance(back["host"], np.ndarray)
    assert back["host"].dtype == np.float64
    assert back["second"].devices() == {second}
    for name in ("rows", "keys"):
        assert back[name].sharding == tree[name].sharding
    assert_same(back, tree)


def test_the_last_two_steps_are_kept(tmp_path):
    for step in (3, 5, 10):
        save(tmp_path, step, {"x": jnp.full(2, step)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "5"]
    shutil.rmtree(tmp_path / "10")
    step, tree = restore(tmp_path, {"x": jnp.zeros(2, int)})
    assert step == 5
    np.testing.assert_array_equal(tree["x"], 5)


def test_what_a_killed_save_leaves_is_cleared_away(tmp_path):
    save(tmp_path, 1, {"x": jnp.ones(2)})
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "2.orbax-checkpoint-tmp" / "arrays").write_text("half of it")
    assert latest_step(tmp_path) == 1
    save(tmp_path, 2, {"x": jnp.zeros(2)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2"]


def refused(folder, message, action):
    """The action fails with one line that names the folder, and writes nothing."""
    before = contents(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        action()
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert contents(folder) == before


def test_another_tag_is_refused(tmp_path):
    save(tmp_path, 1, {"x": jnp.ones(2)}, tag="sgd 0.1")
    message = "holds a checkpoint of 'sgd 0.1', not of 'adam'"
    like = {"x": jnp.zeros(2)}
    refused(tmp_path, message, lambda: restore(tmp_path, like, tag="adam"))
    refused(tmp_path, message, lambda: save(tmp_path, 2, like, tag="adam"))
    refused(tmp_path, message, lambda: latest_step(tmp_path, tag="adam"))


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (
            {"x": jnp.zeros(3)},
            r"\['x'\]: float32\[2\]; wanted .* \['x'\]: float32\[3\]",
        ),
        ({"x": jnp.zeros(2, jnp.int32)}, r"wanted .* \['x'\]: int32\[2\]"),
        ({"y": jnp.zeros(2)}, r"has 1 leaves.*wanted are 1, first other one \['y'\]"),
        ({"x": jnp.zeros(2), "y": jnp.zeros(2)}, r"wanted are 2"),
        ({"x": jax.random.split(jax.random.key(0))}, r"wanted .* key<fry>\[2\]"),
    ],
)
def test_another_structure_shape_or_dtype_is_refused(tmp_path, like, message):
    save(tmp_path, 1, {"x": jnp.ones(2)})
    refused(tmp_path, message, lambda: restore(tmp_path, like))


def test_older_and_equal_steps_are_refused(tmp_path):
    save(tmp_path, 5, {"x": jnp.ones(2)})
    for step in (4, 5):
        refused(
            tmp_path,
            f"holds step 5, so step {step} cannot be saved",
            lambda: save(tmp_path, step, {"x": jnp.ones(2)}),
        )


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    message = r"'notes.txt', which is no checkpoint"
    refused(tmp_path, message, lambda: save(tmp_path, 1, {"x": jnp.ones(2)}))
    refused(tmp_path, message, lambda: latest_step(tmp_path))


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


# Orbax leaves a future behind when a read fails; its complaint is not ours to raise.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("harm", [truncate, flip])
def test_a_damaged_file_is_refused_or_does_no_harm(tmp_path, harm):
    good = tmp_path / "good"
    original = {"x": jax.random.normal(jax.random.key(0), (1000,))}
    save(good, 1, original)
    save(good, 2, original)
    harmed = []
    for file in contents(good):
        name = file.relative_to(good)
        if name.parts[0] == "1":
            continue
        folder = tmp_path / "bad"
        shutil.copytree(good, folder)
        harm(folder / name)
        try:
            assert_same(restore(folder, original)[1], original)
        except CheckpointError:
            harmed.append(name)
            message = rf"step 2 in {folder} cannot be read.*delete {folder / '2'}"
            refused(folder, message, functools.partial(restore, folder, original))
            shutil.rmtree(folder / "2")
            assert restore(folder, original)[0] == 1
        shutil.rmtree(folder)
    largest = max(contents(good / "2"), key=lambda path: path.stat().st_size)
    assert largest.relative_to(good) in harmed  # the numbers themselves
    assert any("about" in name.parts for name in harmed)


def test_a_missing_description_is_damage(tmp_path):
    save(tmp_path, 1, {"x": jnp.ones(2)})
    shutil.rmtree(tmp_path / "1" / "about")
    like = {"x": jnp.ones(2)}
    refused(tmp_path, "step 1 .* cannot be read", lambda: restore(tmp_path, like))
    refused(tmp_path, "step 1 .* cannot be read", lambda: save(tmp_path, 2, like))
