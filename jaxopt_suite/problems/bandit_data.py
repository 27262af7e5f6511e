"""Labelled data as contextual bandits: an arm is a class, and the right one pays 1."""

import csv
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Environment
from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext
from jaxopt_suite.problems.stochastic import LabelledData, _packaged

_MISSING = frozenset({"", "?", "NA", "nan", "NaN"})


class ClassificationState(NamedTuple):
    """State of :func:`classification_env`.

    Attributes:
        row: the row of the data that the next decision is about.
    """

    row: Int[Array, ""]


def bandit_rows(features: Any) -> Float[Array, "rows p"]:
    """Feature rows as contexts: standardized, with an intercept, of unit norm.

    Every column is brought to mean 0 and standard deviation 1, a constant column is
    left out, a column of ones is added as the last, and each row is divided by its
    Euclidean norm.

    Args:
        features: finite numbers of shape (rows, columns), concrete.

    Raises:
        ValueError: ``features`` is no matrix with a row, or has NaN or inf in it.

    Example:
        >>> bandit_rows(np.array([[1.0, 7.0], [3.0, 7.0]]))
        Array([[-0.707...,  0.707...],
               [ 0.707...,  0.707...]], dtype=float32)
    """
    given = np.asarray(features)
    if given.ndim != 2 or not len(given):
        raise ValueError(
            f"features must be a matrix with one row an example, got shape "
            f"{given.shape}"
        )
    table = given.astype(np.float64)
    if not np.isfinite(table).all():
        raise ValueError(
            f"features must be finite, got {np.sum(~np.isfinite(table))} entries that "
            "are not: fill missing values first"
        )
    # By its range: the standard deviation of a constant may round to more than 0.
    table = table[:, np.ptp(table, axis=0) > 0]
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    table = np.concatenate([table, np.ones((len(table), 1))], axis=1)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    is_float = jnp.issubdtype(given.dtype, jnp.floating)
    return jnp.asarray(table.astype(given.dtype if is_float else np.float64))


def classification_env(X: Any, y: Any, encoding: str = "disjoint") -> Environment:
    r"""Labelled rows as a bandit: one arm a class, reward 1 for the right one.

    Each round shows a row drawn uniformly with replacement, as :func:`bandit_rows`
    makes it: the context :math:`z \in R^p`. Rewards are without noise, so the regret
    of a round is 1 for a mistake and 0 otherwise.

    Args:
        X: features of shape (rows, columns), concrete and finite.
        y: labels 0, ..., K - 1 of shape (rows,); every label up to the largest is an
            arm.
        encoding: ``"disjoint"``, contexts :math:`z` of shape (p,); ``"shared"``,
            contexts of shape (K, K p) with row a being :math:`e_a \otimes z`.

    Returns:
        An Environment that takes any decision with a field ``arm``; its state is a
        :class:`ClassificationState`.

    Raises:
        ValueError: ``X`` or ``y`` is not as described, or the encoding is unknown.

    Example:
        >>> from jaxopt_suite.problems.contextual import LinearDecision
        >>> X, y = np.array([[0.0], [1.0]]), np.array([0, 1])
        >>> env = classification_env(X, y)
        >>> state, context = env.init(jax.random.key(0))
        >>> right = jnp.asarray(y)[state.row]
        >>> decision = LinearDecision(right, context.features)
        >>> _, _, feedback = env.step(state, decision, jax.random.key(1))
        >>> float(feedback.reward), float(feedback.regret)
        (1.0, 0.0)
    """
    checks.check_choice("encoding", encoding, ("disjoint", "shared"))
    rows, given = bandit_rows(X), np.asarray(y)
    if given.shape != (len(rows),) or given.dtype.kind not in "biu":
        raise ValueError(
            f"y must be integer labels of shape ({len(rows)},), got {given.dtype} of "
            f"shape {given.shape}"
        )
    if given.min() < 0 or given.max() < 1:
        raise ValueError(
            "y must be labels 0, ..., K - 1 with K >= 2, got labels from "
            f"{given.min()} to {given.max()}"
        )
    labels, num_arms = jnp.asarray(given, jnp.int32), int(given.max()) + 1

    def show(row):
        if encoding == "disjoint":
            return LinearContext(rows[row])
        return LinearContext(jnp.kron(jnp.eye(num_arms, dtype=rows.dtype), rows[row]))

    def draw(key):
        row = jax.random.randint(key, (), 0, len(rows), jnp.int32)
        return ClassificationState(row), show(row)

    def step(state, decision, key):
        reward = (decision.arm == labels[state.row]).astype(rows.dtype)
        feedback = BanditFeedback(decision, reward, jnp.array(True), 1.0 - reward)
        return *draw(key), feedback

    return Environment(draw, step)


def wine() -> LabelledData:
    """Wine (178 cases, 13 features, 3 classes), as measured, in a fixed shuffle.

    Needs scikit-learn, in the extra ``jaxopt-suite[experiments]``.
    """
    return _shuffled("wine")


def iris() -> LabelledData:
    """Iris (150 flowers, 4 features, 3 classes), as measured, in a fixed shuffle.

    Needs scikit-learn, in the extra ``jaxopt-suite[experiments]``.
    """
    return _shuffled("iris")


def _shuffled(name: str) -> LabelledData:
    bunch = _packaged(name)
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return LabelledData(
        jnp.asarray(bunch.data[order], jnp.float32),
        jnp.asarray(bunch.target[order], jnp.int32),
    )


def load_openml_csv(path: str | Path, target: str) -> LabelledData:
    r"""Reads a data set as OpenML gives it out, from a local ARFF or CSV file.

    A column is numeric if all its values are numbers (ARFF: if it is declared so). A
    missing number becomes the column's mean, and a column of 0 and 1 after it says
    where. Any other column becomes one 0/1 column for each value that occurs, in sorted
    order, a missing value being a value of its own. The target's values, in sorted
    order, are the classes 0, 1, ....

    Args:
        path: ends in ``.arff``, or is a comma-separated file with a row of names.
            Missing values are empty, ``?``, ``NA`` or ``nan``.
        target: the name of the column with the classes.

    Returns:
        Features in float32 and labels in int32, as :func:`classification_env` takes
        them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such column, the file has no row, a row has another
            number of values than the header, a class is missing, there are fewer than
            two classes, or an ARFF file has sparse rows or string columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "shrooms.csv")
        ...     _ = path.write_text("size,cap,edible\n1,red,no\n?,blue,yes\n")
        ...     data = load_openml_csv(path, "edible")
        >>> data.features, data.labels
        (Array([[1., 0., 0., 1.],
           [1., 1., 1., 0.]], dtype=float32), Array([0, 1], dtype=int32))
    """
    path = Path(path)
    columns = _read_arff(path) if path.suffix == ".arff" else _read_csv(path)
    if target not in columns:
        raise ValueError(f"target must be one of {', '.join(columns)}, got {target!r}")
    classes, labels = np.unique(columns[target], return_inverse=True)
    if len(classes) < 2 or _is_missing(columns[target]).any():
        raise ValueError(
            f"column {target!r} of {path.name} must have two classes or more and none "
            f"missing, got {classes[:10]}"
        )
    blocks = [_encode(values) for name, values in columns.items() if name != target]
    features = np.concatenate([np.zeros((len(labels), 0)), *blocks], axis=1)
    return LabelledData(
        jnp.asarray(features, jnp.float32), jnp.asarray(labels, jnp.int32)
    )


def _is_missing(values: np.ndarray) -> np.ndarray:
    return np.isnan(values) if values.dtype.kind == "f" else values == ""


def _encode(values: np.ndarray) -> np.ndarray:
    """One column of a table as the float32 columns that stand for it."""
    if values.dtype.kind != "f":
        return (values[:, None] == np.unique(values)).astype(np.float32)
    missing = np.isnan(values)
    if not missing.any():
        return values[:, None].astype(np.float32)
    mean = values[~missing].mean() if not missing.all() else 0.0
    return np.stack([np.where(missing, mean, values), missing], 1).astype(np.float32)


def _read_csv(path: Path) -> Mapping[str, np.ndarray]:
    """Columns by name: float64 with NaN, or strings with ``""`` for missing."""
    with _csv_rows(path) as (names, rows):
        numeric = [True] * len(names)
        for row in rows:
            for j, cell in enumerate(row):
                numeric[j] = numeric[j] and _is_number(cell)
    # A second pass, so that no file is held as one Python string a cell.
    columns = [array("d") if is_numeric else [] for is_numeric in numeric]
    with _csv_rows(path) as (_, rows):
        for row in rows:
            for column, cell in zip(columns, row, strict=True):
                known = cell not in _MISSING
                if isinstance(column, array):
                    column.append(float(cell) if known else np.nan)
                else:
                    column.append(sys.intern(cell) if known else "")
    return {name: np.asarray(c) for name, c in zip(names, columns, strict=True)}


@contextmanager
def _csv_rows(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """The names in the first line, and the rows below it, blank lines left out."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file, skipinitialspace=True)
        names = next(reader, [])

        def rows():
            row = None
            for row in filter(None, reader):
                if len(row) != len(names):
                    raise ValueError(
                        f"{path.name}, line {reader.line_num}: must have {len(names)} "
                        f"values, got {len(row)}"
                    )
                yield [cell.strip() for cell in row]
            if row is None:
                raise ValueError(f"{path.name} must have a line of names and rows")

        yield [name.strip() for name in names], rows()


def _is_number(cell: str) -> bool:
    if cell in _MISSING:
        return True
    try:
        return np.isfinite(float(cell)).item()
    except ValueError:
        return False


def _read_arff(path: Path) -> Mapping[str, np.ndarray]:
    """Columns by name, as :func:`_read_csv` gives them."""
    from scipy.io import arff

    try:
        table, meta = arff.loadarff(path)
    except (NotImplementedError, arff.ArffError) as error:
        raise ValueError(f"{path.name} cannot be read as ARFF: {error}") from error
    if not len(table):
        raise ValueError(f"{path.name} must have rows, got none")
    columns = {}
    for name in meta.names():
        values = table[name]
        if values.dtype.kind == "S":
            text = np.char.strip(np.char.decode(values, "utf-8"))
            values = np.where(np.isin(text, list(_MISSING)), "", text)
        elif values.dtype.kind != "f":
            raise ValueError(
                f"column {name!r} of {path.name} must be numeric or nominal, got "
                f"{values.dtype}"
            )
        columns[name] = values
    return columns
