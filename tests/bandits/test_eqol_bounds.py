"""EQOL's regret bounds, recomputed from arms and rewards in NumPy's float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxopt_suite.bandits.eqol import eqol, of_round
from jaxopt_suite.core import interact
from jaxopt_suite.problems.linear_bandit import gap_env, linear_env

NOISE, CONF = 0.3, 0.01
pytestmark = pytest.mark.slow


def replayed(policy, world, horizon, num_seeds):
    """All that the bounds speak of, of shape (seeds, rounds); X is (..., arms, d)."""

    @jax.jit
    @jax.vmap
    def play(key):
        run = interact(policy, world, key, horizon, record="full")
        feedback = run.record.feedback
        return run.environment, feedback.decision.arm, feedback.reward

    keys = jax.random.split(jax.random.key(0), num_seeds)
    world_state, arms, rewards = jax.tree.map(np.asarray, play(keys))
    truth, sets = world_state.theta.astype(float), world_state.sets.astype(float)
    rounds = np.arange(horizon)
    X = sets[:, rounds % sets.shape[1]]
    x = np.take_along_axis(X, arms[..., None, None], axis=2)[:, :, 0]
    d = x.shape[-1]
    before = np.cumsum(x[..., None] * x[..., None, :], axis=1)
    V = np.eye(d) + np.concatenate([np.zeros_like(before[:, :1]), before[:, :-1]], 1)
    b = np.cumsum(rewards[..., None] * x, axis=1)
    b = np.concatenate([np.zeros_like(b[:, :1]), b[:, :-1]], 1)
    V_inv = np.linalg.inv(V)
    theta = np.einsum("stpq,stq->stp", V_inv, b)
    widths = np.sqrt(np.einsum("stap,stpq,staq->sta", X, V_inv, X))
    beta = NOISE * np.sqrt(2 * np.log(1 / CONF) + np.linalg.slogdet(V)[1]) + 1.0
    error = theta - truth[:, None]
    error = np.sqrt(np.einsum("stp,stpq,stq->st", error, V, error))
    means, estimates = (
        np.einsum("stap,stp->sta", X, np.broadcast_to(t, theta.shape))
        for t in (truth[:, None], theta)
    )
    last = np.linalg.slogdet(np.eye(d) + np.einsum("stp,stq->spq", x, x))[1]
    return {
        "rounds": rounds,
        "arms": arms,
        "widths": widths,
        "beta": beta,
        "inside": error <= beta,
        "means": means,
        "estimates": estimates,
        "last_logdet": last,
        "last_beta": NOISE * np.sqrt(2 * np.log(1 / CONF) + last) + 1.0,
        "regret": means.max(-1) - np.take_along_axis(means, arms[..., None], 2)[..., 0],
    }


def at(values, arms):
    return np.take_along_axis(values, arms[..., None], axis=2)[..., 0]


def default_c1(run, d, a=0.1):
    return a * run["beta"] * np.sqrt((run["rounds"] + 1) / d)


SCHEDULES = {
    "default": ({}, lambda run: (default_c1(run, 8), run["beta"])),
    "numbers": ({"c1": 2.0, "c2": 0.5}, lambda run: (2.0, 0.5)),
    "small": (
        {"a": 0.05, "c2": lambda state: 0.3 * _radius(state)},
        lambda run: (default_c1(run, 8, 0.05), 0.3 * run["beta"]),
    ),
    "waves": (
        {
            "c1": of_round(lambda t: jnp.log(t + 2.0)),
            "c2": of_round(lambda t: 2 + jnp.sin(t.astype(float))),
        },
        lambda run: (np.log(run["rounds"] + 2), 2 + np.sin(run["rounds"])),
    ),
}


def _radius(state):
    return NOISE * jnp.sqrt(2 * jnp.log(1 / CONF) + state.logdet) + 1.0


@functools.cache
def pool_run(name):
    policy = eqol(8, noise=NOISE, conf=CONF, **SCHEDULES[name][0])
    world = linear_env(8, 20, noise=NOISE, arms="pool", pool=10)
    return replayed(policy, world, 1500, 8)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_round_pays_at_most_for_exploration_and_the_residual(name):
    run = pool_run(name)
    c1, c2 = (np.broadcast_to(c, run["beta"].shape) for c in SCHEDULES[name][1](run))
    w, beta, best = run["widths"], run["beta"], run["means"].argmax(-1)
    bonus = np.minimum(c1[..., None] * w**2, c2[..., None] * w)
    exploration = at(bonus + beta[..., None] * w, run["arms"])
    residual = np.maximum(0, at(beta[..., None] * w - bonus, best))
    # The rounds that float32 plays are those of the index, up to rounding.
    index = run["estimates"] + bonus
    assert (at(index, run["arms"]) >= index.max(-1) - 1e-4).all()
    inside = run["inside"]
    assert inside.all(axis=1).sum() >= 7
    assert (run["regret"] <= exploration + residual + 1e-4)[inside].all()
    short = np.maximum(beta**2 / (4 * c1), (beta - c2) * at(w, best))
    assert (residual <= short + 1e-12).all()
    # Quasi-optimism happens: the best arm's index is below its mean.
    assert (at(index, best) < run["means"].max(-1)).mean() > 0.05 or name == "waves"


def test_the_summed_bound_holds_on_every_path():
    run, d, a = pool_run("default"), 8, 0.1
    held = run["inside"].all(axis=1)
    horizon = len(run["rounds"])
    beta, last = run["last_beta"], run["last_logdet"]
    residuals = np.sum(run["beta"] ** 2 / (4 * default_c1(run, d)), axis=1)
    regret = run["regret"].sum(axis=1)
    assert (residuals <= beta * np.sqrt(d * horizon) / (2 * a)).all()
    bound = 2 * beta * np.sqrt(2 * horizon * last) + residuals
    assert (regret <= bound)[held].all()
    assert regret.mean() < 30


def test_the_bound_in_the_gap_holds_on_every_path():
    d, a, horizon, gap = 5, 0.1, 4000, 0.2
    policy = eqol(d, noise=NOISE, conf=CONF)
    run = replayed(policy, gap_env(d, 20, gap, noise=NOISE), horizon, 8)
    beta, last = run["last_beta"], run["last_logdet"]
    n0 = np.minimum(horizon, d * beta**2 / (4 * a**2 * gap**2))
    bound = 2 * beta * np.sqrt(2 * n0 * last) + beta * np.sqrt(d * n0) / (2 * a)
    bound += 32 * beta**2 * last / gap
    held = run["inside"].all(axis=1)
    assert held.sum() >= 7
    assert (run["regret"].sum(axis=1) <= bound)[held].all()
