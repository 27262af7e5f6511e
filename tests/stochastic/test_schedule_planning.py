"""Planned schedules, judged by the law computed without the planner."""

import itertools

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxopt_suite.stochastic import annealing_oracle, plan_schedule, staircase
from jaxopt_suite.stochastic.diffusion_oracle import gibbs

STD = 8.0
GRID = np.linspace(-4.4, 4.4, 177)
START = gibbs(lambda x: (x - 3) ** 2 / 2, 0.25, GRID)


def waves(x):
    lib = np if isinstance(x, np.ndarray) else jnp
    return x**2 + 1 - lib.cos(2 * np.pi * x)


def tilted(x):
    return waves(x) + 0.3 * x


def expected(h, tilt, temperatures, stage_length):
    """E h after the stages, in NumPy."""
    slope = lambda x: 2 * x + 2 * np.pi * np.sin(2 * np.pi * x) + tilt  # noqa: E731
    rates = 2 * np.asarray(temperatures) / STD**2
    p = annealing_oracle.propagate_stages(slope, GRID, rates, STD, START, stage_length)
    return p @ h(GRID)


@pytest.mark.parametrize(
    ("h", "tilt"), [(waves, 0.0), pytest.param(tilted, 0.3, marks=pytest.mark.slow)]
)
def test_the_plan_is_exact_a_minimum_and_beats_every_geometric_decay(h, tilt):
    # The tilted function has a negative minimum and cannot be folded.
    plan = plan_schedule(
        h, 5 * 40, grid=GRID, p0=START, noise_std=STD, hottest=1.2, coldest=0.2,
        num_stages=5,
    )  # fmt: skip
    assert plan.stage_length == 40
    assert np.all((plan.temperatures >= 0.2 - 1e-9) & (plan.temperatures <= 1.2 + 1e-9))
    np.testing.assert_allclose(plan.rates, 2 * plan.temperatures / 64, rtol=1e-12)
    start = np.geomspace(1.2, 0.2, 5)
    np.testing.assert_allclose(
        [plan.geometric_value, plan.expected_value],
        [expected(h, tilt, T, 40) for T in (start, plan.temperatures)],
        rtol=1e-6,
    )
    pairs = itertools.product(np.geomspace(0.3, 1.2, 7), np.geomspace(0.2, 0.3, 3))
    best = min(expected(h, tilt, np.geomspace(*pair, 5), 40) for pair in pairs)
    # The least of tilted is -0.0125: what a plan can gain is above it.
    assert plan.expected_value < best - 0.03 * abs(best)
    assert best <= plan.geometric_value + 1e-9
    for stage, factor in itertools.product(range(5), (0.97, 1.03)):
        changed = plan.temperatures.copy()
        changed[stage] = np.clip(changed[stage] * factor, 0.2, 1.2)
        assert expected(h, tilt, changed, 40) >= plan.expected_value - 1e-6


def test_the_staircase_is_a_learning_rate():
    schedule = staircase(np.array([0.5, 0.25, 0.125]), 2)
    rates = [float(schedule(k)) for k in range(8)]
    assert rates == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    optimizer = optax.sgd(schedule)
    state = optimizer.init(jnp.zeros([]))
    for rate in rates[:5]:
        update, state = optimizer.update(jnp.ones([]), state)
        assert update == -rate


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 201}, "budget must be a multiple of num_stages=5, got 201"),
        ({"budget": 4}, "budget must be an integer >= 5, got 4"),
        ({"num_stages": 0}, "num_stages must be an integer >= 1, got 0"),
        ({"num_iterations": 0}, "num_iterations must be an integer >= 1, got 0"),
        ({"coldest": 0.0}, "coldest must be > 0, got 0"),
        ({"hottest": 0.1}, "hottest must be >= 0.2, got 0.1"),
        ({"noise_std": -1.0}, "noise_std must be > 0, got -1"),
        ({"coldest": 0.1}, "steps of at most .*= 0.025, got 0.05"),
        ({"p0": START[1:]}, "shape of the grid"),
        ({"grid": GRID[::-1]}, "grid must be increasing"),
    ],
)
def test_bad_arguments_of_the_plan_are_refused(change, message):
    good = {"h": waves, "budget": 200, "grid": GRID, "p0": START, "noise_std": STD}
    good |= {"hottest": 1.2, "coldest": 0.2, "num_stages": 5}
    with pytest.raises(ValueError, match=message):
        plan_schedule(**(good | change))


def test_bad_arguments_of_the_staircase_are_refused():
    with pytest.raises(ValueError, match=r"rates must have shape \(m,\), .*\(\)"):
        staircase(jnp.array(0.1), 2)
    with pytest.raises(ValueError, match="rates must be > 0"):
        staircase(np.array([0.1, 0.0]), 2)
    with pytest.raises(ValueError, match="stage_length must be an integer >= 1, got 0"):
        staircase(np.array([0.1]), 0)


def test_a_staircase_takes_integer_rates_lists_and_float_counts():
    schedule = staircase([2, 1], 10)
    assert schedule(0).dtype == jnp.float32
    assert [float(schedule(jnp.float32(k))) for k in (9, 10)] == [2.0, 1.0]


def test_a_function_of_numpy_cannot_be_planned_for():
    x = np.linspace(-4, 4, 81)
    with pytest.raises(ValueError, match=r"h must be made of jax\.numpy"):
        plan_schedule(
            lambda x: 1 - np.cos(x),
            16,
            grid=x,
            p0=np.full(81, 1 / 81),
            noise_std=2.0,
            hottest=1.0,
            coldest=0.1,
            num_stages=4,
        )
