"""Labelled data as bandits against scikit-learn, NumPy and tables made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn import datasets
from sklearn.preprocessing import StandardScaler, normalize

from jaxopt_suite import problems
from jaxopt_suite.problems import bandit_data
from jaxopt_suite.problems.contextual import LinearDecision

KEY = jax.random.key(0)


def rows_by_scikit_learn(features):
    table = np.asarray(features, np.float64)
    scaled = StandardScaler().fit_transform(table[:, table.std(axis=0) > 1e-9])
    return normalize(np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1))


@pytest.mark.parametrize(
    ("load", "width"),
    [
        (problems.digits, 62),  # three of 64 pixels are always 0
        (problems.breast_cancer, 31),  # it comes with a column of ones
        (bandit_data.wine, 14),
        (bandit_data.iris, 5),
    ],
)
def test_rows_are_those_of_scikit_learn(load, width):
    data = load()
    rows = bandit_data.bandit_rows(data.features)
    assert rows.shape == (len(data.labels), width)
    assert rows.dtype == jnp.float32
    expected = rows_by_scikit_learn(data.features)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-6)


def test_a_constant_whose_mean_rounds_is_still_constant():
    table = np.stack([np.full(569, 0.1), np.arange(569.0)], axis=1)
    assert bandit_data.bandit_rows(table).shape == (569, 2)


@pytest.mark.parametrize("name", ["wine", "iris"])
def test_packaged_sets_are_the_shuffled_ones(name):
    data, plain = getattr(bandit_data, name)(), getattr(datasets, f"load_{name}")()
    found = np.concatenate([data.features, np.asarray(data.labels)[:, None]], axis=1)
    given = np.concatenate([plain.data, plain.target[:, None]], axis=1)
    order = lambda table: table[np.lexsort(table.T)]  # noqa: E731
    np.testing.assert_allclose(order(found), order(given.astype(np.float32)))
    assert (np.diff(np.asarray(data.labels)) < 0).any()
    np.testing.assert_array_equal(data.labels, getattr(bandit_data, name)().labels)


def test_rewards_rows_and_both_encodings():
    data = bandit_data.iris()
    labels, steps = np.asarray(data.labels), 6000
    rows = rows_by_scikit_learn(data.features)
    arms = jnp.asarray(np.random.default_rng(0).integers(0, 3, steps))
    keys = jax.random.split(KEY, steps)

    def run(encoding):
        env = bandit_data.classification_env(*data, encoding=encoding)

        def step(carry, inputs):
            arm, key = inputs
            state, context = carry
            decision = LinearDecision(arm, context.features)
            *carry, feedback = env.step(state, decision, key)
            seen = context.features[..., :15]
            return tuple(carry), (state.row, seen, feedback.reward, feedback.regret)

        return jax.jit(lambda: jax.lax.scan(step, env.init(KEY), (arms, keys))[1])()

    row, z, reward, regret = map(np.asarray, run("disjoint"))
    np.testing.assert_allclose(z, rows[row], atol=1e-5)
    np.testing.assert_array_equal(reward, arms == labels[row])
    np.testing.assert_array_equal(regret, 1.0 - reward)
    counts = np.bincount(row, minlength=150)
    assert stats.chisquare(counts).pvalue > 1e-5  # which is the false-alarm rate
    same_row, x, same_reward, _ = run("shared")
    np.testing.assert_array_equal(same_row, row)
    np.testing.assert_array_equal(same_reward, reward)
    for t in range(20):
        expected = [np.kron(np.eye(3)[a], z[t]) for a in range(3)]
        np.testing.assert_allclose(x[t], expected, atol=1e-7)


CSV = """size, cap ,"odour, strong",edible
1, red,yes,p

?,blue,no,e
4.5,red,NA,e
-0.5,,yes,x
"""
# Size with its mean 5/3 filled in, where it was missing, caps "", blue, red, odours
# "", no, yes.
TABLE = [
    [1.0, 0, 0, 0, 1, 0, 0, 1],
    [5 / 3, 1, 0, 1, 0, 0, 1, 0],
    [4.5, 0, 0, 0, 1, 1, 0, 0],
    [-0.5, 0, 1, 0, 0, 0, 0, 1],
]
ARFF = """% A comment.
@relation mushrooms
@attribute size numeric
@attribute cap {red, blue, green}
@attribute 'odour' {yes, no}
@attribute edible {e, p, x}
@data
1,red,yes,p
?,blue,no,e
4.5,red,?,e
-0.5,?,yes,x
"""


@pytest.mark.parametrize(("name", "text"), [("m.csv", CSV), ("m.arff", ARFF)])
def test_a_table_from_a_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    data = bandit_data.load_openml_csv(path, "edible")
    np.testing.assert_allclose(data.features, TABLE, rtol=1e-6)
    np.testing.assert_array_equal(data.labels, [1, 0, 0, 2])
    assert (data.features.dtype, data.labels.dtype) == (jnp.float32, jnp.int32)
    bandit_data.classification_env(*data)


def test_numeric_classes_are_numbered_in_their_order(tmp_path):
    path = tmp_path / "n.csv"
    path.write_text("x,class\n1,10\n2,9\n3,-1\n4,9\n", encoding="utf-8")
    data = bandit_data.load_openml_csv(str(path), "class")
    np.testing.assert_array_equal(data.labels, [2, 1, 0, 1])
    np.testing.assert_array_equal(data.features[:, 0], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "target must be one of x, y, got 'edible'"),
        ("a.csv", "x,edible\n1,2\n3\n", "a.csv, line 3: must have 2 values, got 1"),
        ("a.csv", "x,edible\n1,a\n2,\n", "column 'edible' of a.csv .* none missing"),
        ("a.csv", "x,edible\n1,a\n2,a\n", "two classes or more"),
        ("a.csv", "x,edible\n", "a.csv must have a line of names and rows"),
        ("a.csv", "", "a.csv must have a line of names and rows"),
        (
            "a.arff",
            "@relation a\n@attribute x string\n@data\nb\n",
            "a.arff cannot be read as ARFF: String attributes",
        ),
        ("a.arff", "@relation a\n@attribute x numeric\n@data\n", "must have rows"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        bandit_data.load_openml_csv(path, "edible")


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones(3), np.arange(3), r"features must be a matrix .*got shape \(3,\)"),
        (np.ones((0, 2)), np.arange(0), r"got shape \(0, 2\)"),
        (np.eye(2), np.array([0.0, 1.0]), "y must be integer labels .*got float64"),
        (np.eye(2), np.zeros(2, int), "with K >= 2, got labels from 0 to 0"),
    ],
)
def test_bad_arguments_are_named(x, y, message):
    with pytest.raises(ValueError, match=message):
        bandit_data.classification_env(x, y)
