"""Projections against a quadratic program, radii against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from jaxopt_suite.bandits.convex_sets import box, centre_like, l2_ball, simplex

N = 3
HALF = np.array([0.5, 1.0, 2.0])
CORNER = (np.vstack([-np.eye(N), np.ones(N)]), np.array([0, 0, 0, 1.0]))
SIDES = (np.vstack([np.eye(N), -np.eye(N)]), np.concatenate([HALF, HALF]))
# Name to the set and to "A x <= b"; None is the ball.
SETS = {
    "ball": (l2_ball(0.7), None),
    "box": (box(jnp.asarray(HALF)), SIDES),
    "simplex": (simplex(N), CORNER),
}


PROJECT = {name: jax.jit(domain.project) for name, (domain, _) in SETS.items()}
CENTRES = {
    name: np.asarray(centre_like(domain, jnp.zeros(N)), np.float64)
    for name, (domain, _) in SETS.items()
}


def excess(name, x, shrink=1.0):
    """How far the farthest x is outside the set shrunk by ``shrink``."""
    back = CENTRES[name] + (np.asarray(x, np.float64) - CENTRES[name]) / shrink
    if SETS[name][1] is None:
        return shrink * (np.linalg.norm(back, axis=-1).max() - 0.7)
    A, b = SETS[name][1]
    return shrink * np.max(back @ A.T - b)


@pytest.mark.parametrize("name", SETS)
def test_projection_is_the_nearest_point(name):
    rng = np.random.default_rng(0)
    project = PROJECT[name]
    for shrink in (1.0, 0.6, 0.05):
        for y in rng.normal(size=(4, N)) * 1.5:
            got = np.asarray(project(jnp.asarray(y, jnp.float32), shrink), np.float64)
            solved = optimize.minimize(
                lambda x, y=y: np.sum((x - y) ** 2),
                CENTRES[name],
                constraints={
                    "type": "ineq",
                    "fun": lambda x, s=shrink: (
                        -np.array([excess(name, x, s)])
                        if SETS[name][1] is None
                        else s
                        * (
                            SETS[name][1][1]
                            - SETS[name][1][0]
                            @ (CENTRES[name] + (x - CENTRES[name]) / s)
                        )
                    ),
                },
                method="SLSQP",
                options={"ftol": 1e-14},
            )
            np.testing.assert_allclose(got, solved.x, atol=2e-5)
            inside = jnp.asarray(CENTRES[name] + 0.1 * shrink * (got - CENTRES[name]))
            np.testing.assert_allclose(project(inside, shrink), inside, atol=1e-7)


@pytest.mark.parametrize("name", SETS)
def test_what_is_played_around_a_projected_point_is_in_the_set(name):
    domain, _ = SETS[name]

    r, delta = domain.inner_radius, 0.8 * domain.inner_radius
    rng = np.random.default_rng(0)
    u = rng.normal(size=(500, N))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    far = jnp.asarray(3 * rng.normal(size=(500, N)), jnp.float32)
    y = jax.jit(jax.vmap(domain.project, (0, None)))(far, 1 - delta / r)
    assert excess(name, y, 1 - delta / r) <= 1e-6
    assert -0.05 <= excess(name, y + delta * u) <= 1e-5 * domain.radius


@pytest.mark.parametrize("name", ["box", "simplex"])
def test_radii_are_those_of_the_polytope(name):
    domain, (A, b) = SETS[name][0], SETS[name][1]
    slack = (b - A @ CENTRES[name]) / np.linalg.norm(A, axis=1)
    np.testing.assert_allclose(domain.inner_radius, slack.min(), rtol=1e-6)
    if name == "box":
        corners = HALF * np.array(np.meshgrid(*[[-1, 1]] * N)).reshape(N, -1).T
    else:
        corners = np.vstack([np.zeros(N), np.eye(N)])
    farthest = np.linalg.norm(corners - CENTRES[name], axis=1).max()
    np.testing.assert_allclose(domain.radius, farthest, rtol=1e-6)


def test_the_whole_tree_is_one_point():
    flat, tree = jnp.array([3.0, 0.0, 4.0]), {"a": jnp.array([3.0, 0.0]), "b": 4.0}
    mixed = box({"a": jnp.ones(2), "b": 2.0})

    @jax.jit
    def project(y, tree):
        narrow = simplex(N), l2_ball(1.0), box(jnp.array([1.0, 1.0, 2.0]))
        trees = *narrow[:2], mixed
        return [d.project(y, 0.5) for d in narrow], [
            d.project(tree, 0.5) for d in trees
        ]

    for wanted, got in zip(*project(flat, tree), strict=True):
        got = np.append(np.asarray(got["a"]), got["b"])
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert mixed.inner_radius == 1.0
    np.testing.assert_allclose(mixed.radius, np.sqrt(6), rtol=1e-6)


@pytest.mark.parametrize("name", SETS)
def test_a_set_shrunk_to_nothing_is_its_centre(name):
    for y in (jnp.array([1.0, -2.0, 3.0]), jnp.asarray(CENTRES[name], jnp.float32)):
        np.testing.assert_allclose(PROJECT[name](y, 0.0), CENTRES[name], atol=1e-7)


@pytest.mark.parametrize("name", SETS)
def test_nan_is_not_hidden(name):
    assert np.isnan(PROJECT[name](jnp.array([jnp.nan, 0.0, 0.0]), 0.5)).any()


def test_radii_may_be_traced():
    @jax.jit
    def look(radius, half):
        sides = box(half)
        y = jnp.array([3.0, 4.0])
        return l2_ball(radius).project(y, 1.0), sides.radius, sides.inner_radius

    ball, outer, inner = look(1.0, jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(ball, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose((outer, inner), (5.0, 3.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: l2_ball(0.0), "radius must be > 0, got 0.0"),
        (lambda: box(jnp.array([1.0, 0.0])), "half_widths must be > 0"),
        (lambda: box(()), "half_widths must have a leaf"),
        (lambda: simplex(0), "n must be an integer >= 1, got 0"),
        (lambda: simplex(2).project(jnp.zeros(3), 1.0), "n of the simplex must be 3"),
        (lambda: box(1.0).project(jnp.zeros(2), 1.0), "half_widths must have the"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
