"""The scale of theory gives two rates: one in d, one in the number of arms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.eqol.policies import World
from experiments.eqol.runs import compiled, ratio_of_means, together
from experiments.figures import GREY, log_axes, new_figure
from experiments.lazy_ensemble.config import Config
from experiments.lazy_ensemble.policies import lazy_ensemble, lazy_size
from experiments.lazy_ensemble.runs import play, slope, watched
from experiments.results import Metric

NOISE, POOL = 0.3, 5
FEW_ARMS = 20
# The run on which the concentration of the members is checked.
CHECKED, CHECKED_MEMBERS = World(20, 50, NOISE), 102
CHECKED_ROUNDS, CHECKED_SEEDS, FAILURE = 1000, 4, 1e-5


def world(d: int, K: int) -> World:
    """The problem of both studies."""
    return World(d, K, NOISE, "pool", POOL)


def all_arm_counts(config: Config) -> tuple[int, ...]:
    """K of the study over K, and the one of the study over d."""
    return tuple(sorted({*config.arm_counts, FEW_ARMS}))


def final(config: Config, key, d: int, K: int, horizon: int, scale: str) -> np.ndarray:
    """Regret of every seed."""
    # The same key for both scales.
    keys = jax.random.split(jax.random.fold_in(key, 1000 * d + K), config.few_seeds)
    return np.asarray(
        play(
            keys,
            {"growth": jnp.ones(1)},
            family=lazy_ensemble(lazy_size(d, horizon), scale=scale),
            world=world(d, K),
            horizon=horizon,
        ).regret[0, :, -1]
    )


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret over K at both scales and over d at that of theory; concentration."""
    arms_key, d_key, checked_key = jax.random.split(key, 3)
    d, few, arms = config.arm_dimension, config.dimensions, all_arm_counts(config)
    horizon = config.dimension_rounds
    over = functools.partial(final, config)
    calls = [
        functools.partial(over, arms_key, d, K, config.arm_rounds, scale)
        for scale in ("theory", "finite")
        for K in arms
    ]
    calls += [
        functools.partial(over, d_key, d, K(d), horizon, "theory")
        for K in (lambda d: FEW_ARMS, lambda d: 20 * d)
        for d in few
    ]
    *found, (along, lengths) = together(
        [*calls, functools.partial(concentration, checked_key)]
    )
    split = 2 * len(arms)
    return {
        "arms": np.stack(found[:split]).reshape(2, len(arms), config.few_seeds),
        "dimensions": np.stack(found[split:]).reshape(2, len(few), config.few_seeds),
        "along": along,
        "lengths": lengths,
    }


def concentration(key) -> tuple[np.ndarray, np.ndarray]:
    """The members at the start and at every refresh, measured in float64.

    Returns:
        ``max |<x_a, D^j>| / (v ||x_a||)`` over members and arms, with the norm in the
        inverse Gram matrix, and ``max ||D^j|| / v`` over members in the Gram matrix;
        both of shape (seeds, rounds + 1), NaN in rounds without a refresh.
    """
    policy = lazy_ensemble(CHECKED_MEMBERS, scale="theory", members="explicit")(
        CHECKED, {}
    )

    def look(state):
        return state.refreshed, state.offsets / state.scale, state.ridge.V_inv

    def run(key):
        state, rows = watched(
            policy, CHECKED.environment({}), key, CHECKED_ROUNDS, look
        )
        # The start counts as a refresh.
        start = (jnp.array(True), *look(policy.init(state.keys.policy))[1:])
        rows = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), start, rows)
        return state.environment.sets[0], rows

    keys = jax.random.split(key, CHECKED_SEEDS)
    arms, rows = jax.device_get(compiled(lambda keys: jax.lax.map(run, keys))(keys))
    refreshed, offsets, inverse = rows
    found = np.full((2, *refreshed.shape), np.nan)
    for seed, t in np.argwhere(refreshed):
        V_inv, x = inverse[seed, t].astype(np.float64), arms[seed].astype(np.float64)
        D = offsets[seed, t].astype(np.float64)
        widths = np.sqrt(np.einsum("ad,de,ae->a", x, V_inv, x))
        found[0, seed, t] = np.max(np.abs(D @ x.T) / widths)
        squares = np.einsum("md,de,me->m", D, np.linalg.inv(V_inv), D)
        found[1, seed, t] = np.sqrt(squares.max())
    return found[0], found[1]


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims."""
    seeds = ("seed", range(config.few_seeds))
    metrics = {
        "arms_regret": Metric(
            data["arms"],
            (("scale", ("theory", "finite")), ("K", all_arm_counts(config)), seeds),
        ),
        "dimension_regret": Metric(
            data["dimensions"],
            (("arms", ("K=20", "K=20d")), ("d", config.dimensions), seeds),
        ),
    }
    claims = (*_concentration_claims(data), *_rate_claims(config, data))
    return metrics, {"rates": _figure(config, data)}, claims


def _concentration_claims(data):
    d, K, m = CHECKED.d, CHECKED.K, CHECKED_MEMBERS
    times = np.isfinite(data["along"]).sum(axis=1)
    where = (
        f"Scale of theory, d={d}, K={K} fixed arms, m={m}, T={CHECKED_ROUNDS:,}, at "
        f"the start and at every refresh of {CHECKED_SEEDS} seeds"
    )
    bound = np.sqrt(2 * np.log(2 * m * K * times / FAILURE))
    share = np.nanmax(data["along"], axis=1) / bound
    yield Claim(
        f"{where}: largest offset along an arm, in units of v times the arm's width, "
        f"over sqrt(2 log(2 m K epochs / {FAILURE:g}))",
        share.max(),
        at_most(1.0),
    )
    yield Claim(
        f"{where}: the longest member in units of v, least over sqrt(d)",
        np.nanmin(data["lengths"]) / np.sqrt(d),
        at_least(1.0),
    )
    bound = np.sqrt(d) + np.sqrt(2 * np.log(m * times / FAILURE))
    share = np.nanmax(data["lengths"], axis=1) / bound
    yield Claim(
        f"{where}: the longest member in units of v, largest over sqrt(d) + "
        f"sqrt(2 log(m epochs / {FAILURE:g}))",
        share.max(),
        at_most(1.0),
    )


def _rate_claims(config, data):
    arms = all_arm_counts(config)
    places = [arms.index(K) for K in config.arm_counts]
    for scale, regret, threshold in zip(
        ("theory", "finite"), data["arms"], (at_most(0.8), None), strict=True
    ):
        value, interval = slope(np.log(config.arm_counts), regret[places])
        yield Claim(
            f"Scale {scale}, d={config.arm_dimension}, K in {config.arm_counts}: slope "
            "of log regret in log log K (0.5 in the bound)",
            value,
            threshold,
            interval,
        )
    for label, regret, high in zip(
        ("K = 20d", "K = 20"), data["dimensions"][::-1], (1.5, 1.0), strict=True
    ):
        value, interval = slope(config.dimensions, regret)
        yield Claim(
            f"Scale of theory, d in {config.dimensions}, {label}: slope of log regret "
            "in log d",
            value,
            at_most(high),
            interval,
        )
    theory, finite = data["arms"][:, arms.index(FEW_ARMS)]
    value, interval = ratio_of_means(finite, theory)
    yield Claim(
        f"d={config.arm_dimension}, K={FEW_ARMS}: mean regret, the finite scale over "
        "that of theory (below 1)",
        value,
        at_most(float(np.nextafter(1.0, 0.0))),
        interval,
    )


def _figure(config, data):
    figure, panels = new_figure(
        f"Regret of lazy ensembles by their scale v, pool of {POOL}, R={NOISE:g}: "
        "mean, 2 standard errors",
        columns=2,
        panel=(4.4, 3.4),
    )
    axes, arms = panels[0, 0], all_arm_counts(config)
    for name, regret in zip(("theory", "finite"), data["arms"], strict=True):
        _errorbar(axes, arms, regret, name)
    guide = np.sqrt(np.log(arms))
    guide *= data["arms"][0].mean() / guide.mean()
    axes.plot(arms, guide, "--", color=GREY, marker="", label="sqrt(log K)")
    axes.set(
        title=f"d={config.arm_dimension}, T={config.arm_rounds:,}",
        xlabel="K, number of arms",
        ylabel="regret",
    )
    log_axes(axes, "xy", ticks=arms)
    axes.legend()
    axes, d = panels[0, 1], np.array(config.dimensions)
    for name, regret in zip(("K = 20", "K = 20d"), data["dimensions"], strict=True):
        _errorbar(axes, d, regret, name)
    start = data["dimensions"][:, 0].mean()
    for power, style in ((1.0, "--"), (1.5, ":")):
        axes.plot(
            d,
            start * (d / d[0]) ** power,
            style,
            color=GREY,
            marker="",
            label=f"slope {power:g}",
        )
    axes.set(title=f"scale of theory, T={config.dimension_rounds:,}", xlabel="d")
    log_axes(axes, "xy", ticks=config.dimensions)
    axes.legend()
    return figure


def _errorbar(axes, x, regret, label):
    error = 2 * regret.std(axis=-1, ddof=1) / np.sqrt(regret.shape[-1])
    axes.errorbar(x, regret.mean(axis=-1), error, capsize=3, label=label)
