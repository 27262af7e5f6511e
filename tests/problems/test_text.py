"""The packaged text against plain Python."""

from typing import Any, cast

import jax.numpy as jnp
import pytest

from jaxopt_suite import problems


def test_characters_spell_the_text_again():
    text = problems.help_topics()
    data = problems.character_text(text)
    ids = [*data.train.tolist(), *data.validation.tolist()]
    assert "".join(data.symbols[i] for i in ids) == text
    assert len(data.train) == int(0.9 * len(text))
    assert len(text) > 400_000
    assert 90 <= len(data.symbols) <= 130


def test_windows_and_targets_are_slices_of_the_text():
    ids = problems.character_text("abracadabra" * 3, 0.9).train
    windows, targets = problems.context_windows(ids, 4, every=3)
    plain = ids.tolist()
    expected = [(plain[i : i + 4], plain[i + 4]) for i in range(0, len(plain) - 4, 3)]
    found = list(zip(windows.tolist(), targets.tolist(), strict=True))
    assert found == expected
    listed, _ = problems.context_windows(cast(Any, plain), 4, every=3)
    assert listed.tolist() == windows.tolist()


def test_the_character_nul_is_kept():
    data = problems.character_text("a\0bc\0d")
    assert data.symbols == "\0abcd"
    assert [*data.train.tolist(), *data.validation.tolist()] == [1, 0, 2, 3, 0, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: problems.character_text("a"), "text must be long enough"),
        (lambda: problems.character_text(cast(Any, ["ab", "c"])), "text must be a str"),
        (lambda: problems.context_windows(jnp.ones(5), 3), "ids must be .*float32"),
        (lambda: problems.context_windows(cast(Any, "abcde"), 3), "ids must be .*<U5"),
        (
            lambda: problems.context_windows(jnp.ones((5, 2), int), 3),
            r"ids must be integers along one axis, got int32 of shape \(5, 2\)",
        ),
        (lambda: problems.character_text("ab", 1.0), "train_fraction must be in"),
        (
            lambda: problems.context_windows(problems.character_text("abcd").train, 3),
            "length must be < the text's 3, got 3",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
