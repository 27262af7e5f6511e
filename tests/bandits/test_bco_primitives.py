"""Gradients from single values: their mean, their second moments, their price."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits import bco_primitives as primitives

K, DELTA, N = 16, 0.5, 2  # K delta^2 = (n M / G)^2 with M = G = 1


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_mean_is_the_exact_gradient_of_a_quadratic(n):
    # 5 standard errors in 8 coordinates, twice: false alarm 1e-5.
    rng = np.random.default_rng(n)
    matrix = rng.normal(size=(n, n))
    matrix, slope = matrix @ matrix.T, rng.normal(size=n)
    centre, delta = rng.normal(size=n), 0.7

    @jax.jit
    def terms(key):
        def term(key):
            u = primitives.sphere_sample(key, jnp.zeros(n))
            x = centre + delta * u
            value = x @ matrix @ x / 2 + slope @ x + 0.3
            return primitives.one_point_gradient(value, u, delta, n), u

        return jax.vmap(term)(jax.random.split(key, 2**18))

    drawn, u = (np.asarray(x, np.float64) for x in terms(jax.random.key(0)))
    error = drawn.std(axis=0) / 2**9
    assert np.all(np.abs(drawn.mean(axis=0) - matrix @ centre - slope) <= 5 * error)
    np.testing.assert_allclose(np.linalg.norm(u, axis=1), 1, atol=1e-6)
    assert np.all(np.abs(u.sum(axis=0)) <= 5 * np.sqrt(2**18 / n))


def test_directions_are_uniform_over_the_whole_tree():
    example = {"a": jnp.zeros((2, 2)), "b": jnp.zeros((), jnp.bfloat16)}
    draw = jax.jit(jax.vmap(lambda key: primitives.sphere_sample(key, example)))
    u = draw(jax.random.split(jax.random.key(0), 20000))
    assert {x.dtype for x in jax.tree.leaves(u)} == {jnp.dtype(jnp.float32)}
    flat = np.concatenate(
        [np.asarray(x, np.float64).reshape(20000, -1) for x in jax.tree.leaves(u)], 1
    )
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), 1, atol=1e-6)
    # On the sphere in n = 5 dimensions: E u u^T = I / n, E u_i^2 u_j^2 = 1 / (n (n+2)),
    # 3 times that for i = j. 5 standard errors, 20 moments: false alarm 1.2e-5.
    assert np.all(np.abs(flat.mean(axis=0)) <= 5 / np.sqrt(5 * 20000))
    spread = np.sqrt((1 + 2 * np.eye(5)) / 35 - np.eye(5) / 25)
    error = np.abs(flat.T @ flat / 20000 - np.eye(5) / 5)
    assert np.all(error <= 5 * spread / np.sqrt(20000))


def test_the_normal_draw_behind_a_direction_is_never_zero():
    # The float32 uniform that jax.random.normal inverts is k / 2^22 - 1 + 2^-24.
    least = np.nextafter(np.float32(-1), np.float32(0))
    k = np.arange(2**22 - 2, 2**22 + 2, dtype=np.float32)
    assert np.all(k / np.float32(2**23) * np.float32(2) + least != 0)


@pytest.fixture(scope="module")
def sums():
    """Sums of the first w gradient terms at a fixed centre, 20000 draws of 5 K."""
    centre = jnp.array([-0.3, 0.2])

    first = jnp.arange(5 * K) < jnp.array(WIDTHS)[:, None]

    @jax.jit
    def draw(key):
        def one(key):
            keys = jax.random.split(key, 5 * K)
            u = jax.vmap(lambda k: primitives.sphere_sample(k, jnp.zeros(N)))(keys)
            x = centre + DELTA * u
            losses = jnp.linalg.norm(x - jnp.array([0.5, 0.0]), axis=1) - 0.5
            signs = jax.random.rademacher(jax.random.fold_in(key, 0), (5 * K,), float)
            term = jax.vmap(
                lambda value, u: primitives.one_point_gradient(value, u, DELTA, N)
            )
            both = jnp.stack([term(losses, u), term(signs, u)])
            return jnp.einsum("wt,vtn->vwn", first, both)

        return jax.lax.map(one, jax.random.split(key, 20000), batch_size=5000)

    total = np.asarray(draw(jax.random.key(0)), np.float64)
    square = np.mean(np.sum(total**2, axis=-1), axis=0)
    return {
        name: dict(zip(WIDTHS, row, strict=True))
        for name, row in zip(("losses", "signs"), square, strict=True)
    }


WIDTHS = (1, K // 4, K, 2 * K, 4 * K, 65, 5 * K)


@pytest.mark.parametrize("w", [K // 4, K, 4 * K])
def test_second_moments_of_gradient_sums(sums, w):
    # A relative standard error of at most 1 / sqrt(20000): 3 % is 4.2 of them.
    noise = w * (N / DELTA) ** 2
    assert sums["losses"][w] <= 1.02 * (noise + w * (w - 1))
    assert abs(sums["signs"][w] / noise - 1) <= 0.03


def test_the_drift_of_gradient_sums_is_seen(sums):
    # Over 4 K rounds the sum of the losses' terms is mostly drift: (W |grad|)^2.
    w = 4 * K
    assert 0.7 * w**2 <= sums["losses"][w] <= w * (N / DELTA) ** 2 + w * (w - 1)


@pytest.mark.parametrize("d", [0, K, 4 * K])
def test_blocks_take_the_noise_out_of_the_price_of_delay(sums, d):
    block, unseen = sums["signs"][K], sums["signs"][K + d]
    assert np.sqrt(block * unseen) / K <= 2.05 * (1.5 * K + d)


def test_without_blocks_delay_multiplies_the_noise(sums):
    # A sum of n / delta * sign * direction scales with 1 / delta, draw by draw.
    delta, d = 0.05, 64
    rescale = (DELTA / delta) ** 2
    one, unseen = rescale * sums["signs"][1], rescale * sums["signs"][1 + d]
    assert np.sqrt(one * unseen) >= 50 * 2 * (1.5 + d)


def test_block_length_and_radius_are_tied():
    assert primitives.block_length(2, 1.0, 1.0, 0.1) == 400
    assert primitives.block_length(3, 2.0, 0.5, 0.7, 0.2) == 59  # 58.78 up
    assert primitives.smoothing_radius(59, 3, 2.0, 0.5, 0.2) <= 0.7
    assert primitives.smoothing_radius(25, 5, 2.0, 4.0, 0.25) == 0.25
    swept = jax.vmap(lambda k: primitives.smoothing_radius(4, 1, 1.0, 1.0, k))
    np.testing.assert_allclose(swept(jnp.array([1.0, 4.0])), [0.5, 1.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: primitives.block_length(0, 1, 1, 1), "n must be an integer >= 1"),
        (lambda: primitives.block_length(1, 0, 1, 1), "bound must be > 0, got 0"),
        (lambda: primitives.block_length(1, 1, -1, 1), "lipschitz must be > 0, got -1"),
        (lambda: primitives.block_length(1, 1, 1, 0), "delta must be > 0, got 0"),
        (lambda: primitives.block_length(1, 1, 1, 1, 0), "k_scale must be > 0, got 0"),
        (lambda: primitives.smoothing_radius(0, 1, 1, 1), "K must be an integer >= 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
