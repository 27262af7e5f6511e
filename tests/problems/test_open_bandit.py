"""The Open Bandit reader on a folder made here, and on the samples where they are."""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from jaxopt_suite.problems import click_model, open_bandit
from jaxopt_suite.problems.contextual import LinearDecision

NUM_ITEMS, NUM_ROWS = 3, 400
ITEMS = """,item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3
0,1,-1.5,{0}b,{0}x,{0}k
1,0,0.5,{0}a,{0}x,{0}k
2,2,3.0,{0}a,{0}y,{0}k
"""
HEAD = ",timestamp,item_id,position,click,{},{},{}"
USERS = ",".join(f"user_feature_{j}" for j in range(4))
AFFINITIES = ",".join(f"user-item_affinity_{a}" for a in range(NUM_ITEMS))


def make_folder(root, policy, score="propensity_score", seed=0):
    """Random rows of one policy in the layout of the public data."""
    rng = np.random.default_rng(seed)
    folder = root / policy / "men"
    folder.mkdir(parents=True)
    # Hashes of items differ from policy to policy, those of users do not.
    (folder / "item_context.csv").write_text(ITEMS.format(policy), encoding="utf-8")
    lines, rows = [HEAD.format(score, USERS, AFFINITIES)], []
    for i in rng.permutation(NUM_ROWS):
        item, position = int(rng.integers(3)), int(rng.integers(1, 4))
        user = [f"h{rng.integers(2)}" for _ in range(4)]
        affinity = rng.poisson(0.3, NUM_ITEMS).astype(float)
        rate = 1 / (1 + np.exp(1.0 - item - (user[0] == "h1")))
        click, p = int(rng.uniform() < rate), float(rng.uniform(0.1, 1.0))
        stamp = f"2019-11-24 00:{i // 60:02d}:{i % 60:02d}.25+00:00"
        rows.append((i, item, position, click, p, user, affinity))
        cells = [i, stamp, item, position, click, p, *user, *affinity]
        lines.append(",".join(map(str, cells)))
    (folder / "men.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return sorted(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("obd")
    rows = [make_folder(root, p, seed=i) for i, p in enumerate(("random", "bts"))]
    logs = [open_bandit.load_open_bandit(p, "men", root) for p in ("random", "bts")]
    return rows, logs


def test_a_log_is_what_the_files_say_oldest_first(folder):
    rows, logs = folder
    for given, log in zip(rows, logs, strict=True):
        order, item, position, click, p, user, affinity = zip(*given, strict=True)
        assert log.time[0] == 1574553600.25
        np.testing.assert_array_equal(np.diff(log.time), np.diff(order))
        np.testing.assert_array_equal(log.item, item)
        np.testing.assert_array_equal(log.position, np.array(position) - 1)
        np.testing.assert_array_equal(log.click, click)
        np.testing.assert_array_equal(log.propensity, p)
        np.testing.assert_array_equal(log.user, user)
        np.testing.assert_array_equal(log.affinity, affinity)
        np.testing.assert_array_equal(log.item_value, [0.5, -1.5, 3.0])
        np.testing.assert_array_equal(log.item_category[:, 0], [0, 1, 0])
        np.testing.assert_array_equal(log.item_category[:, 1], [0, 0, 1])


def test_the_click_model_is_the_fit_of_scikit_learn(folder):
    _, logs = folder
    l2, fit_on = 0.02, np.arange(2 * NUM_ROWS) % 3 > 0
    model = click_model.fit_click_model(logs, l2=l2, fit_on=fit_on)
    join = lambda name: np.concatenate([getattr(log, name) for log in logs])  # noqa: E731
    user = (join("user") == "h1").astype(float)
    item = np.array([[0.5 / 3, 0, 0], [-0.5, 1, 0], [1, 0, 1]])
    phi = np.zeros((2 * NUM_ROWS, NUM_ITEMS, 13))
    for a in range(NUM_ITEMS):
        seen = np.log(1 + join("affinity")[:, a, None])
        shown = np.broadcast_to(item[a], (2 * NUM_ROWS, 3))
        parts = [np.ones_like(seen), user, shown, seen, item[a, 0] * user]
        phi[:, a] = np.concatenate(parts, axis=1)
    scale = np.linalg.norm(phi, axis=2).max()
    features = jax.jit(
        jax.vmap(lambda row: click_model.click_features(model, row)),
    )(jnp.arange(2 * NUM_ROWS))
    np.testing.assert_allclose(features, phi / scale, atol=1e-6)
    x, y = phi[np.arange(len(phi)), join("item")][fit_on], join("click")[fit_on]
    # scikit-learn minimizes C times the summed loss plus half the squared norm.
    peer = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-10, max_iter=1000)
    peer.fit(x[:, 1:], y)
    expected = np.concatenate([peer.intercept_, peer.coef_[0]])
    np.testing.assert_allclose(model.weights / scale, expected, atol=2e-4)
    rates = click_model.click_rates(model, np.array([5, 17]))
    logits = phi[[5, 17]] @ expected
    np.testing.assert_allclose(rates, 1 / (1 + np.exp(-logits)), atol=1e-4)


@pytest.mark.slow
def test_the_environment_clicks_at_the_rates_of_the_model(folder):
    _, logs = folder
    model = click_model.fit_click_model(logs, l2=0.01)
    shift, rounds = -0.5, 12000
    env = click_model.obd_env(model, logit_shift=shift)
    arms = jnp.asarray(np.random.default_rng(1).integers(0, NUM_ITEMS, rounds))

    def step(carry, inputs):
        arm, key = inputs
        state, context = carry
        decision = LinearDecision(arm, context.features[arm])
        *carry, feedback = env.step(state, decision, key)
        row = (state.row, feedback.reward, feedback.regret, context.features[arm])
        return tuple(carry), row

    keys = jax.random.split(jax.random.key(2), rounds)
    run = jax.jit(lambda: jax.lax.scan(step, env.init(keys[0]), (arms, keys))[1])
    row, reward, regret, x = map(np.asarray, run())
    assert stats.chisquare(np.bincount(row, minlength=800)).pvalue > 1e-5
    plain = np.asarray(click_model.click_rates(model, row), np.float64)
    rates = 1 / (1 + (1 / plain - 1) * np.exp(-shift))
    played = rates[np.arange(rounds), arms]
    np.testing.assert_allclose(regret, rates.max(1) - played, atol=1e-5)
    assert np.linalg.norm(x, axis=1).max() <= 1.0 + 1e-6
    assert set(np.unique(reward)) == {0.0, 1.0}
    deviation = (reward - played) / np.sqrt(played * (1 - played))
    for arm in range(NUM_ITEMS):
        z = deviation[arms == arm].sum() / np.sqrt(np.sum(arms == arm))
        # Five standard errors, three arms: a false alarm in 2e-6 of the runs.
        assert abs(z) < 5.0


def test_what_cannot_be_read_is_said(tmp_path, monkeypatch):
    load = open_bandit.load_open_bandit
    with pytest.raises(ValueError, match="policy must be one of random, bts, got 'ts'"):
        load("ts", "men", tmp_path)
    with pytest.raises(ValueError, match="campaign must be one of all, men, women"):
        load("bts", "kids", tmp_path)
    with pytest.raises(FileNotFoundError, match="item_context"):
        load("bts", "men", tmp_path)
    make_folder(tmp_path, "bts", score="action_prob")
    named = load("bts", "men", tmp_path)
    assert named.propensity.min() > 0.1
    file = tmp_path / "bts" / "men" / "men.csv"
    text = file.read_text(encoding="utf-8")
    for old, new, message in [
        ("action_prob", "p", "must have a column propensity_score"),
        ("user_feature_2", "u", r"must have the columns \['user_feature_2'\]"),
        (text[text.index("\n") :], "\n", "must have rows with item_id 0 to 2"),
    ]:
        file.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load("bts", "men", tmp_path)
    items = file.with_name("item_context.csv")
    items.write_text(ITEMS.replace("2,2,", "2,3,"), encoding="utf-8")
    with pytest.raises(ValueError, match="must have item_id 0, 1, 2"):
        load("bts", "men", tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps obp"):
        load("bts", "men")


def test_a_model_needs_logs_of_one_campaign_and_clicks(folder):
    _, (log, other) = folder
    fit = click_model.fit_click_model
    with pytest.raises(ValueError, match="logs must have at least one"):
        fit([])
    with pytest.raises(ValueError, match="l2 must be > 0, got 0"):
        fit([log], l2=0.0)
    with pytest.raises(ValueError, match="logs must be of one campaign, got 3 items"):
        fit([log, other._replace(item_value=np.ones(4))])
    with pytest.raises(ValueError, match="fit_on must be 400 booleans, got int64"):
        fit([log], fit_on=np.ones(400, int))
    with pytest.raises(ValueError, match="must have clicks and others, got 0 clicks"):
        fit([log], fit_on=log.click == 0)


def test_the_six_samples_of_obp():
    if importlib.util.find_spec("obp") is None:
        pytest.skip(
            "NOT TESTED, obp is missing: the reader of the Open Bandit samples. "
            "pip install --no-deps obp==0.4.1"
        )
    clicks, items = {}, {}
    for policy in open_bandit.POLICIES:
        for campaign in open_bandit.CAMPAIGNS:
            log = open_bandit.load_open_bandit(policy, campaign)
            assert log.affinity.shape == (10_000, len(log.item_value))
            clicks[policy, campaign] = int(log.click.sum())
            assert set(log.item) == set(range(len(log.item_value)))
            assert set(log.position) == {0, 1, 2}
            if policy == "random":
                np.testing.assert_allclose(log.propensity, 1 / len(log.item_value))
            first = items.setdefault(campaign, log)
            np.testing.assert_array_equal(log.item_value, first.item_value)
            np.testing.assert_array_equal(log.item_category, first.item_category)
    assert [len(items[c].item_value) for c in open_bandit.CAMPAIGNS] == [80, 34, 46]
    assert [*clicks.values()] == [38, 46, 46, 42, 69, 46]
    assert not {"obp", "torch"} & set(sys.modules)
