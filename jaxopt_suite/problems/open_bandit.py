"""The Open Bandit data: logged clicks on fashion items with known propensities.

Three campaigns of a shop, each logged under two policies; a row is an item shown to a
user, clicked or not. :mod:`jaxopt_suite.problems.click_model` makes an environment of
them.

Source: Saito, Aihara, Matsutani, Narita, "Open Bandit Dataset and Pipeline: Towards
Realistic and Reproducible Off-Policy Evaluation" (2020), arXiv 2008.07146.
"""

import csv
import importlib.util
import sys
from array import array
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxopt_suite.core import checks

POLICIES = ("random", "bts")
CAMPAIGNS = ("all", "men", "women")
_USER_COLUMNS = [f"user_feature_{j}" for j in range(4)]
_ITEM_COLUMNS = [f"item_feature_{j}" for j in range(1, 4)]


class OpenBanditLog(NamedTuple):
    """Rows of one policy in one campaign, oldest first, as NumPy arrays.

    Attributes:
        time: seconds since 1970, (rows,), float64.
        item: the item shown, (rows,), int32.
        position: where, 0 to 2, (rows,), int32.
        click: 1 if it was clicked, else 0, (rows,), float32.
        propensity: the probability of this item at this position, (rows,), float64.
        user: four categories of the user, as hashes, (rows, 4).
        affinity: how often the user clicked on each item before, (rows, items).
        item_value: the numeric feature of the items, (items,), float64.
        item_category: three categories of the items, (items, 3), int32, numbered in
            the order in which they occur: their hashes differ from policy to policy.
    """

    time: np.ndarray
    item: np.ndarray
    position: np.ndarray
    click: np.ndarray
    propensity: np.ndarray
    user: np.ndarray
    affinity: np.ndarray
    item_value: np.ndarray
    item_category: np.ndarray


def load_open_bandit(
    policy: str, campaign: str, root: str | Path | None = None
) -> OpenBanditLog:
    """Reads one log of the Open Bandit data.

    Without ``root`` these are the samples of 10,000 rows that come with the package
    obp, which is found without importing it. obp asks for torch, which the samples do
    not need, so install it on its own: ``pip install --no-deps obp==0.4.1``.

    Args:
        policy: ``"random"``, items uniformly at random; ``"bts"``, Bernoulli Thompson
            sampling.
        campaign: ``"all"`` (80 items), ``"men"`` (34) or ``"women"`` (46).
        root: folder of the full public data, laid out as the samples are: files
            ``{campaign}.csv`` and ``item_context.csv`` in ``{policy}/{campaign}/``.

    Raises:
        ImportError: no ``root``, and obp is not installed.
        FileNotFoundError: a file is missing.
        ValueError: the policy or the campaign is unknown, a column is missing, or a
            propensity is not in (0, 1].

    Example:
        >>> log = load_open_bandit("random", "men")  # doctest: +SKIP
        >>> log.click.sum(), log.propensity[0] * 34  # doctest: +SKIP
        (46.0, 1.0)
    """
    checks.check_choice("policy", policy, POLICIES)
    checks.check_choice("campaign", campaign, CAMPAIGNS)
    folder = (_sample_folder() if root is None else Path(root)) / policy / campaign
    value, category = _read_items(folder / "item_context.csv")
    log = _read_rows(folder / f"{campaign}.csv", len(value))
    checks.check_interval(
        f"propensity of {policy}/{campaign}", log["propensity"], 0.0, 1.0, closed="(]"
    )
    order = np.argsort(log["time"], kind="stable")
    log = {name: column[order] for name, column in log.items()}
    return OpenBanditLog(**log, item_value=value, item_category=category)


def _sample_folder() -> Path:
    found = importlib.util.find_spec("obp")
    if found is None or found.origin is None:
        raise ImportError(
            "the samples of the Open Bandit data come with obp: "
            "pip install --no-deps obp==0.4.1, or give root="
        )
    return Path(found.origin).parent / "dataset" / "obd"


def _open_table(file: Any, path: Path, needed: Sequence[str]) -> tuple[list[str], Any]:
    reader = csv.reader(file)
    names = next(reader, [])
    missing = [name for name in needed if name not in names]
    if missing:
        raise ValueError(f"{path} must have the columns {missing}, got {names[:12]}")
    return names, reader


def _read_items(path: Path) -> tuple[np.ndarray, np.ndarray]:
    needed = ["item_id", "item_feature_0", *_ITEM_COLUMNS]
    with path.open(newline="", encoding="utf-8") as file:
        names, reader = _open_table(file, path, needed)
        at = [names.index(name) for name in needed]
        rows = sorted(([row[j] for j in at] for row in reader), key=lambda r: int(r[0]))
    if [int(row[0]) for row in rows] != list(range(len(rows))):
        raise ValueError(f"{path} must have item_id 0, 1, 2, ... without a gap")
    numbers: list[dict[str, int]] = [{} for _ in _ITEM_COLUMNS]
    codes = [
        [
            seen.setdefault(h, len(seen))
            for seen, h in zip(numbers, row[2:], strict=True)
        ]
        for row in rows
    ]
    return np.array([float(row[1]) for row in rows]), np.array(codes, np.int32)


def _read_rows(path: Path, num_items: int) -> dict[str, np.ndarray]:
    """The columns of the rows by the names they have in :class:`OpenBanditLog`."""
    affinity_columns = [f"user-item_affinity_{a}" for a in range(num_items)]
    needed = ["timestamp", "item_id", "position", "click", *_USER_COLUMNS]
    with path.open(newline="", encoding="utf-8") as file:
        names, reader = _open_table(file, path, [*needed, *affinity_columns])
        # The data's own description has the second name.
        score = {"propensity_score", "action_prob"} & set(names)
        if not score:
            raise ValueError(f"{path} must have a column propensity_score")
        at = {name: j for j, name in enumerate(names)}
        fields = [at[name] for name in (*needed[1:4], score.pop())]
        users = [at[name] for name in _USER_COLUMNS]
        affinities = [at[name] for name in affinity_columns]
        time, numbers, affinity = array("d"), array("d"), array("f")
        user: list[list[str]] = []
        for row in reader:
            time.append(datetime.fromisoformat(row[at["timestamp"]]).timestamp())
            numbers.extend(float(row[j]) for j in fields)
            affinity.extend(float(row[j]) for j in affinities)
            user.append([sys.intern(row[j]) for j in users])
    table = np.asarray(numbers).reshape(-1, 4)
    item = table[:, 0].astype(np.int32)
    if not len(item) or item.min() < 0 or item.max() >= num_items:
        raise ValueError(
            f"{path} must have rows with item_id 0 to {num_items - 1}, got "
            f"{np.unique(item)[:100]}"
        )
    return {
        "time": np.asarray(time),
        "item": item,
        "position": table[:, 1].astype(np.int32) - 1,
        "click": table[:, 2].astype(np.float32),
        "propensity": table[:, 3],
        "user": np.array(user),
        "affinity": np.asarray(affinity).reshape(-1, num_items),
    }
