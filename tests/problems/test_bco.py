"""Loss sequences against NumPy formulas, their constants against samples of the set."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.core import Environment
from jaxopt_suite.problems import bco, bco_losses, bco_lower_bounds

T, N = 24, 3
STARTS = (0, 5, 6, 17)


def centre(j):
    return np.eye(1, N)[0] * (0.5 if j % 2 == 0 else -0.5)


def market(j):
    return np.array([1.4 if (i + j) % 2 == 0 else 0.6 for i in range(N)])


def turning(t):
    angle = 2 * np.pi * t / 7
    return 0.5 * np.array([np.cos(angle), np.sin(angle), 0.0])


# Name to the sequence and its loss of (x, segment, round), written out in NumPy.
FAMILIES = {
    "norm": (
        bco_losses.norm_segments(T, N, segment_starts=STARTS),
        lambda x, j, t: np.linalg.norm(x - centre(j)) - 0.5,
    ),
    "strong": (
        bco_losses.strong_segments(T, N, strong_convexity=0.7, segment_starts=STARTS),
        lambda x, j, t: (
            0.35 * np.linalg.norm(x - centre(j)) ** 2
            + 0.5 * np.linalg.norm(x - centre(j))
            - 0.5
        ),
    ),
    "quadratic": (
        bco_losses.quadratic_segments(
            T, N, strong_convexity=0.7, segment_starts=STARTS
        ),
        lambda x, j, t: 0.35 * np.sum((x - centre(j)) ** 2) - 0.175,
    ),
    "linear": (
        bco_losses.linear_segments(T, N, lipschitz=2.0, segment_starts=STARTS),
        lambda x, j, t: (-1) ** j * 2.0 * x[0],
    ),
    "pricing": (
        bco_losses.pricing_segments(T, N, segment_starts=STARTS),
        lambda x, j, t: -2 / N * np.sum((1 + x) / 2 * (market(j) - (1 + x) / 2)),
    ),
    "drifting": (
        bco_losses.drifting(T, N, period=7),
        lambda x, j, t: np.linalg.norm(x - turning(t)) - 0.5,
    ),
}


def points_of(name, count):
    """Uniform in the box, or in the ball and on the ray through +-e_1 to its ends."""
    rng = np.random.default_rng(0)
    if name == "pricing":
        corners = np.array(list(itertools.product((-1.0, 1.0), repeat=N)))
        return np.concatenate([corners, rng.uniform(-1, 1, (count, N))])
    inside = rng.normal(size=(count, N))
    inside *= rng.uniform(size=(count, 1)) ** (1 / N) / np.linalg.norm(
        inside, axis=1, keepdims=True
    )
    ends = np.zeros((5, N))
    ends[:, 0] = (-1, -0.5, 0, 0.5, 1)
    return np.concatenate([ends, inside])


def segment_of(t):
    return np.searchsorted(STARTS, t, side="right") - 1


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """Values of all rounds at points of the set, in one compile per family."""
    losses, formula = FAMILIES[request.param]
    points = points_of(request.param, 300)

    @jax.jit
    def look(points, rounds):
        values = jax.vmap(jax.vmap(losses.value, (0, None)), (None, 0))
        best = jax.vmap(losses.minimizer)(rounds)
        return values(points, rounds), best, jax.vmap(losses.min_value)(rounds)

    seen = look(jnp.asarray(points, jnp.float32), jnp.arange(T))
    return losses, formula, points, *map(np.asarray, seen)


def test_values_are_those_of_the_formula_in_every_round(family):
    _, formula, points, values, _, _ = family
    expected = [[formula(x, segment_of(t), t) for x in points] for t in range(T)]
    np.testing.assert_allclose(values, expected, atol=2e-6)


def test_no_point_of_the_set_is_better_than_the_minimizer(family):
    _, formula, _, values, best, least = family
    best = best.astype(float)
    assert np.linalg.norm(best, axis=1).max() <= 1 + 1e-6  # which the box has, too
    at_best = [formula(best[t], segment_of(t), t) for t in range(T)]
    np.testing.assert_allclose(least, at_best, atol=1e-6)
    assert np.all(values >= least[:, None] - 1e-6)


def test_the_constants_hold_on_the_set(family):
    losses, formula, points, values, _, _ = family
    assert np.abs(values).max() <= losses.bound * (1 + 1e-6)
    # The losses are the formula's, as the first test of this family shows.
    at = lambda rows: np.array([formula(x, 0, 0) for x in rows])  # noqa: E731
    middle, gap = (points[1:] + points[:-1]) / 2, points[1:] - points[:-1]
    far = np.linalg.norm(gap, axis=1)
    sag = (at(points[1:]) + at(points[:-1])) / 2 - at(middle)
    assert np.all(sag >= losses.strong_convexity / 8 * far**2 - 1e-12)
    near = np.concatenate([points[:-1] + 1e-4 * gap, points[:-1] - 1e-4 * gap])
    both = np.concatenate([points[:-1], points[:-1]])
    slopes = np.abs(at(near) - at(both)) / np.linalg.norm(near - both, axis=1)
    inside = np.max(np.abs(near), axis=1) <= 1
    largest = slopes[inside].max()
    assert 0.8 * losses.lipschitz <= largest <= losses.lipschitz * (1 + 1e-3)


def test_published_constants_on_the_unit_ball():
    strong = bco_losses.strong_segments(T, N)
    assert (strong.bound, strong.lipschitz, strong.strong_convexity) == (1.375, 2.0, 1)
    worst = jnp.array([-1.0, 0.0, 0.0])
    assert float(strong.value(worst, 0)) == 1.375
    assert float(bco_losses.norm_segments(T, N).value(worst, 0)) == 1.0
    assert float(bco_losses.quadratic_segments(T, N).value(worst, 0)) == 0.875


@pytest.mark.parametrize("count", [1, 4, 100])
def test_segments_are_equal_and_found_from_the_round(count):
    starts = bco.equal_segments(800, count)
    assert starts.tolist() == [800 // count * j for j in range(count)]
    found = jax.vmap(bco.segment_index(starts))(jnp.arange(800))
    np.testing.assert_array_equal(found, np.arange(800) // (800 // count))
    assert np.ptp(np.diff([*bco.equal_segments(2**24 + 5, 7), 2**24 + 5])) <= 1


class Decision(NamedTuple):
    x: Any


def run(world: Environment, keys, step_keys, points):
    """Values and regrets, one run for each pair of keys, in one compile."""

    def play(key, step_key):
        def step(state, x):
            state, _, answer = world.step(state, Decision(x), step_key)
            return state, jnp.stack([answer.value, answer.regret])

        return jax.lax.scan(step, world.init(key)[0], jnp.asarray(points))[1]

    return np.asarray(jax.jit(jax.vmap(play))(keys, step_keys)).swapaxes(1, 2)


def test_the_environment_counts_rounds_and_pays_nothing_at_the_minimizer():
    losses = bco_losses.strong_segments(6, 2, 2)
    keys = jax.random.split(jax.random.key(0), 1)
    best = [[0.5, 0.0]] * 3 + [[-0.5, 0.0]] * 3
    moved = bco.bco_env(losses)
    np.testing.assert_array_equal(run(moved, keys, keys, best)[0, 1], 0)
    value, regret = run(moved, keys, keys, best[:3] * 2)[0]
    np.testing.assert_allclose(value, [-0.5] * 3 + [0.5] * 3)
    np.testing.assert_allclose(regret, [0] * 3 + [1] * 3)


def test_a_constant_changes_values_and_not_regret():
    losses = bco_losses.norm_segments(4, 2)
    moved = bco.offset_losses(losses, 5.0)
    assert moved.bound == 6.0
    points, keys = np.eye(2).tolist() * 2, jax.random.split(jax.random.key(0), 1)
    plain = run(bco.bco_env(losses), keys, keys, points)[0]
    shifted = run(bco.bco_env(moved), keys, keys, points)[0]
    np.testing.assert_allclose(shifted - plain, [[5.0] * 4, [0.0] * 4], atol=1e-6)


def test_signs_come_from_the_key_of_init_alone():
    problem = bco_lower_bounds.rademacher_blocks(16, 2, 2, 2, lipschitz=3.0, radius=2.0)
    keys = jax.random.split(jax.random.key(0), 3)
    first, step = keys[np.array([0, 0, 1])], keys[np.array([1, 2, 1])]
    world, points = bco.bco_env(problem.losses), [[1.0, 0.5]] * 16
    (value, regret), other_step, other_first = run(world, first, step, points)
    np.testing.assert_array_equal(other_step[0], value)
    assert np.any(other_first[0] != value)
    signs = value[::2] / 3
    assert set(np.abs(signs)) == {1.0}
    np.testing.assert_array_equal(np.repeat(signs, 2), value / 3)
    # The best point of a segment is an end of the diameter: minus the sum's sign.
    walks = signs.reshape(2, 4).sum(axis=1)
    best = -3 * 2 * 2 * np.abs(walks)
    segments = value.reshape(2, 8).sum(axis=1)
    np.testing.assert_allclose(regret.reshape(2, 8).sum(axis=1), segments - best)


@pytest.mark.parametrize("blocks", [1, 2, 3, 6, 7])
def test_expected_regret_is_the_mean_over_all_signs(blocks):
    walks = np.abs(np.sum(list(itertools.product((-1, 1), repeat=blocks)), axis=1))
    problem = bco_lower_bounds.rademacher_blocks(
        15 * blocks, 2, 5, 3, lipschitz=2.0, radius=0.5
    )
    np.testing.assert_allclose(problem.regret, 3 * 5 * 2.0 * 0.5 * walks.mean())
    delays = problem.delays(jax.random.key(0), 10)
    assert delays.tolist() == [4, 3, 2, 1, 0] * 2


def test_the_strong_bound_is_the_mean_of_both_signs_at_the_best_guess():
    problem = bco_lower_bounds.strong_first_block(24, 2, 4, 3, strong_convexity=2.0)

    @jax.jit
    @jax.vmap
    def mean(x):
        signs = jnp.array([[-1] * 3, [1] * 3], jnp.int8)
        value = lambda s: problem.losses.losses(s).value(jnp.array([x, 0.0]), 0)  # noqa: E731
        return jnp.mean(jax.vmap(value)(signs))

    np.testing.assert_allclose(
        problem.regret, 3 * 4 * mean(jnp.linspace(-1, 1, 201)).min(), rtol=1e-6
    )
    assert problem.delays(jax.random.key(0), 3).tolist() == [4, 4, 4]


def test_constants_may_be_traced_in_one_trace():
    traces = []

    @jax.jit
    def value(alpha, offset, slope, x):
        traces.append(None)
        strong = bco_losses.strong_segments(8, 2, 2, strong_convexity=alpha)
        moved = bco.offset_losses(strong, offset)
        random = bco_lower_bounds.rademacher_blocks(8, 2, 2, lipschitz=slope)
        drawn = random.losses.losses(random.losses.draw(jax.random.key(0)))
        return moved.value(x, 0), moved.bound, jnp.abs(drawn.value(x, 0)), random.regret

    x = jnp.array([-1.0, 0.0])
    np.testing.assert_allclose(value(1.0, 0.0, 1.0, x), (1.375, 1.375, 1.0, 3.0))
    np.testing.assert_allclose(value(2.0, 1.0, 2.0, x), (3.5, 3.5, 2.0, 6.0))
    assert len(traces) == 1


def test_wide_points_keep_their_precision():
    with jax.enable_x64(True):
        x = jnp.array([0.1, 0.2, 0.3])
        for name in ("strong", "pricing"):
            losses, formula = FAMILIES[name]
            got = jax.jit(losses.value)(x, 3)
            assert got.dtype == jnp.float64
            np.testing.assert_allclose(got, formula(np.asarray(x), 0, 3), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bco_losses.norm_segments(0, 2), "horizon must be an integer >= 1"),
        (lambda: bco_losses.norm_segments(4, 0), "n must be an integer >= 1, got 0"),
        (lambda: bco_losses.norm_segments(4, 2, 5), "num_segments must be at most"),
        (lambda: bco_losses.pricing_segments(4, 2, 0), "num_segments must be an"),
        (
            lambda: bco_losses.strong_segments(4, 2, strong_convexity=-1.0),
            "strong_convexity must be >= 0, got -1.0",
        ),
        (
            lambda: bco_losses.quadratic_segments(4, 2, strong_convexity=0.0),
            "strong_convexity must be > 0, got 0.0",
        ),
        (
            lambda: bco_losses.linear_segments(4, 2, lipschitz=0.0),
            "lipschitz must be > 0",
        ),
        (lambda: bco_losses.drifting(4, 1, period=3), "n must be an integer >= 2"),
        (lambda: bco_losses.drifting(4, 2, period=0), "period must be > 0, got 0"),
        (lambda: bco.bco_env(3), "losses must be a LossSequence or RandomLosses"),
        (
            lambda: bco_lower_bounds.rademacher_blocks(16, 2, 3),
            "d must divide the segment length 16, got 3",
        ),
        (
            lambda: bco_lower_bounds.strong_first_block(16, 2, 4, 3),
            "num_segments must divide the horizon 16, got 3",
        ),
        (
            lambda: bco_lower_bounds.strong_first_block(16, 2, 0),
            "d must be an integer >= 1, got 0",
        ),
        *(
            (
                lambda starts=starts: bco_losses.norm_segments(
                    4, 2, segment_starts=starts
                ),
                "segment_starts must be integers that begin with 0",
            )
            for starts in [(1, 2), (0, 2, 2), (0, 4), (0.0, 1.0), ()]
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
