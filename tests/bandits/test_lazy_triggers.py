"""Refreshes against a float64 replay that recomputes every matrix."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_runs import decision_for

from jaxopt_suite.bandits.lazy_ensemble import lazy_ensemble_sampling
from jaxopt_suite.bandits.lazy_triggers import TRIGGERS, cholesky_of_inverse
from jaxopt_suite.problems.contextual import BanditFeedback

D, T, GROWTH = 4, 250, 0.7
NAMES = ("first", "second", "third", "zeros", "masked", "scaled")


def data():
    """Three sets of features; then zeros, masked rows, and the first set tripled."""
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(3, T, D)) * np.array([[[1.0]], [[0.3]], [[0.1]]])
    xs[1, :, 0] *= 4
    xs = np.stack([*xs, np.zeros((T, D)), xs[0], 3 * xs[0]])
    masks = np.ones((len(NAMES), T), bool)
    masks[4] = False
    return xs.astype(np.float32), masks, np.array([1, 1, 1, 1, 1, 9.0], np.float32)


@functools.cache
def learned(trigger, gate_axis="lanes"):
    """What a lazy ensemble does on each data set: refreshes, offsets, epochs."""

    def run(xs, mask, lam):
        policy = lazy_ensemble_sampling(
            D,
            3,
            lam=lam,
            scale=0.5,
            growth=GROWTH,
            trigger=trigger,
            gate_axis=gate_axis,
        )
        start = policy.init(jax.random.key(0))
        feedback = BanditFeedback(decision_for(xs), xs[:, 0], mask, jnp.zeros(T))

        def step(state, feedback):
            state = policy.update(feedback, state)
            return state, (state.refreshed, state.offsets, state.epoch)

        last, seen = jax.lax.scan(step, start, feedback)
        return start.offsets, last, seen

    run_all = jax.jit(jax.vmap(run, axis_name="lanes"))
    start, last, seen = run_all(*data())
    return np.asarray(start), last, jax.tree.map(np.asarray, seen)


def measure(trigger, V, V_ref, x):
    """How much larger V is, as the trigger measures it, less what it allows."""
    if trigger == "logdet":
        growth = np.linalg.slogdet(V)[1] - np.linalg.slogdet(V_ref)[1]
        return growth - np.log1p(GROWTH)
    factor = np.linalg.cholesky(np.linalg.inv(V_ref))
    M = factor.T @ V @ factor
    if trigger == "trace":
        return np.trace(M) - D - GROWTH
    v = factor.T @ x
    for _ in range(8):
        v = M @ v / np.linalg.norm(M @ v)
    return v @ M @ v / (v @ v) - 1 - GROWTH


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_refreshes_are_those_of_a_replay(trigger):
    _, _, (refreshed, _, epoch) = learned(trigger)
    xs = data()[0].astype(np.float64)
    for name in ("first", "second", "third"):
        which = NAMES.index(name)
        V = V_ref = np.eye(D)
        for t, x in enumerate(xs[which]):
            V = V + np.outer(x, x)
            excess = measure(trigger, V, V_ref, x)
            # Nearer to the threshold than this, rounding may decide.
            if abs(excess) > 1e-4:
                assert refreshed[which, t] == (excess > 0), (name, t, excess)
            ratios = np.linalg.eigvals(np.linalg.solve(V_ref, V)).real
            if refreshed[which, t]:
                V_ref = V
            elif trigger != "spectral":
                # The power steps give a lower estimate, so they prove no bound.
                assert ratios.max() <= 1 + GROWTH + 1e-4
        assert np.array_equal(epoch[which], refreshed[which].cumsum())
        if trigger == "logdet":
            bound = np.linalg.slogdet(V)[1] / np.log1p(GROWTH)
            assert 5 <= epoch[which, -1] <= bound


def test_lazier_triggers_refresh_less():
    counts = [learned(trigger)[2][2][:3, -1] for trigger in TRIGGERS]
    assert np.all(counts[0] >= counts[1])
    assert np.all(counts[1] >= counts[2])
    assert np.any(counts[0] > counts[2])


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_offsets_change_at_refreshes_and_only_there(trigger):
    start, _, (refreshed, offsets, _) = learned(trigger)
    before = np.concatenate([start[:, None], offsets[:, :-1]], axis=1)
    changed = np.any(before != offsets, axis=(2, 3))
    np.testing.assert_array_equal(changed, refreshed)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_time_alone_refreshes_nothing(trigger):
    _, last, (refreshed, _, epoch) = learned(trigger)
    for name in ("zeros", "masked"):
        which = NAMES.index(name)
        assert not refreshed[which].any()
        assert epoch[which, -1] == 0
        np.testing.assert_array_equal(last.ridge.theta[which], 0)
    np.testing.assert_array_equal(last.ridge.count[3:5], [T, 0])


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_the_unit_of_the_features_does_not_matter(trigger):
    _, _, (refreshed, _, _) = learned(trigger)
    np.testing.assert_array_equal(refreshed[NAMES.index("scaled")], refreshed[0])


def test_gated_refreshes_give_the_same_bits():
    jax.tree.map(
        np.testing.assert_array_equal,
        learned("logdet")[2],
        learned("logdet", gate_axis=None)[2],
    )


def test_a_factor_that_fails_is_tried_again_with_a_jitter():
    # Jitters of 6.7e-8 on the diagonal: more than the second lacks, not the third.
    matrices = np.array([np.diag([1, 1, last]) for last in (0.25, -1e-9, -1e-3)])
    matrices = matrices.astype(np.float32)
    factors = np.asarray(jax.jit(jax.vmap(cholesky_of_inverse))(matrices))
    np.testing.assert_array_equal(factors[0], np.diag([1, 1, 0.5]))
    assert np.isnan(np.asarray(jnp.linalg.cholesky(matrices[1]))).any()
    np.testing.assert_allclose(factors[1] @ factors[1].T, matrices[1], atol=2e-7)
    assert np.isnan(factors[2]).any()
