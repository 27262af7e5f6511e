"""Rounded linear regression: what LOTION promises against PTQ, QAT and RAT."""

import jax
import numpy as np
import pytest

from experiments.lotion import regression
from experiments.lotion.config import Config


@pytest.fixture(scope="module")
def ratios():
    """Two seeds in the standard basis, at the size that the claims are made for."""
    keys = jax.random.split(jax.random.key(0), 2)
    losses = regression.losses(Config(), keys, "diag")
    return regression.ratios(losses[..., -1, :])


@pytest.mark.slow
def test_rounded_loss_is_below_that_of_every_peer(ratios):
    assert ratios["peers"].shape == (2,)
    assert np.all(ratios["peers"] <= 0.9)


@pytest.mark.slow
def test_holding_the_scale_still_costs_loss(ratios):
    assert np.all(ratios["scale"] > 1.0)


@pytest.mark.slow
def test_random_rounding_costs_no_more(ratios):
    assert np.all(ratios["random"] <= 0.4)
