"""Prices with late sales in a market that turns, and a target that drifts."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim
from experiments.dars_dbco.benchmarks import ratio_to_dars
from experiments.dars_dbco.config import Config
from experiments.dars_dbco.runs import equal_starts, together
from experiments.figures import label_lines, new_figure, plot_spread
from experiments.results import Metric
from jaxopt_suite.bandits.bco_baselines import bandit_mild_ogd, delayed_bgd
from jaxopt_suite.bandits.bco_blocked import dars_rollout_blocked
from jaxopt_suite.bandits.bco_detect import dars_detect
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.bandits.convex_sets import ConvexSet, box, l2_ball, radii
from jaxopt_suite.core import interact
from jaxopt_suite.core.delays import DelayModel, burst_delay, geometric_delay
from jaxopt_suite.problems.bco import LossSequence, bco_env
from jaxopt_suite.problems.bco_losses import drifting, pricing_segments

D_MAX = 31
DELAY_LAWS = ("geometric", "burst")
METHODS = ("DARS", "D-FTBL", "delayed BGD", "Mild-OGD", "no oracle")
ROWS = 64
GOODS = 4
MARKETS = 4
# A drift has no jumps: DARS restarts as often as the target does a part of its turn.
PARTS = 8


class Application(NamedTuple):
    """A sequence of losses, its set, and when DARS restarts."""

    losses: LossSequence
    domain: ConvexSet
    starts: tuple[int, ...]


def application(name: str, horizon: int) -> Application:
    """The problem ``"pricing"`` or ``"drifting"``."""
    if name == "pricing":
        return Application(
            pricing_segments(horizon, GOODS, MARKETS),
            box(np.ones(GOODS)),
            equal_starts(horizon, MARKETS),
        )
    return Application(
        drifting(horizon, 2, period=horizon), l2_ball(1.0), equal_starts(horizon, PARTS)
    )


def delay_law(is_burst: jax.Array) -> DelayModel:
    """Geometric delays of mean 9, or bursts; the flag may be traced."""
    geometric, burst = geometric_delay(0.1, D_MAX), burst_delay(D_MAX)

    def sample(key, horizon):
        return jnp.where(is_burst, burst(key, horizon), geometric(key, horizon))

    return DelayModel(sample, D_MAX, D_MAX + 1)


def _dimension(here: Application) -> int:
    return len(jax.eval_shape(here.losses.minimizer, 0))


def _constants(here: Application) -> dict[str, float]:
    return {
        "bound": float(here.losses.bound),
        "lipschitz": float(here.losses.lipschitz),
        "k_scale": 0.2,
    }


def _runner(here: Application, method: str, horizon: int) -> Callable:
    """``run(key, delays) -> InteractionSummary`` of a method."""
    constants, n = _constants(here), _dimension(here)
    example = jnp.zeros(n)
    if method in ("DARS", "D-FTBL"):
        schedule = dars_schedule(
            horizon,
            n,
            segment_starts=here.starts if method == "DARS" else (0,),
            d_max=D_MAX,
            **radii(here.domain),
            **constants,
        )
        return lambda key, delays: dars_rollout_blocked(
            schedule,
            here.losses,
            delays,
            key,
            domain=here.domain,
            trace="summary",
            checkpoints=ROWS,
        )
    known = {"domain": here.domain, "d_max": D_MAX, **constants}
    if method == "no oracle":
        policy = dars_detect(example, horizon, horizon // len(here.starts), **known)
    elif method == "Mild-OGD":
        policy = bandit_mild_ogd(example, horizon, **known)
    else:
        policy = _bgd(here, n, horizon)
    env = bco_env(here.losses)
    return lambda key, delays: (
        interact(policy, env, key, horizon, delays=delays, checkpoints=ROWS).record
    )


def _bgd(here, n, horizon):
    """Delayed gradient descent with its theory tuning, in the problem's units."""
    domain, bound = here.domain, here.losses.bound
    slope = here.losses.lipschitz
    delta = (n * bound * domain.radius / slope) ** 0.5 * horizon**-0.25
    delta = min(delta, domain.inner_radius / 2)
    noise = (n * bound / delta) ** 2 + 2 * D_MAX * slope**2
    eta = domain.radius / (horizon * noise) ** 0.5
    return delayed_bgd(jnp.zeros(n), delta=delta, eta=eta, domain=domain)


@functools.partial(jax.jit, static_argnames=("name", "method", "horizon"))
def curves(keys, *, name: str, method: str, horizon: int):
    """Regret over time under both laws of delays: (seeds, laws, rows)."""
    run = _runner(application(name, horizon), method, horizon)

    def one(key, is_burst):
        return run(key, delay_law(is_burst)).regret

    flags = jnp.array([law == "burst" for law in DELAY_LAWS])
    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(keys, flags)


def methods(config: Config) -> tuple[str, ...]:
    """All methods; at the smallest scale those that need few compiles."""
    return METHODS if len(config.problems) > 1 else METHODS[:3:2]


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Regret over time, by problem: (methods, seeds, laws, rows)."""
    keys = jax.random.split(key, config.application_seeds)
    calls = [
        functools.partial(
            curves, keys, name=name, method=method, horizon=config.application_horizon
        )
        for name in config.problems
        for method in methods(config)
    ]
    found = np.stack([np.asarray(result) for result in together(calls)])
    split = found.reshape(len(config.problems), -1, *found.shape[1:])
    return dict(zip(config.problems, split, strict=True))


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, a figure, and how the methods compare."""
    names, laws = methods(config), ("delays", DELAY_LAWS)
    metrics, claims = {}, []
    for problem in config.problems:
        regret = data[problem]
        final = np.asarray(regret[..., -1], np.float64)
        axes = (("method", names), ("seed", range(config.application_seeds)), laws)
        metrics[f"application_{problem}"] = Metric(final, axes)
        for index, law in enumerate(DELAY_LAWS):
            others = [n for n in names if n not in ("DARS", "no oracle")]
            best = min(others, key=lambda n: final[names.index(n), :, index].mean())
            value, interval = ratio_to_dars(
                final[names.index(best), :, index], final[0, :, index]
            )
            claims.append(
                Claim(
                    f"{problem.capitalize()}, {law} delays: regret of {best}, the "
                    "strongest that does not restart, over that of DARS",
                    value,
                    interval=interval,
                )
            )
    return metrics, {"application": _figure(config, data)}, tuple(claims)


def _figure(config, data):
    titles = {
        "pricing": f"prices of {GOODS} goods, {MARKETS} markets",
        "drifting": "a target that drifts",
    }
    figure, panels = new_figure(
        "Regret over time: median and 5% to 95% over seeds\n"
        f"(where nothing jumps, DARS restarts every 1/{PARTS} of the turn)",
        rows=len(config.problems),
        columns=len(DELAY_LAWS),
        panel=(4.8, 3.0),
    )
    horizon = config.application_horizon
    times = np.arange(1, ROWS + 1) * horizon / ROWS
    for row, problem in zip(panels, config.problems, strict=True):
        for index, axes in enumerate(row):
            for name, samples in zip(methods(config), data[problem], strict=True):
                plot_spread(axes, times, samples[:, index].T, name)
            for line in axes.get_lines():
                line.set_marker("")
            axes.set(
                title=f"{titles[problem]}, {DELAY_LAWS[index]} delays",
                xlabel="round",
                ylabel="regret",
            )
            label_lines(axes)
    return figure
