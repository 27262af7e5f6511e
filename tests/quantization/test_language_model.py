"""A short run of the character network: LOTION against QAT and PTQ."""

import jax
import pytest

from experiments.lotion import language
from experiments.lotion.config import SCALES


@pytest.mark.slow
def test_lotion_beats_rounding_in_the_loop_and_after_it():
    found = language.compute(SCALES["smoke"], jax.random.key(0))
    nearest = {name: float(losses["nearest"].item()) for name, losses in found.items()}
    assert nearest["LOTION"] <= nearest["QAT"] - 0.04
    assert nearest["LOTION"] <= nearest["PTQ"] - 0.06
