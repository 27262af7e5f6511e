"""What the experiment on quasi-optimism compares, and the bounds it holds it to."""

import functools

import jax
import numpy as np
import pytest

from experiments.eqol.bounds import gap_bound
from experiments.eqol.policies import Named, World, eqol_point, index
from experiments.eqol.runs import (
    compiled,
    play,
    race,
    ratio_of_means,
    slope,
    stack_points,
)
from jaxopt_suite import bandits
from jaxopt_suite.core import interact

WORLD = World(3, 5, 0.3)
# The policies that points of one family stand for.
OWN = {
    "eqol": (eqol_point(0.2, 0.5), lambda: bandits.eqol(3, noise=0.3, a=0.2, cap=0.5)),
    "balanced": (
        eqol_point(balanced=True),
        lambda: bandits.eqol(3, noise=0.3, a="balanced"),
    ),
    "oful": (eqol_point(np.inf), lambda: bandits.oful(3, noise=0.3)),
    "linucb": (eqol_point(np.inf, 0.0, 0.4), lambda: bandits.linucb(3, alpha=0.4)),
    "greedy": (eqol_point(0.0), lambda: bandits.greedy(3)),
}


@pytest.mark.filterwarnings("ignore:cap = 0.5 is below 1")
def test_points_of_the_family_are_the_policies_they_stand_for():
    keys = jax.random.split(jax.random.key(0), 2)
    named = [Named(name, index, point) for name, (point, _) in OWN.items()]
    found = race(named, WORLD, keys, 300).regret[..., -1]

    def run(make, key):
        return interact(make(), WORLD.environment({}), key, 300).record.regret[-1]

    makers = [make for _, make in OWN.values()]
    own = compiled(
        lambda keys: [jax.vmap(functools.partial(run, m))(keys) for m in makers]
    )
    np.testing.assert_allclose(found, np.stack(own(keys)), rtol=1e-4)
    assert len(np.unique(found.round(3))) == found.size


def test_policies_that_are_the_same_run_once_and_come_back_in_order(monkeypatch):
    lanes = []

    def fake(keys, points, **options):
        lanes.append(len(points["a"]))
        return points["a"], points["a"], points["a"]

    monkeypatch.setattr("experiments.eqol.runs.play", fake)
    named = [Named(str(i), index, eqol_point(a)) for i, a in enumerate((3, 1, 3))]
    assert race(named, WORLD, None, 1).regret.tolist() == [3, 1, 3]
    assert lanes == [2]


def test_traced_with_delays_and_gaps():
    points = stack_points([{**eqol_point(), "gap": gap} for gap in (0.1, 0.2)])
    regret, _, gap = play.eval_shape(
        jax.random.split(jax.random.key(0), 3),
        points,
        family=index,
        world=World(3, 5, 0.3, "gap"),
        horizon=8,
        checkpoints=4,
        delay=2,
    )
    assert (regret.shape, gap.shape) == ((2, 3, 4), (2, 3))


def test_the_gap_bound_is_that_of_a_calculation_by_hand():
    # beta = .5 sqrt(2 log 100 + 6) + 1 = 2.9501..., once with t0 and once with T.
    beta = 0.5 * np.sqrt(2 * np.log(100) + 6) + 1
    world = World(4, 2, 0.5)
    t0 = beta**2 / 0.01 / 0.25
    wanted = 2 * beta * np.sqrt(12 * t0) + 10 * beta * np.sqrt(t0) + 384 * beta**2
    np.testing.assert_allclose(gap_bound(6.0, 10**9, world, 0.5), wanted)
    short = 2 * beta * np.sqrt(1200) + 100 * beta + 384 * beta**2
    np.testing.assert_allclose(gap_bound(6.0, 100, world, 0.5), short)


def test_ratios_and_slopes_of_means():
    seeds = np.random.default_rng(0).exponential(size=12)
    value, interval = ratio_of_means(3 * seeds, seeds)
    np.testing.assert_allclose([value, *interval[:2]], 3)
    # Means 1, 4, 16 at 1, 2, 4: a power of 2, whatever the spread.
    rows = np.array([[1.0], [4.0], [16.0]]) * np.array([0.5, 1.0, 1.5])
    value, interval = slope([1, 2, 4], rows)
    np.testing.assert_allclose(value, 2)
    assert interval.low < 2 < interval.high
