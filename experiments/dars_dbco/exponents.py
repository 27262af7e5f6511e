"""Runs behind the scaling fits, and the figure of all fits."""

import functools

import jax
import numpy as np

from experiments.claims import Claim, between
from experiments.dars_dbco import fits as settings
from experiments.dars_dbco.config import Config
from experiments.dars_dbco.fits import Fit, slope_with_spread
from experiments.dars_dbco.runs import Case, play, together
from experiments.figures import GREY, log_axes, new_figure
from experiments.results import Metric

Y_LABELS = {
    "regret": "regret",
    "minus bias": "regret - exploration",
    "price": "regret - regret at d = 0",
    "per log": "regret / log^(1/3)",
}


def compute(config: Config, key, *, strong: bool) -> dict[str, np.ndarray]:
    """The samples of every fit, of shape (points, seeds)."""
    chosen = [f for f in settings.fits(config) if f.points[0].case.strong == strong]
    # Fits of one row share their seeds, and a run for all delays of a case.
    points = {(f.row, p.case): f for f in chosen for p in f.points}
    lanes = {
        (row, case): sorted(
            {
                p.delay
                for f in chosen
                if f.row == row
                for p in f.points
                if p.case == case
            }
            | ({0} if fit.y == "price" else set())
        )
        for (row, case), fit in points.items()
    }
    calls = []
    for number, ((row, case), fit) in enumerate(points.items()):
        keys = jax.random.fold_in(jax.random.fold_in(key, row), number)
        keys, delays = jax.random.split(keys, fit.seeds), tuple(lanes[row, case])
        calls.append(functools.partial(play, case, keys, delays=delays))
    found = dict(zip(points, together(calls), strict=True))

    def samples(fit, point):
        where = fit.row, point.case
        return _ordinate(
            fit, point.case, found[where][..., -1], lanes[where].index(point.delay)
        )

    return {f.name: np.stack([samples(f, p) for p in f.points]) for f in chosen}


def _ordinate(fit: Fit, case: Case, regret: np.ndarray, lane: int) -> np.ndarray:
    """What is fitted, (seeds,), from the regret of shape (seeds, delays)."""
    schedule = case.schedule(0)
    regret = regret.astype(np.float64)
    own = regret[:, lane]
    if fit.y == "minus bias":
        return own - np.sum(schedule.delta * schedule.lengths)
    if fit.y == "price":
        return own - regret[:, 0]
    if fit.y == "per log":
        return own / np.log(np.e * schedule.lengths[0] / schedule.K[0]) ** (1 / 3)
    return own


def positions(config: Config, lower: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The x of every fit's points, by its name."""
    found = {f.name: np.array([p.x for p in f.points]) for f in settings.fits(config)}
    for fit in settings.lower_bound_fits(config):
        found[fit.name] = lower[f"x{fit.name}"]
    return {name: x.astype(np.float64) for name, x in found.items()}


def summarize(
    config: Config, data: dict[str, np.ndarray], lower: dict[str, np.ndarray]
):
    """Metrics, the figure and a claim per fit, from samples (points, seeds)."""
    chosen = settings.fits(config) + settings.lower_bound_fits(config)
    chosen = sorted(chosen, key=lambda fit: (fit.row, fit.name))
    xs, data = positions(config, lower), data | lower
    metrics, claims = {}, []
    slopes: dict[str, float] = {}
    for fit in chosen:
        x, samples = xs[fit.name], data[fit.name]
        slopes[fit.name], interval = slope_with_spread(x, samples)
        labels = ((fit.variable, [f"{v:g}" for v in x]),)
        error = samples.std(axis=1, ddof=1) / np.sqrt(samples.shape[1])
        metrics[f"fit_{fit.name}_mean"] = Metric(samples.mean(axis=1), labels)
        metrics[f"fit_{fit.name}_standard_error"] = Metric(error, labels)
        claims.append(
            Claim(
                f"Fit {fit.name}, {fit.what}: log-log slope "
                f"(predicted {fit.slope:.3f})",
                slopes[fit.name],
                between(fit.slope - fit.tolerance, fit.slope + fit.tolerance),
                interval,
                None if fit.row == 15 else "within 0.04 of the prediction",
            )
        )
    if "4" in slopes:
        claims += _price_of_doubling(data["4"])
    figure = _figure(chosen, xs, data, slopes)
    return metrics, {"scaling_fits": figure}, tuple(claims)


def _price_of_doubling(samples: np.ndarray):
    steps = samples.mean(axis=1)[1:] / samples.mean(axis=1)[:-1]
    for name, value in (("smallest", steps.min()), ("largest", steps.max())):
        yield Claim(
            "Doubling the delay multiplies regret minus exploration (fit 4): the "
            f"{name} factor",
            float(value),
            between(1.30, 1.55),
        )


def _figure(chosen, xs, data, slopes):
    rows = sorted({fit.row for fit in chosen})
    columns = min(5, len(rows))
    figure, panels = new_figure(
        "Scaling of dynamic regret: means with standard errors, fitted line, and the "
        "predicted slope (dashed)",
        rows=-(-len(rows) // columns),
        columns=columns,
        panel=(3.1, 2.7),
    )
    for axes in panels.ravel()[len(rows) :]:
        axes.set_axis_off()
    for row, axes in zip(rows, panels.ravel(), strict=False):
        shown = [fit for fit in chosen if fit.row == row]
        for fit in shown:
            _draw(axes, fit, xs[fit.name], data[fit.name], slopes[fit.name])
        ticks = np.unique(np.concatenate([xs[fit.name] for fit in shown]))
        log_axes(axes)
        few = ticks if row != 14 else ticks[::2]
        axes.set_xticks(few, [_power(x) for x in few])
        axes.xaxis.set_minor_formatter("")
        what = shown[0].what.partition(":")[0] if row < 15 else "convex, long delays"
        axes.set_title(f"{row}. {what}", fontsize=9)
        names = " and ".join(dict.fromkeys(fit.variable for fit in shown))
        axes.set(xlabel=names, ylabel=Y_LABELS[shown[0].y])
        if len(shown) > 1:
            axes.margins(y=0.3)
        axes.legend(loc="upper left" if row < 15 else "center", fontsize=7)
    return figure


def _draw(axes, fit, x, samples, slope):
    means = samples.mean(axis=1)
    error = samples.std(axis=1, ddof=1) / np.sqrt(samples.shape[1])
    middle = np.exp(np.mean(np.log(x))), np.exp(np.mean(np.log(means)))
    label = f"slope {slope:.3f}, predicted {fit.slope:.3f}"
    if fit.row > 13:
        which = fit.variable if fit.row == 14 else fit.what[8:18]
        label = f"{which}: {label}"
    (line,) = axes.plot(x, means, linestyle="", label=label)
    color = line.get_color()
    axes.errorbar(x, means, error, fmt="none", ecolor=color, capsize=2, linewidth=1)
    ends = np.array([x.min(), x.max()])
    for exponent, style in ((slope, "-"), (fit.slope, "--")):
        axes.plot(
            ends,
            middle[1] * (ends / middle[0]) ** exponent,
            style,
            color=color if style == "-" else GREY,
            linewidth=1,
            marker="",
        )


def _power(x: float) -> str:
    """A tick label: small numbers as they are, larger powers of two as such."""
    power = int(np.log2(x))
    return f"{x:g}" if x < 64 or 2**power != x else f"$2^{{{power}}}$"
