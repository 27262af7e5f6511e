"""The README's Python examples run as written, one after the other."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_the_examples_run_and_do_what_the_text_says():
    blocks = re.findall(
        r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S
    )
    assert len(blocks) == 8
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    # Equinox: the fit gets through the Cauchy noise on the targets.
    assert float(names["value"]) < 0.5
    assert np.isfinite(names["state"][0].tail_index)
    assert names["errors"].shape == (3, 2, 64, 4)
    best_fixed = float(names["fixed"].value[:, 0, -1].mean(axis=-1).min())
    assert float(names["decayed"].value[-1].mean()) < 0.8 * best_fixed
    without, with_penalty = names["rounded_loss"]
    assert float(with_penalty) < 0.5 * float(without)
    assert names["late_clicks"].shape == (2, 8)
    assert float(names["late_clicks"].max()) < 0.4 * 2000
    # Two feedbacks, the later decision's first: V = I + 2 e_1 e_1^T, b = 1 - 0.3.
    np.testing.assert_allclose(names["learned"].theta, [0.7 / 3, 0.0], rtol=1e-5)
    told, blind = (float(names["lost"](names[name])) for name in ("told", "blind"))
    assert told < 0.7 * blind
    # The mesh of the last block holds all eight devices of this process.
    assert jax.device_count() == 8
    alone = np.asarray(names["sweep"](names["run"], names["keys"], names["grid"]))
    np.testing.assert_allclose(names["errors"], alone, rtol=1e-4)
