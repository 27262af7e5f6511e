"""The policy against a simulation that keeps a Python list of what is under way."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.bco import dars, dftbl, periodic_restart, static_oracle
from jaxopt_suite.bandits.bco_leader import follow_the_leader
from jaxopt_suite.bandits.bco_primitives import sphere_sample
from jaxopt_suite.bandits.bco_rounds import next_round, start_state
from jaxopt_suite.bandits.bco_schedule import BCOSchedule, dars_schedule
from jaxopt_suite.core import DelayModel, Policy, interact
from jaxopt_suite.core.interaction import interaction_keys
from jaxopt_suite.problems.bco import BCOFeedback, LossSequence, bco_env
from jaxopt_suite.problems.bco_losses import norm_segments

T, N, D_MAX = 40, 2, 9
# Partial last blocks, a block longer than its segment, a segment of one round.
LENGTHS = np.array([14, 5, 1, 20])
STARTS = np.cumsum([0, *LENGTHS[:-1]])
SEGMENT = np.repeat(np.arange(4), LENGTHS)
SCHEDULE = BCOSchedule(
    starts=STARTS,
    lengths=LENGTHS,
    K=np.array([4, 8, 1, 3]),
    delta=np.array([0.2, 0.3, 0.5, 0.1]),
    eta=np.array([0.05, 0.05, 0.1, 0.02]),
    feasible=np.ones(4, bool),
)
Y0 = np.array([0.9, 0.3])  # outside some of the shrunk sets
KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
TARGETS = np.array([[0.5, 0], [-0.5, 0.2], [0, 0.9], [-0.3, -0.6]])[SEGMENT]
UNIFORM = RNG.integers(0, D_MAX + 1, T)
NO_ROUND = np.zeros(T, bool)
DELAYS = {
    "none": np.zeros(T, int),
    "constant": np.full(T, 5),
    "uniform": UNIFORM,
    "burst": D_MAX - np.arange(T) % (D_MAX + 1),
}


def quadratic(targets, spoilt):
    """``||x - target_t||^2 / 2 + 0.1``; NaN in the rounds that are ``spoilt``."""

    def value(x, t):
        level = jnp.where(spoilt[t], jnp.nan, 0.1)
        return jnp.sum((x - targets[t].astype(x.dtype)) ** 2) / 2 + level

    return LossSequence(
        value, lambda t: targets[t], lambda t: jnp.asarray(0.1), STARTS, 1.0, 1.0
    )


@functools.cache
def player(alpha=0.0, baseline=None):
    """One compile for all delays, losses and learning rates."""

    @jax.jit
    def play(delays, targets, spoilt, faster):
        schedule = SCHEDULE._replace(eta=SCHEDULE.eta * faster)
        options = {"strong_convexity": alpha, "y0": Y0, "baseline": baseline}
        policy = dars(jnp.zeros(N), schedule, **options)
        late = DelayModel(lambda key, horizon: delays, D_MAX, D_MAX + 1)
        world = bco_env(quadratic(targets, spoilt))
        run = interact(policy, world, KEY, T, delays=late, record="full")
        return run.record.decision, run.record.feedback

    def call(delays, targets=TARGETS, spoilt=NO_ROUND, faster=1.0):
        inputs = map(jnp.asarray, (delays, targets, spoilt, np.float32(faster)))
        return jax.tree.map(np.asarray, play(*inputs))

    return call


@functools.cache
def directions():
    """Round t draws with fold_in(select, t), as the driver documents."""
    select = interaction_keys(KEY).select

    def draw(t):
        return sphere_sample(jax.random.fold_in(select, t), jnp.zeros(N))

    return np.asarray(jax.jit(jax.vmap(draw))(jnp.arange(T)), np.float64)


def to_ball(y, radius):
    return y * min(1.0, radius / max(np.linalg.norm(y), 1e-30))


def simulate(delays, alpha=0.0, baseline=None, faster=1.0):
    """Points, centres and baselines of all rounds, in float64, by the definition."""
    rows, under_way = [], []
    for j, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
        K, delta, eta = (float(row[j]) for row in SCHEDULE[2:5])
        origin = to_ball(Y0, 1 - delta)
        y, g, past, values, level, position = origin, np.zeros(N), [], [], 0.0, 0
        for t in range(start, start + length):
            u = directions()[t]
            x = y + delta * u
            value = np.sum((x - TARGETS[t]) ** 2) / 2 + 0.1
            rows.append((x, y, level))
            under_way.append((t + delays[t], j, N / delta * (value - level) * u, value))
            for arrival, segment, term, seen in under_way:
                if arrival == t and segment == j:
                    g = g + term
                    values.append(seen)
            position += 1
            if position == K or t == start + length - 1:
                past.append(y)
                if alpha:
                    y = np.mean(past, axis=0) - g / (alpha * K * len(past))
                else:
                    y = origin - eta * faster * g
                y, position = to_ball(y, 1 - delta), 0
                level = np.mean(values) if baseline and values else 0.0
    return [np.array(column) for column in zip(*rows, strict=True)]


def assert_played(delays, got, **options):
    decision = got[0]
    x, y, level = simulate(delays, **options)
    np.testing.assert_allclose(decision.x, x, atol=3e-5)
    centres = decision.x - decision.delta[:, None] * decision.direction
    np.testing.assert_allclose(centres, y, atol=3e-5)
    np.testing.assert_allclose(decision.baseline, level, atol=3e-5)
    np.testing.assert_array_equal(decision.segment, SEGMENT)
    np.testing.assert_array_equal(decision.round, np.arange(T))
    # A point of the unit ball, its centre in the ball shrunk by 1 - delta.
    assert np.linalg.norm(decision.x, axis=1).max() <= 1 + 1e-5
    assert np.all(np.linalg.norm(centres, axis=1) <= 1 - decision.delta + 1e-5)


@pytest.mark.parametrize("delays", DELAYS)
def test_convex_rounds_are_those_of_the_definition(delays):
    delays = DELAYS[delays]
    assert_played(delays, player()(delays))
    got = player()(delays, faster=3.0)  # in the same compile
    assert_played(delays, got, faster=3.0)


@pytest.mark.parametrize("delays", DELAYS)
def test_strong_rounds_with_a_baseline_are_those_of_the_definition(delays):
    delays = DELAYS[delays]
    got = player(alpha=1.0, baseline="mean")(delays)
    assert_played(delays, got, alpha=1.0, baseline="mean")


def test_nothing_that_comes_means_nothing_is_learned():
    # Segments 1 and 2 end before their values come: they stay at the start.
    x, y, _ = simulate(np.full(T, D_MAX))
    decision, _ = player()(np.full(T, D_MAX))
    still = (SEGMENT == 1) | (SEGMENT == 2)
    assert np.ptp(y[SEGMENT == 1], axis=0).max() == 0
    np.testing.assert_allclose(decision.x[still], x[still], atol=1e-6)


def test_order_and_width_of_a_batch_do_not_matter():
    decision, feedback = player()(UNIFORM)
    policy = dars(jnp.zeros(N), SCHEDULE, baseline="mean")
    update = jax.jit(lambda batch: policy.update(batch, policy.init(KEY)))
    batch = BCOFeedback(decision, feedback.value, SEGMENT % 3 == 0, feedback.value)
    order = np.random.default_rng(1).permutation(T)
    wider = jax.tree.map(lambda x: np.concatenate([x[order], 0 * x[:7]]), batch)
    base = update(batch)
    for other in (jax.tree.map(lambda x: x[order], batch), wider):
        for a, b in zip(*map(jax.tree.leaves, (base, update(other))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    kept = SEGMENT == 0  # segment 3 is in the mask, and not the state's segment
    terms = feedback.value / decision.delta * N
    np.testing.assert_allclose(
        base.g, terms[kept] @ decision.direction[kept], rtol=1e-5, atol=1e-5
    )
    assert int(base.value_count) == kept.sum()


@pytest.mark.parametrize("j", range(4))
def test_a_segment_is_local(j):
    inside = np.equal(SEGMENT, j)
    base = player()(UNIFORM)
    moved = np.where(inside[:, None], -TARGETS, TARGETS)
    slower = np.where(inside, (UNIFORM + 3) % (D_MAX + 1), UNIFORM)
    for got in (player()(UNIFORM, targets=moved), player()(slower)):
        for a, b in zip(jax.tree.leaves(base), jax.tree.leaves(got), strict=True):
            np.testing.assert_array_equal(a[~inside], b[~inside])
        assert j in (1, 2) or np.any(got[0].x[inside] != base[0].x[inside])


def test_what_comes_after_its_segment_changes_nothing():
    ends = np.cumsum(LENGTHS)[SEGMENT]
    late = np.arange(T) + UNIFORM >= ends
    assert late.sum() > 10
    base, got = player()(UNIFORM), player()(UNIFORM, spoilt=late)
    np.testing.assert_array_equal(base[0].x, got[0].x)


def test_no_round_sees_what_has_not_come():
    arrival = np.arange(T) + UNIFORM
    base = player()(UNIFORM)[0].x
    for t in (3, 9, 25, 33):
        x = player()(UNIFORM, spoilt=arrival >= t)[0].x
        np.testing.assert_array_equal(x[: t + 1], base[: t + 1])


def test_nan_shows_until_its_segment_ends():
    x = player()(DELAYS["none"], spoilt=np.arange(T) == 5)[0].x
    seen = np.isnan(x).any(axis=1)
    # Round 5 is in the block of rounds 4..7 of the first segment.
    np.testing.assert_array_equal(seen, (np.arange(T) >= 8) & (SEGMENT == 0))


def test_rounds_past_the_schedule_belong_to_its_last_segment():
    leader = follow_the_leader(jnp.zeros(N), SCHEDULE)
    step = jax.jit(lambda state: next_round(state, leader, SCHEDULE))
    state = start_state(leader, jnp.float32)._replace(
        g=jnp.ones(N),
        segment=jnp.int32(3),
        round=jnp.int32(T - 2),
        position=jnp.int32(0),
    )
    seen = []
    for _ in range(5):
        state = step(state)
        seen.append((int(state.segment), int(state.position), int(state.block)))
    # The partial block ends with the schedule; whole blocks follow.
    assert seen == [(3, 1, 0), (3, 0, 1), (3, 1, 1), (3, 2, 1), (3, 0, 2)]
    np.testing.assert_array_equal(state.g, 1)


def test_one_segment_is_the_method_without_restart_bit_for_bit():
    schedule = dars_schedule(300, N, d_max=2, k_scale=0.2)
    starts = dars_schedule(300, N, segment_starts=(0, 200), d_max=2, k_scale=0.2)
    policies = (
        dars(jnp.zeros(N), schedule),
        dftbl(jnp.zeros(N), 300, d_max=2, k_scale=0.2),
        dars(jnp.zeros(N), starts),
        periodic_restart(jnp.zeros(N), 300, 200, d_max=2, k_scale=0.2),
    )

    values = jnp.asarray(RNG.normal(size=300), jnp.float32)

    def play(policy):
        def step(state, inputs):
            decision = policy.select(state, (), inputs[0])
            return policy.update(BCOFeedback(decision, inputs[1]), state), decision

        inputs = jax.random.split(KEY, 300), values
        return jax.lax.scan(step, policy.init(KEY), inputs)

    one, same, two, periodic = jax.jit(lambda: [play(p) for p in policies])()
    for a, b in ((one, same), (two, periodic)):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_array_equal(x, y)
    assert np.any(one[1].x != two[1].x)


def test_the_oracle_has_no_regret():
    losses = norm_segments(8, N, 2)
    policy: Policy = static_oracle(losses.minimizer)
    run = jax.jit(
        lambda: interact(policy, bco_env(losses), KEY, 8, delays=1, record="full")
    )()
    np.testing.assert_array_equal(run.record.feedback.regret, 0)
    np.testing.assert_array_equal(run.record.decision.x[:, 0], [0.5] * 4 + [-0.5] * 4)
