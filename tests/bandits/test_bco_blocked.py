"""The blocked path against the generic driver; what it costs in traces and memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.bco import dars
from jaxopt_suite.bandits.bco_blocked import dars_rollout_blocked
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.bandits.convex_sets import box
from jaxopt_suite.core import interact
from jaxopt_suite.core.delays import (
    DelayModel,
    burst_delay,
    constant_delay,
    uniform_delay,
)
from jaxopt_suite.problems.bco import bco_env
from jaxopt_suite.problems.bco_losses import (
    norm_segments,
    pricing_segments,
    strong_segments,
)
from jaxopt_suite.problems.bco_lower_bounds import rademacher_blocks

# Most of the time here is compilation.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
D_MAX = 24
LAWS = (constant_delay(D_MAX), uniform_delay(D_MAX), burst_delay(D_MAX))


def both(policy, losses, schedule, delays, key, **options):
    """The decisions and values of the generic driver, and the blocked trace."""
    horizon = int(schedule.lengths.sum())
    generic = interact(
        policy, bco_env(losses), key, horizon, delays=delays, record="full"
    )
    trace = dars_rollout_blocked(schedule, losses, delays, key, **options)
    return generic.record, trace


def require_same(record, trace, rtol):
    decision, feedback = record.decision, record.feedback
    np.testing.assert_array_equal(trace.arrival, record.arrival)
    np.testing.assert_array_equal(trace.segment, decision.segment)
    close = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol)
    close(trace.x, decision.x)
    close(trace.value, feedback.value)
    # What is played is the centre plus the same radius times the same direction.
    close(
        trace.x - np.asarray(decision.delta)[..., None] * decision.direction,
        decision.x - np.asarray(decision.delta)[..., None] * decision.direction,
    )
    close(trace.regret, np.cumsum(feedback.regret, axis=-1), rtol=10 * rtol)


def compare(starts, horizon, make_losses, alpha, rtol):
    """Three laws of delays in one compile: a law may give traced delays."""
    losses = make_losses(horizon, 2, segment_starts=starts)
    schedule = dars_schedule(
        horizon,
        2,
        segment_starts=starts,
        d_max=D_MAX,
        k_scale=0.2,
        strong_convexity=alpha,
    )
    assert len(set(schedule.K)) == len(starts)
    assert np.all(schedule.lengths % schedule.K)
    policy = dars(jnp.zeros(2), schedule, strong_convexity=alpha)

    @jit
    @jax.vmap
    def run(key, table):
        law = DelayModel(lambda key, horizon: table, D_MAX, D_MAX + 1)
        return both(policy, losses, schedule, law, key, strong_convexity=alpha)

    keys = jax.random.split(jax.random.key(3), 3)
    tables = jit(lambda key: jnp.stack([law(key, horizon) for law in LAWS]))(
        jax.random.key(5)
    )
    record, trace = run(keys, tables)
    require_same(record, trace, rtol)
    travelled = np.ptp(trace.x[:, -1] - trace.x[:, 0])
    assert travelled > 0.1


def test_equals_the_generic_driver_strongly_convex_in_float32():
    compare((0, 700, 1900), 3001, strong_segments, 1.0, 1e-4)


@pytest.mark.slow
def test_equals_the_generic_driver_convex_and_in_float64():
    compare((0, 1400, 3100), 6001, norm_segments, 0.0, 1e-4)
    with jax.enable_x64(True):
        compare((0, 700, 1900), 3001, strong_segments, 1.0, 1e-9)
        compare((0, 700, 1900), 3001, norm_segments, 0.0, 1e-9)


@pytest.mark.slow
def test_equals_the_generic_driver_on_a_box_with_delays_of_its_own_key():
    horizon, n = 600, 3
    losses = pricing_segments(horizon, n, 2)
    domain = box(jnp.ones(n))
    schedule = dars_schedule(
        horizon,
        n,
        segment_starts=losses.segment_starts,
        d_max=20,
        radius=domain.radius,
        inner_radius=domain.inner_radius,
        lipschitz=losses.lipschitz,
        k_scale=0.02,
    )
    options = {"domain": domain, "y0": jnp.array([0.9, -0.2, 0.0])}
    policy = dars(jnp.zeros(n), schedule, **options)
    run = jit(
        lambda key: both(policy, losses, schedule, uniform_delay(20), key, **options)
    )
    record, trace = run(jax.random.key(8))
    require_same(record, trace, 1e-4)
    assert len(set(np.asarray(trace.arrival) - np.arange(horizon))) == 21
    np.testing.assert_allclose(
        trace.x[0], options["y0"], atol=float(schedule.delta[0]) * 1.001
    )


@pytest.mark.slow
def test_short_segments_and_late_values_equal_the_generic_driver():
    # One round; two rounds; delays longer than a segment; a sign as direction.
    problem = rademacher_blocks(16, 1, 4)
    with pytest.warns(UserWarning, match="too short to learn"):
        schedule = dars_schedule(
            16, 1, segment_starts=(0, 1, 3, 7), d_max=3, k_scale=0.9
        )
    policy = dars(jnp.zeros(1), schedule)
    single = dars_schedule(1, 1, k_scale=0.1)

    @jit
    def run(key):
        one = dars_rollout_blocked(single, norm_segments(1, 1), 0, key)
        return both(policy, problem.losses, schedule, 3, key), one

    (record, trace), one = run(jax.random.key(0))
    require_same(record, trace, 1e-6)
    assert one.x.shape == (1, 1)
    np.testing.assert_allclose(jnp.abs(one.x[0, 0]), single.delta[0], rtol=1e-6)


HORIZON = 2000
LOSSES = norm_segments(HORIZON, 2, 2)
SCHEDULE = dars_schedule(
    HORIZON, 2, segment_starts=LOSSES.segment_starts, d_max=7, k_scale=0.2
)


@pytest.mark.slow
def test_the_summary_is_the_running_sum_of_the_trace():
    key = jax.random.key(1)

    @jit
    def run(key):
        args = (SCHEDULE, LOSSES, 7, key)
        rows = [
            dars_rollout_blocked(*args, trace="summary", checkpoints=count)
            for count in (1, 7, 3000)
        ]
        return dars_rollout_blocked(*args), rows

    trace, rows = run(key)
    value = np.cumsum(np.asarray(trace.value, np.float64))
    assert [len(row.rounds) for row in rows] == [1, 7, HORIZON]
    for row in rows:
        last = np.asarray(row.rounds) - 1
        assert last[-1] == HORIZON - 1
        np.testing.assert_allclose(row.regret, trace.regret[last], rtol=1e-5)
        np.testing.assert_allclose(row.value, value[last], rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_one_delay_for_all_rounds_needs_no_table():
    def run(delays, key):
        return dars_rollout_blocked(
            SCHEDULE, LOSSES, delays, key, trace="summary", checkpoints=4
        ).regret

    key = jax.random.key(1)
    table = DelayModel(lambda key, horizon: jnp.full(horizon, 7), 7, 1)
    forms = (7, np.full(HORIZON, 7), table)
    first, *others = jit(lambda key: [run(delays, key) for delays in forms])(key)
    for other in others:
        np.testing.assert_array_equal(other, first)
    program = [
        str(jax.make_jaxpr(functools.partial(run, delays))(key)) for delays in forms
    ]
    sizes = [f"[{HORIZON}]" in text for text in program]
    assert sizes == [False, False, True]


def test_seeds_losses_radii_and_rates_are_one_trace():
    traces = []

    def run(key, alpha, delta, eta):
        traces.append(None)
        losses = strong_segments(HORIZON, 2, 2, strong_convexity=alpha)
        schedule = SCHEDULE._replace(delta=delta, eta=eta)
        return dars_rollout_blocked(
            schedule, losses, 7, key, trace="summary", checkpoints=2
        ).regret

    keys = jax.random.split(jax.random.key(0), 16)
    spread = jnp.linspace(0.5, 1.0, 16)
    lanes = (
        keys,
        spread,
        spread[:, None] * SCHEDULE.delta,
        jnp.flip(spread)[:, None] * SCHEDULE.eta,
    )
    single = jit(run)
    looped = [single(*jax.tree.map(lambda x: x[i], lanes)) for i in range(16)]
    assert len(traces) == 1
    swept = jit(jax.vmap(run))(*lanes)
    np.testing.assert_allclose(swept, jnp.stack(looped), rtol=1e-5)
    assert np.ptp(swept[:, -1]) > 1


@pytest.mark.slow
def test_the_memory_of_a_summary_does_not_grow_with_the_horizon():
    def temporaries(horizon):
        losses = norm_segments(horizon, 2)
        schedule = dars_schedule(horizon, 2, d_max=1024, k_scale=0.2)
        schedule = schedule._replace(K=np.full_like(schedule.K, 512))
        run = jax.vmap(
            lambda key: dars_rollout_blocked(
                schedule, losses, 1024, key, trace="summary"
            )
        )
        keys = jax.random.split(jax.random.key(0), 8)
        compiled = jit(run).lower(keys).compile()
        memory = compiled.memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    long, short = temporaries(2**22), temporaries(2**16)
    assert long < 2**20  # a GiB would do
    assert long <= 1.1 * short


@pytest.mark.slow
def test_a_nan_is_shown_and_ends_with_its_segment():
    bad = LOSSES._replace(
        value=lambda x, t: jnp.where(t == 500, jnp.nan, LOSSES.value(x, t))
    )
    trace = jit(lambda key: dars_rollout_blocked(SCHEDULE, bad, 7, key))(
        jax.random.key(0)
    )
    K = int(SCHEDULE.K[0])
    seen = (507 // K + 1) * K
    assert np.all(np.isfinite(trace.x[:seen]))
    assert np.all(np.isnan(trace.x[seen:1000]))
    assert np.all(np.isfinite(trace.x[1000:]))
    assert np.all(np.isnan(trace.regret[500:]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace": "all"}, "trace must be one of full, summary, got 'all'"),
        ({"checkpoints": 0}, "checkpoints must be an integer >= 1, got 0"),
        ({"delays": -1}, "delays must be >= 0, got -1"),
        ({"delays": np.ones(3, int)}, "one per round"),
        ({"strong_convexity": -1.0}, "strong_convexity must be >= 0, got -1.0"),
        ({"domain": box(jnp.full(2, 0.01))}, "delta must be at most"),
    ],
)
def test_bad_arguments_are_named(options, message):
    options = {"delays": 7} | options
    with pytest.raises(ValueError, match=message):
        dars_rollout_blocked(SCHEDULE, LOSSES, key=jax.random.key(0), **options)
