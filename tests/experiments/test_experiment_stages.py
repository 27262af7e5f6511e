"""Stages: computed once, read back bit for bit, never another run's."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.files import InputError, replaced_whole
from experiments.stages import COMPUTE, Stages


class Pair(NamedTuple):
    left: object
    right: object


def tree(key):
    return {
        "draws": jax.random.normal(key, (3, 2)),
        "nested": [
            Pair(jnp.arange(3), None),
            (jnp.bfloat16(1.5), np.array([], np.int8)),
        ],
        "python": 0.1,
        "flag": True,
        "nan": np.float32("nan"),
    }


def assert_same_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(a) is np.ndarray
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def test_a_stage_is_read_back_bit_for_bit_and_not_computed_again(tmp_path):
    key = jax.random.key(0)
    computed = Stages(tmp_path, tag="t")("one", tree, key)
    assert_same_bits(COMPUTE("one", tree, key), computed)

    def never(key):
        raise AssertionError

    assert_same_bits(
        Stages(tmp_path, tag="t", resume=True)("one", never, key), computed
    )


def test_without_a_folder_nothing_is_kept_and_names_may_come_again():
    assert COMPUTE.directory("one") is None
    assert COMPUTE.resume is False
    assert [int(COMPUTE("one", jnp.square, x)) for x in (2, 3)] == [4, 9]


def test_the_observer_hears_of_every_beginning_and_end(tmp_path):
    heard = []
    for resume in (False, True):
        stages = Stages(
            tmp_path,
            resume=resume,
            observer=lambda name, seconds, restored: heard.append(
                (name, seconds is None, restored)
            ),
        )
        stages("one", np.ones, 2)
    begun, computed, read = (("one", True, 0), ("one", False, 0), ("one", False, 1))
    assert heard == [begun, computed, begun, read]


def test_the_checkpoints_within_a_stage_go_once_it_is_finished(tmp_path):
    stages = Stages(tmp_path)

    def fill():
        folder = stages.directory("long")
        assert folder is not None
        folder.mkdir()
        (folder / "chunk").touch()
        return np.ones(1)

    stages("long", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["long.npz"]


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "text", "unknown class"])
def test_a_damaged_checkpoint_is_refused_and_left_alone(tmp_path, harm):
    Stages(tmp_path, tag="t")("one", lambda: Pair(np.arange(100.0), np.ones(2)))
    path = tmp_path / "one.npz"
    data = path.read_bytes()
    middle = data.index(np.arange(100.0).tobytes()) + 80
    harmed = {
        "cut": data[: len(data) // 2],
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
        "text": b"not a checkpoint",
        "unknown class": data.replace(b":Pair", b":Poor"),
    }[harm]
    path.write_bytes(harmed)
    with pytest.raises(InputError, match=r"checkpoint .*one\.npz is damaged: .*resume"):
        Stages(tmp_path, tag="t", resume=True)("one", np.ones, 1)
    assert path.read_bytes() == harmed


def test_another_runs_checkpoint_is_refused(tmp_path):
    Stages(tmp_path, tag="a")("one", np.ones, 1)
    with pytest.raises(InputError, match=r"one\.npz belongs to another run: .*resume"):
        Stages(tmp_path, tag="b", resume=True)("one", np.ones, 1)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write to .*one\.npz: File exists"):
        Stages(tmp_path / "file")("one", np.ones, 1)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def die_halfway():
        with replaced_whole(path) as partial:
            partial.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        die_halfway()
    assert path.read_text() == "old"


class Local:
    """No pytree, no array."""


def local_pair():
    class Inner(NamedTuple):
        left: object

    return Inner(np.ones(1))


@pytest.mark.parametrize(
    ("name", "fn", "message"),
    [
        ("one", lambda: {1: np.ones(1)}, r"string keys, got \[1\]"),
        ("one", lambda: Local(), r"arrays in dicts.*got an array of objects"),
        ("one", lambda: jax.random.key(0), r"got a key: return jax.random.key_data"),
        ("one", local_pair, r"NamedTuple must be importable.*return a dict"),
        ("../one", np.ones, r"letters, digits, - and _, got '../one'"),
        ("three", np.ones, r"stage must be in STAGES \('one', 'two'\), got 'three'"),
        ("two", np.ones, r"names must differ within a run, got two twice"),
    ],
)
def test_bad_stages_are_named(tmp_path, name, fn, message):
    stages = Stages(tmp_path, names=("one", "two"))
    stages("two", np.ones, 1)
    with pytest.raises(ValueError, match=message):
        stages(name, fn)
