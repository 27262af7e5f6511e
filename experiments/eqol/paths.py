"""Round by round: the regret bound, quasi-optimism, and the geometry of the radii."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.eqol.bounds import cost_of_exploration
from experiments.eqol.config import Config
from experiments.eqol.policies import CONF, World
from experiments.eqol.runs import compiled
from experiments.figures import GREY, PALETTE, log_axes, new_figure, plot_spread
from experiments.results import Metric
from jaxopt_suite import bandits
from jaxopt_suite.bandits.eqol import capped_bonus
from jaxopt_suite.core import interaction_loop

WORLD = World(8, 20, 0.3, "pool", 10)
SCHEDULES = (
    "a=.1, cap=1",
    "constants 2 and .5",
    "a=.05, cap=.3",
    "log(t+2) and 2+sin(t)",
)
MULTIPLIERS = np.geomspace(0.01, 10.0, 50)
# What rounding may add to a bound.
SLACK = 1e-4


def factors(number, state) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The radius, and the factors of both branches by schedule ``number``."""
    beta = bandits.ridge_radius(state, noise=WORLD.noise, conf=CONF)
    t = state.count.astype(beta.dtype)
    usual = beta * jnp.sqrt((t + 1) / WORLD.d)
    quadratic = jnp.stack([0.1 * usual, 2.0 + 0 * t, 0.05 * usual, jnp.log(t + 2)])
    linear = jnp.stack([beta, 0.5 + 0 * t, 0.3 * beta, 2 + jnp.sin(t)])
    return beta, quadratic[number], linear[number]


class Round(NamedTuple):
    """What is seen of one round; the arms' radii and widths come with the first four.

    Attributes:
        held: the true parameter was in the confidence ellipsoid.
        broken: it was, and the regret exceeded its bound.
        residual_broken: the quasi-optimistic residual exceeded its bound.
        below: the best arm's index was below its true value.
        shrunk: which UCBs of one radius for all arms would play this arm.
        spread: largest radius over the smallest.
        regret: of this round.
        residual: this round's part of the summed bound, ``beta^2 / (4 c1)``.
        widths: of all arms.
        radii: of all arms.
    """

    held: Any
    broken: Any
    residual_broken: Any
    below: Any
    shrunk: Any
    spread: Any
    regret: Any
    residual: Any
    widths: Any
    radii: Any


def look(number, state, gram, decision) -> Round:
    """Checks one round: the states before it, and what was played."""
    ridge, features, theta = state.policy, state.context.features, state.environment[0]
    beta, c1, c2 = factors(number, ridge)
    means = jnp.matmul(features, theta, precision="highest")
    values = bandits.ridge_predictions(ridge, features)
    widths = bandits.ridge_widths(ridge, features)
    bonuses = capped_bonus(widths, c1, c2)
    arm, best = decision.arm, jnp.argmax(means)
    error = ridge.theta - theta
    held = jnp.sqrt(error @ gram @ error) <= beta
    residual = jnp.maximum(beta * widths[best] - bonuses[best], 0)
    regret = means[best] - means[arm]
    allowed = bonuses[arm] + beta * widths[arm] + residual
    quarter = beta**2 / (4 * c1)
    optimistic = jnp.where(widths[best] >= c2 / c1, 0.0, quarter)
    capped = jnp.maximum(quarter, (beta - c2) * widths[best])
    residual_bound = jnp.where(c2 >= beta, optimistic, capped)
    shrunk = jnp.argmax(values + jnp.asarray(MULTIPLIERS)[:, None] * widths, axis=1)
    radii = jnp.minimum(c1 * widths, c2)
    return Round(
        held,
        held & (regret > allowed + SLACK),
        residual > residual_bound + SLACK,
        values[best] + bonuses[best] < means[best],
        shrunk == arm,
        jnp.max(radii) / jnp.min(radii),
        regret,
        quarter,
        widths,
        radii,
    )


def watch(number, key, horizon: int) -> dict[str, Any]:
    """One run, looked at in every round."""
    policy = bandits.eqol(
        WORLD.d,
        c1=lambda state: factors(number, state)[1],
        c2=lambda state: factors(number, state)[2],
    )
    loop = interaction_loop(policy, WORLD.environment({}), horizon, record="full")

    def step(carry, _):
        state, gram = carry
        row, after = loop.update(None, state)
        x = row.decision.x
        seen = look(number, state, gram, row.decision)
        return (after, gram + jnp.outer(x, x)), seen

    (state, _), rounds = jax.lax.scan(
        step, (loop.init(key), jnp.eye(WORLD.d)), length=horizon
    )
    middle = horizon // 2
    return {
        "held": rounds.held.all(),
        "broken": rounds.broken.sum(),
        "residual_broken": rounds.residual_broken.sum(),
        "below": rounds.below.mean(),
        "no_shrunk": (~rounds.shrunk.any(axis=1)).mean(),
        "shrunk": rounds.shrunk.mean(axis=0),
        "spread": rounds.spread,
        "regret": rounds.regret.sum(),
        "residual": rounds.residual.sum(),
        "logdet": state.policy.logdet,
        "widths": rounds.widths[middle],
        "radii": rounds.radii[middle],
    }


@compiled
def _watch_all(keys, horizon_marks):
    horizon = len(horizon_marks)
    over_seeds = jax.vmap(lambda n, k: watch(n, k, horizon), (None, 0))
    return jax.vmap(over_seeds, (0, None))(jnp.arange(len(SCHEDULES)), keys)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """What :func:`watch` sees, with leading axes (schedules, seeds)."""
    keys = jax.random.split(key, config.few_seeds)
    return _watch_all(keys, np.zeros(config.path_horizon, bool))


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims of the rounds."""
    axes = (("schedule", SCHEDULES), ("seed", range(config.few_seeds)))
    names = ("broken", "residual_broken", "below", "no_shrunk", "regret", "held")
    metrics = {f"paths_{name}": Metric(data[name], axes) for name in names}
    return metrics, {"geometry": _figure(config, data)}, tuple(_claims(config, data))


def _claims(config, data):
    where = f"d={WORLD.d}, K={WORLD.K}, pool of {WORLD.pool}, R={WORLD.noise:g}"
    rounds = f"{data['broken'].size * config.path_horizon:,} rounds of four schedules"
    yield Claim(
        f"{where}: of {rounds}, those where theta* is in the ellipsoid and the regret "
        "exceeds its bound",
        data["broken"].sum(),
        at_most(0.0),
    )
    yield Claim(
        f"{where}: of {rounds}, those where the quasi-optimistic residual exceeds its "
        "bound",
        data["residual_broken"].sum(),
        at_most(0.0),
    )
    # Bounds are promised where the ellipsoid held the parameter throughout.
    yield Claim(
        f"{where}: share of seeds with theta* in the ellipsoid in all rounds, least "
        "schedule",
        data["held"].mean(axis=1).min(),
        at_least(7 / 8),
    )
    below = data["below"][0]
    yield Claim(
        f"{where}: share of rounds in which EQOL's index of the best arm is below its "
        "true value, so that it is not optimistic",
        below.mean(),
        at_least(0.05),
    )
    held = data["held"][0]
    cost = cost_of_exploration(data["logdet"][0], config.path_horizon, WORLD.noise)
    share = data["regret"][0] / (cost + data["residual"][0])
    yield Claim(
        f"{where}: EQOL's regret over the summed bound, worst seed where theta* is in "
        "the ellipsoid throughout",
        share[held].max() if held.any() else np.nan,
        at_most(1.0),
    )
    yield Claim(
        f"{where}: largest over smallest radius among the arms of a round, median "
        "(1 for any UCB)",
        np.median(data["spread"][0]),
    )
    yield Claim(
        f"{where}: share of rounds in which no UCB of 50 smaller radii plays EQOL's "
        "arm",
        data["no_shrunk"][0].mean(),
    )
    # The quadratic branch is convex in w: a UCB of radius 2 c1 w, w of the arm played,
    # plays the same arm. But that radius changes from round to round.
    yield Claim(
        f"{where}: share of rounds in which the one of these radii that agrees most "
        "often plays another arm than EQOL",
        1 - data["shrunk"][0].mean(axis=0).max(),
    )


def _figure(config, data):
    figure, panels = new_figure(
        f"EQOL's radii (d={WORLD.d}, K={WORLD.K}, pool of {WORLD.pool}, "
        f"R={WORLD.noise:g})",
        columns=2,
    )
    left, right = panels[0]
    widths, radii = data["widths"][0].ravel(), data["radii"][0].ravel()
    left.plot(
        widths,
        radii,
        ".",
        linestyle="",
        label=f"EQOL, arms of {config.few_seeds} seeds",
    )
    beta = WORLD.noise * np.sqrt(2 * np.log(1 / CONF) + data["logdet"][0].mean()) + 1
    for level, label, colour in (
        (beta, "OFUL", PALETTE[1]),
        (WORLD.noise, "LinUCB, alpha=R", GREY),
    ):
        left.axhline(level, color=colour, marker="", label=label, linewidth=1.2)
    left.set(
        xlabel="width w of an arm",
        ylabel="radius of its ellipsoid",
        title=f"in round {config.path_horizon // 2:,}",
    )
    left.legend()
    rounds = np.arange(1, config.path_horizon + 1)
    plot_spread(right, rounds[::10], data["spread"][0].T[::10], "EQOL")
    right.lines[0].set_marker("")
    right.axhline(1.0, color=GREY, marker="", linewidth=1.2, label="any UCB")
    right.set(
        xlabel="rounds",
        ylabel="largest / smallest radius",
        title="among the arms of a round: median, 5% to 95%",
    )
    log_axes(right, "x")
    right.legend()
    return figure
