"""What a block's end computes, and actions of any shape, set and precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from jaxopt_suite.bandits.bco import dars
from jaxopt_suite.bandits.bco_leader import follow_the_leader
from jaxopt_suite.bandits.bco_primitives import sphere_sample
from jaxopt_suite.bandits.bco_schedule import BCOSchedule, dars_schedule
from jaxopt_suite.bandits.convex_sets import box, l2_ball, simplex
from jaxopt_suite.core import interact
from jaxopt_suite.core.interaction import interaction_keys
from jaxopt_suite.problems.bco import BCOFeedback, LossSequence, bco_env

KEY = jax.random.key(0)


def one_segment(length, K, delta, eta=0.1):
    rows = [np.array([x]) for x in (0, length, K, delta, eta, True)]
    return BCOSchedule(*rows)


def losses_of(value):
    return LossSequence(value, None, lambda t: jnp.zeros(()), np.array([0]), 1.0, 1.0)


def test_rounds_without_blocks_and_delay_are_dual_averaging():
    n, T, delta, eta = 3, 60, 0.1, 0.01
    target = np.array([0.9, -0.9, 0.1])  # outside, so that some steps are projected
    losses = losses_of(lambda x, t: jnp.sum((x - target) ** 2) - 1.0)
    policy = dars(jnp.zeros(n), one_segment(T, 1, delta, eta), domain=l2_ball(1.0))
    run = jax.jit(lambda: interact(policy, bco_env(losses), KEY, T, record="full"))()
    select = interaction_keys(KEY).select
    y, g, projected = np.zeros(n), np.zeros(n), 0
    for t in range(T):
        u = np.asarray(run.record.decision.direction[t], np.float64)
        x = y + delta * u
        np.testing.assert_allclose(run.record.decision.x[t], x, atol=2e-5)
        g = g + n / delta * (np.sum((x - target) ** 2) - 1) * u
        y = -eta * g
        projected += np.linalg.norm(y) > 0.9
        y = y * min(1, 0.9 / np.linalg.norm(y))
    assert 5 < projected < T - 5
    key = jax.random.fold_in(select, 7)
    np.testing.assert_allclose(
        run.record.decision.direction[7], sphere_sample(key, jnp.zeros(n)), rtol=1e-6
    )


def test_strong_centres_minimize_the_regularized_losses():
    n, K, alpha, delta = 3, 4, 0.8, 0.25
    with jax.enable_x64(True):
        target = jnp.array([0.7, -0.6, 0.3])
        losses = losses_of(lambda x, t: jnp.sum((x - target) ** 2) / 4 - 0.2)
        policy = dars(
            jnp.zeros(n), one_segment(6 * K, K, delta), strong_convexity=alpha
        )
        run = jax.jit(
            lambda: interact(
                policy, bco_env(losses), KEY, 6 * K, delays=3, record="full"
            )
        )()
    decision, value = run.record.decision, run.record.feedback.value
    assert decision.x.dtype == np.float64
    centres = (np.asarray(decision.x) - delta * np.asarray(decision.direction))[::K]
    terms = n / delta * np.asarray(value)[:, None] * np.asarray(decision.direction)
    projected = 0
    for b in range(1, 6):
        g = terms[: b * K - 3].sum(axis=0)

        def leader(x, b=b, g=g):
            pull = np.sum((x - centres[:b]) ** 2)
            return g @ x + alpha * K / 2 * pull

        best = optimize.minimize(
            leader,
            np.zeros(n),
            jac=lambda x, b=b, g=g: g + alpha * K * (b * x - centres[:b].sum(axis=0)),
            constraints={
                "type": "ineq",
                "fun": lambda x: (1 - delta) ** 2 - x @ x,
                "jac": lambda x: -2 * x,
            },
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 200},
        )
        np.testing.assert_allclose(centres[b], best.x, atol=1e-5)
        projected += np.linalg.norm(centres[b]) > 1 - delta - 1e-6
    assert 0 < projected < 5


def test_points_stay_in_a_box_over_a_tree():
    slope = {"a": jnp.array([0.5, -0.4]), "b": jnp.array(-1.0)}
    sides = box({"a": jnp.array([0.5, 1.0]), "b": 2.0})
    losses = losses_of(lambda x, t: jnp.sum(slope["a"] * x["a"]) + slope["b"] * x["b"])
    policy = dars(slope, one_segment(200, 2, 0.25, 5.0), domain=sides)
    run = jax.jit(
        lambda: interact(policy, bco_env(losses), KEY, 200, delays=1, record="full")
    )()
    x = run.record.decision.x
    x = np.concatenate([x["a"], x["b"][:, None]], axis=1)
    half = np.array([0.5, 1.0, 2.0])
    assert np.all(np.abs(x) <= half * (1 + 1e-5))
    assert np.all(np.abs(x).max(axis=0) > 0.5 * half)


def test_points_stay_in_the_corner_of_the_simplex():
    corner, rng = simplex(3), np.random.default_rng(0)
    for share in (0.5, 1.0):
        delta = share * corner.inner_radius
        leader = follow_the_leader(
            jnp.zeros(3), one_segment(8, 2, delta), domain=corner
        )
        follow = jax.jit(jax.vmap(lambda g: leader.follow(g, jnp.zeros(3), 1, 0)))
        y = follow(jnp.asarray(rng.normal(size=(500, 3)) * 20, jnp.float32))
        u = rng.normal(size=(500, 3))
        x = y + delta * u / np.linalg.norm(u, axis=1, keepdims=True)
        assert x.min() >= -1e-5
        assert x.sum(axis=1).max() <= 1 + 1e-5
        # All of the inner radius explored, the centre cannot leave the middle.
        spread = np.ptp(y, axis=0).max()
        assert spread < 1e-5 if share == 1 else spread > 0.3


def test_one_round_and_one_coordinate():
    policy = dars(jnp.zeros(1), one_segment(1, 1, 0.5))

    @jax.jit
    def play(key):
        state = policy.init(key)
        decision = policy.select(state, (), key)
        return decision, policy.update(BCOFeedback(decision, 1.0), state)

    decision, state = play(KEY)
    np.testing.assert_allclose(np.abs(decision.x), 0.5, rtol=1e-6)
    # g = (n / delta) u = +-2, eta = 0.1
    np.testing.assert_allclose(state.y, -0.4 * decision.x, rtol=1e-5)
    assert (int(state.round), int(state.block), int(state.segment)) == (1, 1, 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_dtypes_of_states_and_points(dtype):
    wide = "float64" if dtype == "float64" else "float32"
    with jax.enable_x64(dtype == "float64"):
        example = {"a": jnp.zeros((2, 2), dtype), "b": jnp.zeros((), dtype)}
        policy = dars(example, one_segment(8, 1, 0.5), baseline="mean")

        def step(key):
            state = policy.init(key)
            decision = policy.select(state, (), key)
            value = jnp.sum(decision.x["a"])  # in the dtype of the point
            return state, decision, policy.update(BCOFeedback(decision, value), state)

        state, decision, after = jax.eval_shape(step, KEY)
    assert {x.dtype for x in jax.tree.leaves(decision.x)} == {jnp.dtype(dtype)}
    kept = [*jax.tree.leaves(decision.direction), decision.delta, decision.baseline]
    kept += jax.tree.leaves([state.y, state.g, state.y_sum, state.value_sum])
    assert {x.dtype for x in kept} == {jnp.dtype(wide)}
    assert state == after  # shapes, dtypes and weak types


def test_empty_slots_do_not_matter_whatever_is_in_them():
    policy = dars(jnp.zeros(2), one_segment(8, 2, 0.5))
    state = policy.init(KEY)
    decision = policy.select(state, (), KEY)
    spoilt = jax.tree.map(
        lambda x: x * jnp.nan if x.dtype == jnp.float32 else x, decision
    )
    batch = jax.tree.map(lambda *x: jnp.stack(x), decision, spoilt)
    feedback = BCOFeedback(batch, jnp.array([1.0, jnp.nan]), jnp.array([True, False]))
    update = jax.jit(policy.update)
    got = update(feedback, state)
    one = update(BCOFeedback(decision, 1.0), state)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(one), strict=True):
        np.testing.assert_array_equal(a, b)
    nothing = feedback._replace(mask=jnp.zeros(2, bool))
    clock = update(nothing, state)
    assert (int(clock.position), int(clock.round)) == (1, 1)
    np.testing.assert_array_equal(clock.g, 0)


def test_a_sweep_over_learning_rates_and_radii_is_one_trace():
    traces = []

    @jax.jit
    def sweep(eta, delta):
        def follow(eta, delta):
            traces.append(None)
            row = one_segment(8, 2, 0.5)._replace(eta=eta, delta=delta)
            leader = follow_the_leader(jnp.zeros(2), row)
            return leader.follow(jnp.array([-4.0, 0.0]), jnp.zeros(2), 1, 0)[0]

        return jax.vmap(follow)(eta, delta)

    # min(4 eta, 1 - delta)
    got = sweep(jnp.array([0.1, 0.2]), jnp.array([0.5, 0.5]))
    np.testing.assert_allclose(got, [0.4, 0.5], rtol=1e-6)
    got = sweep(jnp.array([0.1, 0.2]), jnp.array([0.7, 0.1]))
    np.testing.assert_allclose(got, [0.3, 0.8], rtol=1e-6)
    assert len(traces) == 1


ROW = one_segment(8, 2, 0.5)
policy_of = functools.partial(dars, jnp.zeros(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: policy_of(ROW, baseline="median"), "baseline must be None or 'mean'"),
        (lambda: policy_of(ROW, y0=jnp.zeros(3)), "y0 must have the shapes"),
        (lambda: policy_of(ROW, domain=l2_ball(0.4)), "at most the domain's inner_rad"),
        (lambda: policy_of(ROW, domain=box(jnp.ones(3))), "half_widths must have the"),
        (
            lambda: policy_of(ROW, strong_convexity=-1.0),
            "strong_convexity must be >= 0",
        ),
        (lambda: policy_of(ROW._replace(K=np.array([0]))), "schedule.K must be >= 1"),
        (lambda: policy_of(ROW._replace(starts=np.array([2]))), "schedule.starts must"),
        (lambda: policy_of(ROW._replace(delta=-0.5)), "schedule.delta must be > 0"),
        (lambda: policy_of(ROW._replace(eta=0.0)), "schedule.eta must be > 0"),
        (lambda: dars((), ROW), "example_action must have a coordinate"),
        (lambda: dars(jnp.zeros(2, int), ROW), "example_action must have a floating"),
        (
            lambda: jax.jit(lambda K: policy_of(ROW._replace(K=K)).init(KEY))(ROW.K),
            "schedule.K must be concrete",
        ),
        (
            lambda: policy_of(dars_schedule(9, 2, radius=3.0), domain=l2_ball(0.1)),
            "schedule.delta must be at most",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call().init(KEY)
