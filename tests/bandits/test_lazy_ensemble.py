"""Lazy ensembles: members, sizes, scales, and that all ways to run them agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_runs import decision_for, feed, watch

from jaxopt_suite.bandits.ensemble import ensemble_sampling, ensemble_size
from jaxopt_suite.bandits.lazy_ensemble import ensemble_values, lazy_ensemble_sampling
from jaxopt_suite.bandits.ridge import ridge_radius, ridge_update
from jaxopt_suite.core import device_mesh, interact, sweep
from jaxopt_suite.core.interaction import interaction_keys
from jaxopt_suite.problems.contextual import BanditFeedback, LinearContext
from jaxopt_suite.problems.linear_bandit import linear_env

KEY = jax.random.key(5)


def rows(num, d, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(num, d))), jnp.asarray(rng.normal(size=num))


def test_without_laziness_it_is_standard_ensemble_sampling():
    d, m, T, lam, v = 4, 6, 400, 0.7, 0.4
    with jax.enable_x64(True):
        xs, rewards = rows(T, d)
        lazily = lazy_ensemble_sampling(
            d, m, lam=lam, scale=v, growth=0.0, redraw="accumulate"
        )
        standard = ensemble_sampling(d, m, lam=lam, scale=v)
        _, last, got = feed(
            lazily, KEY, xs, rewards, lambda s: s.ridge.theta + s.offsets
        )
        expected = feed(
            standard, KEY, xs, rewards, lambda s: s.ridge.theta + s.scale * s.offsets
        )[2]
    np.testing.assert_allclose(got, expected, atol=1e-10)
    X = np.asarray(xs)
    right = np.asarray(last.ridge.b)[:, None] + v * np.asarray(last.sums).T
    solved = np.linalg.solve(lam * np.eye(d) + X.T @ X, right)
    np.testing.assert_allclose(got[-1], solved.T, atol=1e-10)
    assert int(last.epoch) == T


def whitened(state):
    """``V^(1/2) D / v`` of all members, with the matrix of the last refresh."""
    factor = np.asarray(state.factor, np.float64)
    return np.linalg.solve(factor, np.asarray(state.offsets).T).T / state.scale


@pytest.mark.slow
def test_fresh_members_are_standard_normal_in_the_norm_of_the_statistics():
    # 20000 members: an entry is off by 0.05 with probability below 1e-6.
    policy = lazy_ensemble_sampling(3, 20000, lam=2.0, scale=0.3)
    xs, rewards = rows(6, 3)
    start, last, refreshed = feed(policy, KEY, xs, rewards, lambda s: s.refreshed)
    assert np.any(refreshed)
    count = 1 + int(np.flatnonzero(refreshed)[-1])
    X = np.asarray(xs)[:count]
    V = 2 * np.eye(3) + X.T @ X
    for matrix, state in ((2 * np.eye(3), start), (V, last)):
        factor = np.asarray(state.factor)
        np.testing.assert_allclose(factor @ factor.T @ matrix, np.eye(3), atol=1e-5)
        np.testing.assert_array_equal(factor, np.tril(factor))
        white = whitened(state)
        np.testing.assert_allclose(np.cov(white.T, bias=True), np.eye(3), atol=0.05)
        np.testing.assert_allclose(white.mean(axis=0), 0, atol=0.05)


@pytest.mark.slow
def test_implicit_members_are_the_explicit_ones():
    xs, rewards = rows(40, 3)
    states = []
    for members in ("explicit", "implicit"):
        policy = lazy_ensemble_sampling(3, 7, scale=0.3, members=members)
        states.append(feed(policy, KEY, xs, rewards)[1])
    explicit, implicit = states
    assert int(implicit.epoch) == int(explicit.epoch) > 3
    assert implicit.offsets is None
    expected = ensemble_values(explicit, jnp.eye(3))
    got = jax.jit(ensemble_values, static_argnums=2)(implicit, jnp.eye(3), 7)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        ensemble_values(explicit, jnp.eye(3), num_members=2), expected[:2]
    )
    with pytest.raises(ValueError, match="num_members must be at most 7"):
        ensemble_values(explicit, jnp.eye(3), num_members=8)
    with pytest.raises(ValueError, match="num_members is needed for implicit"):
        ensemble_values(implicit, jnp.eye(3))


@pytest.mark.parametrize(
    "within_epoch", [pytest.param("mean", marks=pytest.mark.slow), "frozen"]
)
def test_a_round_follows_a_member_from_the_right_estimate(within_epoch):
    policy = lazy_ensemble_sampling(
        3, 5, scale="finite", num_arms=4, noise=0.2, within_epoch=within_epoch
    )
    xs, rewards = rows(9, 3)
    view = lambda state: (state.ridge.theta, state.refreshed)  # noqa: E731
    _, state, (thetas, refreshed) = feed(policy, KEY, xs, rewards, view)
    then = np.flatnonzero(refreshed)[-1]
    base = thetas[-1 if within_epoch == "mean" else then]
    assert then < 8
    X = rows(4, 3, seed=1)[0]
    values = (np.asarray(base) + np.asarray(state.offsets)) @ np.asarray(X).T
    np.testing.assert_allclose(ensemble_values(state, X), values, rtol=1e-4, atol=1e-5)
    mask = jnp.array([True, True, False, True])
    keys = jax.random.split(KEY, 50)
    select = jax.vmap(policy.select, in_axes=(None, None, 0))
    decision = jax.jit(select)(state, LinearContext(X, mask), keys)
    allowed = np.where(mask, values, -np.inf)[decision.member]
    np.testing.assert_array_equal(decision.arm, allowed.argmax(axis=1))
    np.testing.assert_allclose(decision.score, allowed.max(axis=1), rtol=1e-4)
    offsets = np.asarray(state.offsets)[decision.member]
    bonus = np.sum(offsets * np.asarray(decision.x), axis=1)
    np.testing.assert_allclose(decision.bonus, bonus, rtol=1e-3, atol=1e-5)
    assert set(np.asarray(decision.member).tolist()) == set(range(5))
    scale = 0.2 * np.sqrt(2 * np.log(2 * 4 * (int(state.epoch) + 1) ** 2 / 0.01)) + 1
    np.testing.assert_allclose(state.scale, scale, rtol=1e-5)


def test_sizes_and_scales_at_the_start():
    policies = [
        lazy_ensemble_sampling(10, noise=0.5),
        lazy_ensemble_sampling(10, horizon=3000),
        lazy_ensemble_sampling(2, horizon=3000, layout="disjoint", num_arms=5),
        lazy_ensemble_sampling(10, 300),
    ]
    shapes = [jax.eval_shape(policy.init, KEY).offsets.shape for policy in policies]
    size = ensemble_size(10, 3000)
    assert shapes == [
        (ensemble_size(10, 1e18), 10),
        (size, 10),
        (size, 5, 2),
        (300, 10),
    ]

    @jax.jit
    def starts(key):
        states = [policy.init(key) for policy in policies]
        radius = ridge_radius(states[0].ridge, noise=0.5)
        return [state.active for state in states], states[0].scale, radius

    active, scale, radius = starts(KEY)
    assert [int(x) for x in active] == [ensemble_size(10, 16), size, size, 300]
    np.testing.assert_allclose(scale, radius, rtol=1e-6)


BAD = [
    ({"d": 0}, "d must be an integer >= 1, got 0"),
    ({"num_members": 0}, "num_members must be an integer >= 1, got 0"),
    ({"horizon": 0}, "horizon must be >= 1, got 0"),
    ({"growth": -0.1}, "growth must be >= 0, got -0.1"),
    ({"lam": 0.0}, "lam must be .*> 0, got 0.0"),
    ({"scale": 0.0}, "scale must be .*> 0, got 0.0"),
    ({"scale": "big"}, "scale must be one of theory, finite, got 'big'"),
    ({"scale": "finite"}, "scale='finite' needs num_arms"),
    ({"members": "implicit", "redraw": "accumulate"}, "members='implicit'"),
    ({"members": "implicit", "member_axis": "x"}, "members='implicit'"),
    ({"members": "none"}, "members must be one of explicit, implicit"),
    ({"trigger": "time"}, "trigger must be one of logdet, trace, spectral"),
    ({"within_epoch": "thawed"}, "within_epoch must be one of mean, frozen"),
    ({"redraw": "old"}, "redraw must be one of fresh, accumulate"),
    ({"noise": -1.0}, "noise must be .*>= 0, got -1.0"),
    ({"conf": 1.0}, r"conf must be in \(0, 1\), got 1.0"),
    ({"learn": lambda s, f: s, "trigger": "trace"}, "learn may weight its rows"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        lazy_ensemble_sampling(**{"d": 2} | options)


def newton(ridge, feedback):
    """A Newton step of logistic regression: a ridge row with a weight."""
    x = feedback.decision.x
    mean = jax.nn.sigmoid(x @ ridge.theta)
    weight = mean * (1 - mean)
    target = x @ ridge.theta + (feedback.reward - mean) / weight
    return ridge_update(ridge, x, target, weight=weight, mask=feedback.mask)


@pytest.mark.slow
def test_heads_on_features_of_a_network_with_a_logistic_link():
    weights, inputs = rows(3, 5, seed=2)[0], rows(6, 5, seed=3)[0]
    policy = lazy_ensemble_sampling(
        3, 4, scale=0.5, apply_fn=lambda z: jnp.tanh(z @ weights.T), learn=newton
    )
    xs = jnp.tanh(inputs @ weights.T)
    feedback = BanditFeedback(decision_for(xs[0]), jnp.ones(()), jnp.array(True))
    nothing = feedback._replace(mask=jnp.array(False))

    @jax.jit
    def run(key):
        start = policy.init(key)
        decision = policy.select(start, LinearContext(inputs), key)
        after = policy.update(feedback, start)
        # New features: an update without anything in it redraws the heads for them.
        stale = start._replace(ridge=after.ridge, ref_logdet=jnp.array(-jnp.inf))
        return start, decision, after, policy.update(nothing, stale)

    start, decision, after, redrawn = run(KEY)
    features = np.asarray(xs)
    values = features @ np.asarray(start.offsets)[decision.member]
    assert int(decision.arm) == values.argmax()
    np.testing.assert_allclose(decision.x, features[values.argmax()], rtol=1e-5)
    # The first Newton step is from mean 1/2: a row of weight 1/4 and target 2.
    x = features[0]
    expected = np.linalg.solve(np.eye(3) + np.outer(x, x) / 4, 2 * x / 4)
    np.testing.assert_allclose(after.ridge.theta, expected, rtol=1e-4)
    assert (int(after.epoch), int(redrawn.epoch)) == (0, 1)
    factor = np.asarray(redrawn.factor)
    np.testing.assert_allclose(factor @ factor.T, after.ridge.V_inv, atol=1e-6)
    assert np.isfinite(float(redrawn.ref_logdet))


# --- whole runs -----------------------------------------------------------------------


def play(policy, env, key, horizon):
    """Arms and regrets of a run."""
    trace = interact(policy, env, key, horizon, record="full").record
    return trace.decision.arm, trace.feedback.regret


@pytest.mark.slow
def test_a_sweep_is_one_compile_and_equals_loops_and_implicit_members():
    env = linear_env(3, 6, noise=0.3, arms="pool", pool=4)
    grid = {"growth": jnp.array([0.3, 2.0]), "v": jnp.array([0.1, 0.5])}
    keys = jax.random.split(KEY, 3)
    traces = []

    def run(key, growth, v, members="explicit"):
        traces.append(1)
        policy = lazy_ensemble_sampling(3, 5, scale=v, growth=growth, members=members)
        return play(policy, env, key, 2000)

    with jax.enable_x64(True):
        swept = sweep(run, keys, grid)
        assert len(traces) == 1
        alone = jax.jit(run, static_argnames="members")
        for i, j, k in np.ndindex(2, 2, 3):
            lane = keys[k], grid["growth"][i], grid["v"][j]
            arms, regret = alone(*lane)
            np.testing.assert_array_equal(swept[0][i, j, k], arms)
            np.testing.assert_allclose(swept[1][i, j, k], regret, atol=1e-12)
            np.testing.assert_array_equal(alone(*lane, members="implicit")[0], arms)
    assert len(traces) == 3


@pytest.mark.slow
def test_members_split_over_devices_play_the_arms_of_one_device():
    env = linear_env(3, 6, noise=0.3)

    def run(key, redraw, member_axis=None):
        policy = lazy_ensemble_sampling(
            3, 8, scale=0.3, redraw=redraw, member_axis=member_axis
        )
        return play(policy, env, key, 150)[0]

    def on_devices(num, redraw):
        return jax.shard_map(
            lambda key: run(key, redraw, "members"),
            mesh=device_mesh("members", num),
            in_specs=jax.P(),
            out_specs=jax.P(),
            check_vma=False,
        )

    for redraw in ("fresh", "accumulate"):
        whole = jax.jit(run, static_argnames="redraw")(KEY, redraw)
        np.testing.assert_array_equal(jax.jit(on_devices(2, redraw))(KEY), whole)
    with pytest.raises(ValueError, match="num_members must be a multiple of 3"):
        on_devices(3, "fresh")(KEY)


def row_one(policy, horizon, d=10, K=50):
    """States at the start and after every round, on fixed arms."""
    env = linear_env(d, K, noise=0.5)
    keep = lambda s: (s.offsets, s.factor, s.scale, s.refreshed)  # noqa: E731
    _, seen, last = watch(policy, env, KEY, horizon, keep)
    start = policy.init(interaction_keys(KEY).policy)
    offsets, factor, scale, refreshed = jax.tree.map(np.asarray, seen)
    at = np.flatnonzero(refreshed)
    states = [
        start._replace(offsets=offsets[t], factor=factor[t], scale=scale[t]) for t in at
    ]
    _, context = env.init(interaction_keys(KEY).environment)
    return [start, *states], last, np.asarray(context.features)


@pytest.mark.slow
def test_members_concentrate_at_the_scale_of_theory():
    d, K, m = 20, 50, 102
    policy = lazy_ensemble_sampling(d, m, noise=0.5)
    states, last, X = row_one(policy, 1000, d, K)
    assert len(states) == int(last.epoch) + 1 > 20
    # Failure probability 1e-5 by a union over members, arms and epochs.
    over_arms = np.sqrt(2 * np.log(2 * m * K * len(states) / 1e-5))
    over_all = np.sqrt(d) + np.sqrt(2 * np.log(m * len(states) / 1e-5))
    for state in states:
        factor = np.asarray(state.factor, np.float64)
        widths = np.linalg.norm(X @ factor, axis=1)
        values = np.abs(np.asarray(state.offsets) @ X.T) / (state.scale * widths)
        assert values.max() <= over_arms
        assert np.sqrt(d) <= np.linalg.norm(whitened(state), axis=1).max() <= over_all


@pytest.mark.slow
def test_only_a_large_ensemble_looks_into_every_direction():
    states, _, _ = row_one(lazy_ensemble_sampling(10, 44, scale=0.5), 1000)
    u = np.random.default_rng(0).normal(size=(500, 10))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    gains = np.stack([u @ whitened(state).T for state in states])
    # Gaussian members: 1.16 on average; the first five of them, -0.41.
    assert gains.max(axis=2).min() >= 0.4
    assert np.mean(gains[..., :5].max(axis=2).min(axis=1) >= 0) <= 0.1


@pytest.mark.slow
def test_without_a_horizon_nothing_is_lost():
    # Two policies and 24 paired seeds; both draw other members, so the noise is real.
    env = linear_env(10, 20, noise=0.5, arms="pool", pool=20)
    regrets = {}
    for horizon in (3000, None):
        policy = lazy_ensemble_sampling(
            10, horizon=horizon, scale=0.5, members="implicit"
        )
        run = jax.jit(
            jax.vmap(
                lambda key, policy=policy: interact(policy, env, key, 3000),
                axis_name="lanes",
            )
        )
        result = run(jax.random.split(KEY, 24))
        regrets[horizon] = np.asarray(result.record.regret)[:, -1]
    difference = regrets[None] - regrets[3000]
    error = difference.std(ddof=1) / np.sqrt(24)
    assert abs(difference.mean()) <= 3 * error + 0.05 * regrets[3000].mean()


@pytest.mark.slow
def test_active_members_grow_and_the_past_is_kept():
    with jax.enable_x64(True):
        policy = lazy_ensemble_sampling(5, scale=0.5, members="implicit", lam=0.5)
        env = linear_env(5, 10, noise=0.5, arms="iid")
        view = lambda state: (state.active, state.refreshed)  # noqa: E731
        trace, (active, refreshed), last = watch(policy, env, KEY, 3000, view)
        xs, rewards = np.asarray(trace.decision.x), np.asarray(trace.feedback.reward)
        active, counts = np.asarray(active), 1 + np.flatnonzero(refreshed)
        assert np.all(np.diff(active) >= 0)
        sizes = [ensemble_size(5, max(count, 16)) for count in counts]
        np.testing.assert_allclose(active[counts - 1], sizes, atol=1)
        assert active[-1] > active[0]
        assert np.all(np.asarray(trace.decision.member)[1:] < active[:-1])
        np.testing.assert_allclose(last.ridge.b, xs.T @ rewards, atol=1e-10)
        V = 0.5 * np.eye(5) + xs.T @ xs
        np.testing.assert_allclose(last.ridge.V_inv @ V, np.eye(5), atol=1e-10)
