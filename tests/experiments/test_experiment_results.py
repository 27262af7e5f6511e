"""Claims, metrics and their CSV: what they mean, what they refuse."""

import csv
import doctest
import importlib
import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.claims import Claim, Interval, at_least, at_most, between
from experiments.files import plain
from experiments.results import Metric, Result, write_csv


@pytest.mark.parametrize("name", ["claims", "results", "statistics", "figures"])
def test_examples_in_the_docstrings_run(name):
    module = importlib.import_module(f"experiments.{name}")
    found = doctest.testmod(module, extraglobs={"np": np})
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("threshold", "inside", "outside", "text"),
    [
        (at_least(30), [30.0, 1e9, np.inf], [29.999, -np.inf, np.nan], ">= 30"),
        (at_most(0.1), [0.1, -5.0, -np.inf], [0.1001, np.inf, np.nan], "<= 0.1"),
        (between(-0.42, -0.32), [-0.42, -0.32], [-0.43, -0.31, np.nan], None),
    ],
)
def test_a_threshold_holds_on_its_closed_range_and_never_for_nan(
    threshold, inside, outside, text
):
    assert all(Claim("c", m, threshold).holds is True for m in inside)
    assert all(Claim("c", m, threshold).holds is False for m in outside)
    assert str(threshold) == (text or "in [-0.42, -0.32]")


def test_a_claim_without_threshold_is_reported_only():
    assert Claim("c", 3.0).holds is None


def test_holds_cannot_be_told():
    with pytest.raises(TypeError, match="holds"):
        Claim("c", 1.0, at_most(0.0), holds=True)  # pyright: ignore[reportCallIssue]


def test_a_claim_in_json_has_its_interval_threshold_and_verdict():
    claim = Claim("c", jnp.float32(2), at_least(3), Interval(-np.inf, 4.0, "m"), "5")
    assert json.loads(json.dumps(plain(claim.to_json()), allow_nan=False)) == {
        "text": "c",
        "paper": "5",
        "measured": 2.0,
        "interval": {"low": "-inf", "high": 4.0, "method": "m"},
        "threshold": ">= 3",
        "holds": False,
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Claim("c", np.ones(2)), r"measured must be one real"),  # pyright: ignore
        (lambda: Claim("c", 1j), r"one real number, got 1j"),  # pyright: ignore
        (lambda: Claim(" ", 1.0), r"text must say what is claimed"),
        (lambda: at_least(np.nan), r"low must be a finite number, got nan"),
        (lambda: between(2, 1), r"low must be <= high, got low=2 and high=1"),
        (lambda: Metric(np.ones(2)), r"axes must label shape \(2,\).*got none"),
        (lambda: Metric([1, 2], (("seed", "a"),)), r"got seed \(1\)"),
        (lambda: Metric([[1]], (("a", "x"), ("a", "y"))), r"distinct names"),
        (lambda: Metric([1], (("value", "x"),)), r"other than metric and value"),
        (lambda: Metric([1, 2], (("a", "xx"),)), r"labels of a must differ"),
        (lambda: Metric("text"), r"values must be real numbers"),
        (lambda: Metric(1j), r"values must be real numbers, got dtype complex128"),
        (lambda: Result({}, {"../up": None}, ()), r"got '../up'"),  # pyright: ignore
        (lambda: Result({"a": 1}, {}, ()), r"metrics\['a'\] must be a Metric"),  # pyright: ignore
        (lambda: Result({}, {}, ("c",)), r"claims must hold Claims only"),  # pyright: ignore
    ],
)
def test_bad_parts_of_a_result_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_csv_gives_every_entry_back_bit_for_bit(tmp_path):
    values = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    values[0, 0], values[1, 2] = np.nan, -np.inf
    half = jnp.asarray(values[0, 1:], jnp.bfloat16)
    metrics = {
        "error": Metric(values, (("method", ["a,b", "c"]), ("seed", range(3)))),
        "half": Metric(half, (("layer", [1, 2]),)),
        "count": Metric(2**62 + 1),
        "done": Metric(True),
    }
    path = tmp_path / "metrics.csv"
    write_csv(path, metrics)
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["metric", "method", "seed", "layer", "value"]
    read = [float(row["value"]) for row in rows if row["metric"] == "error"]
    np.testing.assert_array_equal(np.array(read, np.float32).reshape(2, 3), values)
    np.testing.assert_array_equal(
        [row["method"] + row["seed"] for row in rows[:6]],
        ["a,b0", "a,b1", "a,b2", "c0", "c1", "c2"],
    )
    assert [float(row["value"]) for row in rows[6:8]] == [float(x) for x in half]
    assert [row["layer"] for row in rows[6:8]] == ["1", "2"]
    assert [row["value"] for row in rows[8:]] == [str(2**62 + 1), "True"]
