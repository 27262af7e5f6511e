"""Schedules against the formulas in plain Python, and their one identity."""

import math
import warnings

import jax
import numpy as np
import pytest

from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.bandits.bco_two_point import two_point_schedule


def by_hand(L, n, d_max, D, r, M, G, alpha, k_scale, b):
    """One segment, step by step."""
    kappa = math.sqrt(k_scale) * n * M / G
    if alpha == 0:
        delta = math.sqrt(2 * math.sqrt(1.5) * D * kappa / (b * math.sqrt(L)))
    else:
        blocks = L / kappa**2
        for _ in range(6):
            log = math.log(math.e * max(2.0, blocks))
            delta = (4 * G * kappa**2 * log / (alpha * b * L)) ** (1 / 3)
            blocks = L * delta**2 / kappa**2
    delta = min(delta, r / 2)
    K = max(1, min(L, math.ceil((kappa / delta) ** 2)))
    delta = kappa / math.sqrt(K)
    eta = D / (2 * G * math.sqrt(L * (1.5 * K + d_max)))
    feasible = delta <= 0.9 * r
    return K, delta if feasible else r / 2, eta, feasible


def quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dars_schedule(*args, **options)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_rows_are_those_of_the_formulas(alpha):
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(200):
        n, d_max = int(rng.integers(1, 20)), int(rng.integers(0, 50))
        lengths = np.exp(rng.uniform(0, 12, 4)).astype(int) + 1
        starts = np.cumsum([0, *lengths[:-1]])
        horizon = int(lengths.sum())
        D = float(rng.uniform(0.5, 2))
        r, M, G = D * rng.uniform(0.2, 1), rng.uniform(0.2, 2), rng.uniform(0.2, 2)
        k_scale, b = rng.uniform(0.05, 2), rng.uniform(1, 4)
        d_max = min(d_max, horizon - 1)
        schedule = quiet(
            horizon,
            n,
            segment_starts=starts,
            d_max=d_max,
            radius=D,
            inner_radius=r,
            bound=M,
            lipschitz=G,
            strong_convexity=alpha,
            k_scale=k_scale,
            bias=b,
        )
        rows = [
            by_hand(int(L), n, d_max, D, r, M, G, alpha, k_scale, b) for L in lengths
        ]
        K, delta, eta, feasible = (np.array(x) for x in zip(*rows, strict=True))
        np.testing.assert_array_equal(schedule.starts, starts)
        np.testing.assert_array_equal(schedule.lengths, lengths)
        np.testing.assert_array_equal(schedule.K, K)
        np.testing.assert_allclose(schedule.delta, delta, rtol=1e-12)
        np.testing.assert_allclose(schedule.eta, eta, rtol=1e-12)
        np.testing.assert_array_equal(schedule.feasible, feasible)
        kept += feasible.sum()
    assert 200 < kept < 800  # both kinds were there


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("k_scale", [1.0, 0.2])
def test_block_length_and_radius_stay_tied(alpha, k_scale):
    seen = 0
    for n in range(1, 65):
        lengths = 2 ** np.arange(6, 23)
        schedule = quiet(
            int(lengths.sum()),
            n,
            segment_starts=np.cumsum([0, *lengths[:-1]]),
            strong_convexity=alpha,
            k_scale=k_scale,
            d_max=7,
        )
        tied = schedule.K * schedule.delta**2 / (k_scale * n**2)
        assert np.all(np.abs(tied - 1)[schedule.feasible] <= 1e-6)
        assert np.all(schedule.delta <= 0.9)
        seen += schedule.feasible.sum()
    assert seen > 500


def test_a_short_segment_is_one_block_and_says_so():
    with pytest.warns(UserWarning, match="1 of 2 segments are too short") as seen:
        schedule = dars_schedule(1003, 2, segment_starts=(0, 1000))
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert schedule.feasible.tolist() == [True, False]
    assert (schedule.K[1], schedule.delta[1]) == (3, 0.5)


def test_one_round_and_one_coordinate():
    schedule = quiet(1, 1)
    assert (schedule.K[0], schedule.delta[0]) == (1, 0.5)
    assert schedule.delta.dtype == np.float64


def test_two_points_need_no_blocks():
    schedule = two_point_schedule(
        500, 3, segment_starts=(0, 100), d_max=5, radius=2.0, lipschitz=4.0
    )
    assert schedule.K.tolist() == [1, 1]
    np.testing.assert_allclose(schedule.delta, [0.2, 0.1])
    np.testing.assert_allclose(schedule.eta, 2 / 4 / np.sqrt([100 * 24, 400 * 24]))
    wide = two_point_schedule(4, 1, inner_radius=0.4)
    assert wide.delta.tolist() == [0.2]


def traced(name):
    return lambda: jax.jit(lambda x: dars_schedule(100, 2, **{name: x}).eta[0])(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dars_schedule(0, 2), "horizon must be an integer >= 1, got 0"),
        (lambda: dars_schedule(9, 0), "n must be an integer >= 1, got 0"),
        (lambda: dars_schedule(9, 2, segment_starts=(1, 2)), "begin with 0"),
        (lambda: dars_schedule(9, 2, segment_starts=(0, 3, 3)), "strictly increase"),
        (lambda: dars_schedule(9, 2, segment_starts=(0, 9)), "below the horizon 9"),
        (lambda: dars_schedule(9, 2, d_max=-1), "d_max must be an integer >= 0"),
        (lambda: dars_schedule(9, 2, d_max=9), "d_max must be below the horizon 9"),
        (lambda: dars_schedule(9, 2, radius=0.0), "radius must be > 0, got 0.0"),
        (
            lambda: dars_schedule(9, 2, inner_radius=1.5),
            r"inner_radius must be in \(0, 1\], got 1.5",
        ),
        (lambda: dars_schedule(9, 2, bound=0.0), "bound must be > 0, got 0.0"),
        (lambda: dars_schedule(9, 2, lipschitz=-1.0), "lipschitz must be > 0"),
        (lambda: dars_schedule(9, 2, k_scale=0.0), "k_scale must be > 0, got 0.0"),
        (lambda: dars_schedule(9, 2, bias=0.0), "bias must be > 0, got 0.0"),
        (
            lambda: dars_schedule(9, 2, strong_convexity=-0.5),
            "strong_convexity must be >= 0, got -0.5",
        ),
        (lambda: two_point_schedule(9, 2, radius=-1.0), "radius must be > 0"),
        (lambda: two_point_schedule(9, 2, lipschitz=0.0), "lipschitz must be > 0"),
        (traced("bound"), "bound must be concrete"),
        (traced("strong_convexity"), "strong_convexity must be concrete"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
