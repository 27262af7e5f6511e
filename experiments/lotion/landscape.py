"""What rounding does to a loss of two weights, and what smoothing makes of it.

The loss is the squared error of the network ``a tanh(b x)`` on a grid of inputs. It is
not convex: the teacher ``(a, b)`` and ``(-a, -b)`` are its two minimizers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.figures import new_figure
from experiments.lotion.config import Config
from experiments.results import Metric
from jaxopt_suite import quantization

SURFACES = ("L", "L(RTN)", "L smooth", "L GN")
TITLES = ("full precision L", "rounded, L(RTN)", "smoothed, E L(RR)", "second order")
INPUTS = jnp.linspace(-2.0, 2.0, 9)
TEACHER = (1.3, 0.7)
EDGE, SLICE_AT = 2.0, 1.3


def output(weights, inputs):
    """The network's value at one input."""
    a, b = weights
    return a * jnp.tanh(b * inputs)


def loss(weights):
    """Half the mean squared error to the teacher."""
    error = output(weights, INPUTS) - output(jnp.array(TEACHER), INPUTS)
    return 0.5 * jnp.mean(error**2)


def gauss_newton_diagonal(weights):
    """Mean squared derivative of the output, which is the curvature at zero error."""
    slopes = jax.vmap(jax.grad(output), (None, 0))(weights, INPUTS)
    return jnp.mean(slopes**2, axis=0)


@functools.partial(jax.jit, static_argnums=0)
def surfaces(name: str, nodes):
    """The four surfaces at nodes of shape (n, 2), and at what they are rounded to."""
    quantizer = quantization.make_quantizer(name)

    def at(w):
        curvature = gauss_newton_diagonal(w)
        smoothed = quantization.exact_smoothed_loss(loss, quantizer, w)
        penalized = quantization.gauss_newton_loss(
            loss, quantizer, curvature, mask=True
        )
        rounded = loss(quantizer.round_nearest(w))
        return jnp.stack([loss(w), rounded, smoothed, penalized(w)])

    rounded_nodes = jax.vmap(quantizer.round_nearest)(nodes)
    return jax.vmap(at)(nodes), jax.vmap(at)(rounded_nodes)


def map_nodes(config: Config):
    """The nodes of the map, of shape (n * n, 2), the second weight fastest."""
    side = jnp.linspace(-EDGE, EDGE, config.landscape_nodes)
    return jnp.stack(jnp.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def slice_nodes(num_points: int):
    """The points of the slice: the first weight is fixed."""
    second = jnp.linspace(0.0, EDGE, num_points)
    return jnp.stack([jnp.full_like(second, SLICE_AT), second], axis=-1)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """The surfaces for each format: on the map, on its casts, along the slice."""
    del key
    parts = {
        "map": map_nodes(config),
        "coarse": slice_nodes(config.slice_points),
        "fine": slice_nodes(2 * config.slice_points),
    }
    ends = np.cumsum([len(nodes) for nodes in parts.values()])[:-1]
    together = jnp.concatenate(list(parts.values()))
    found: dict[str, list] = {name: [] for name in (*parts, "casts")}
    for name in config.formats:
        here, at_casts = jax.device_get(surfaces(name, together))
        for part, values in zip(parts, np.split(here, ends), strict=True):
            found[part].append(values.T)
        found["casts"].append(at_casts[: ends[0]].T)
    return {part: np.stack(values) for part, values in found.items()}


def shapes(config: Config) -> None:
    """Traces the surfaces."""
    for name in config.formats:
        nodes = jax.eval_shape(lambda: map_nodes(config))
        here, _ = jax.eval_shape(functools.partial(surfaces, name), nodes)
        assert here.shape == (config.landscape_nodes**2, len(SURFACES))


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from arrays of shape (formats, surfaces, nodes)."""
    least = np.minimum(data["map"].min(-1), data["casts"].min(-1))
    steps = np.stack(
        [np.abs(np.diff(data[part], axis=-1)).max(-1) for part in ("coarse", "fine")]
    )
    axes = (("format", config.formats), ("surface", SURFACES))
    points = (config.slice_points, 2 * config.slice_points)
    metrics = {
        "landscape_minimum": Metric(least, axes),
        "landscape_largest_step": Metric(steps, (("points", points), *axes)),
    }
    figures = {
        "landscape_slice": _slice_figure(config, data["coarse"]),
        "landscape_map": _map_figure(config, data["map"]),
    }
    return metrics, figures, tuple(_claims(config, data, least, steps))


def _claims(config, data, least, steps):
    rounded, smoothed = SURFACES.index("L(RTN)"), SURFACES.index("L smooth")
    yield Claim(
        "Two-weight network: the smoothed and the rounded loss have the same minimum, "
        "over the nodes of the map and what they are rounded to (largest difference "
        f"over {', '.join(config.formats)})",
        float(np.abs(least[:, smoothed] - least[:, rounded]).max()),
        at_most(1e-6),
    )
    yield Claim(
        "It is attained at rounded weights (smoothed loss: least over rounded weights "
        "minus least over all nodes, largest over formats)",
        float((data["casts"].min(-1) - least)[:, smoothed].max()),
        at_most(1e-6),
    )
    ratios = steps[1] / steps[0]
    points = config.slice_points
    yield Claim(
        "The smoothed loss is continuous: its largest step along a slice shrinks when "
        f"{points:,} points become {2 * points:,} (ratio, largest over formats)",
        float(ratios[:, smoothed].max()),
        at_most(0.6),
    )
    yield Claim(
        "The rounded loss is not (the same ratio, least over formats)",
        float(ratios[:, rounded].min()),
        at_least(0.9),
    )


def _slice_figure(config, data):
    figure, panels = new_figure(
        f"Loss of the network a tanh(b x) along b, at a = {SLICE_AT:g}",
        columns=len(config.formats),
    )
    second = np.asarray(slice_nodes(config.slice_points)[:, 1])
    order = (0, 1, 3, 2)
    colors = ("#000000", "#E69F00", "#0072B2", "#D55E00")
    styles = (":", "-", "-", "--")
    for axes, name, values in zip(panels[0], config.formats, data, strict=True):
        for i in order:
            axes.plot(
                second,
                values[i],
                styles[i],
                color=colors[i],
                marker="",
                linewidth=1.2,
                label=TITLES[i],
            )
        axes.set(title=name, xlabel="second weight b")
    panels[0, 0].set_ylabel("loss")
    panels[0, -1].legend()
    return figure


def _map_figure(config, data):
    figure, panels = new_figure(
        "Loss of the network a tanh(b x): smoothing keeps the minima of the rounded "
        "loss (cross: the least value)",
        rows=len(config.formats),
        columns=len(SURFACES),
        panel=(2.6, 2.3),
        sharex=True,
        sharey=True,
    )
    side = config.landscape_nodes
    ticks = np.linspace(-EDGE, EDGE, side)
    # One scale of colours for all, cut where the rounded losses get out of hand.
    top = np.sqrt(np.quantile(data[:, 0], 0.98))
    colors = {"vmin": 0.0, "vmax": top, "cmap": "viridis", "rasterized": True}
    images = []
    for row, name, surfaces_ in zip(panels, config.formats, data, strict=True):
        for axes, values in zip(row, surfaces_, strict=True):
            values_2d = np.sqrt(values.reshape(side, side)).T
            images.append(axes.pcolormesh(ticks, ticks, values_2d, **colors))
            first, second = np.unravel_index(np.argmin(values), (side, side))
            axes.plot(ticks[first], ticks[second], "x", color="white")
            axes.grid(visible=False)
        row[0].set_ylabel(f"{name}: second weight b")
    for first, last, title in zip(panels[0], panels[-1], TITLES, strict=True):
        first.set_title(title)
        last.set_xlabel("first weight a")
    figure.colorbar(images[0], ax=panels, label="square root of the loss", shrink=0.6)
    return figure
