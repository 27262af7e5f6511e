"""Linear regression with a power-law spectrum, trained to be rounded to int4.

The loss is the population's, ``1/2 (w - w*)^T H (w - w*)``, so that nothing but
rounding stands between the methods. Each takes the learning rate that is best for it.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from scipy import stats

from experiments.claims import Claim, at_least, at_most
from experiments.figures import log_axes, new_figure, plot_spread
from experiments.lotion.config import Config
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from jaxopt_suite import quantization
from jaxopt_suite.core import Problem, optimize, sweep

PEERS = ("PTQ", "QAT", "RAT")
MOVING, FROZEN = "LOTION", "LOTION, scale held"
METHODS = (*PEERS, MOVING, FROZEN)
FORWARD = {"QAT": quantization.ste, "RAT": quantization.rat}
CASTS = ("RTN", "RR")
DECAY = 1.1
ROWS = 20


class Regression(NamedTuple):
    """A task; a matrix is given by its diagonal alone where it has no other entries.

    Attributes:
        target: w*.
        covariance: H.
        root: a symmetric root of H.
    """

    target: Float[Array, " d"]
    covariance: Float[Array, "d *d"]
    root: Float[Array, "d *d"]

    def diagonal(self) -> Float[Array, " d"]:
        """That of H."""
        h = self.covariance
        return h if h.ndim == 1 else jnp.diagonal(h)

    def gradient(self, w: Float[Array, " d"]) -> Float[Array, " d"]:
        """H (w - w*)."""
        return _times(self.covariance, w - self.target)

    def loss(self, w: Float[Array, " d"]) -> Float[Array, ""]:
        """1/2 (w - w*)^T H (w - w*)."""
        return 0.5 * jnp.sum(_times(self.root, w - self.target) ** 2)

    def batch_gradient(self, key, w, batch: int) -> Float[Array, " d"]:
        """Gradient of the mean loss of fresh examples, whose covariance is H."""
        normal = jax.random.normal(key, (batch, w.size))
        inputs = normal * self.root if self.root.ndim == 1 else normal @ self.root
        return inputs.T @ (inputs @ (w - self.target)) / batch


def _times(matrix, v):
    return matrix * v if matrix.ndim == 1 else matrix @ v


def draw_task(key, basis: str, dimension: int) -> Regression:
    """Spectrum i^-1.1, a normal target, the standard or a random orthogonal basis."""
    target_key, basis_key = jax.random.split(key)
    spectrum = jnp.arange(1.0, dimension + 1) ** -DECAY
    target = jax.random.normal(target_key, (dimension,))
    if basis == "diag":
        return Regression(target, spectrum, jnp.sqrt(spectrum))
    vectors = jax.random.orthogonal(basis_key, dimension)
    matrices = [(vectors * x) @ vectors.T for x in (spectrum, jnp.sqrt(spectrum))]
    return Regression(target, *matrices)


def train(key, *, method: str, basis: str, config: Config):
    """Losses of the casts along a run for each learning rate, from w = 0."""
    task_key, run_key = jax.random.split(key)
    task = draw_task(task_key, basis, config.dimension)
    quantizer = quantization.make_quantizer("int4")
    # One array of one axis: the default mask would leave it out.
    forward = FORWARD.get(method, quantization.ptq)(quantizer, mask=True)
    state = forward.init(task.target)
    expected = quantization.gauss_newton_loss(
        task.loss, quantizer, task.diagonal(), mask=True
    )

    def grad(key, w):
        rounding_key, batch_key = jax.random.split(key)
        seen, pull_back = jax.vjp(lambda w: forward.apply(state, rounding_key, w), w)
        if config.regression_batch is None:
            gradient = task.gradient(seen)
        else:
            gradient = task.batch_gradient(batch_key, seen, config.regression_batch)
        return pull_back(gradient)[0]

    def casts(w):
        # The expectation over RR is exact for a quadratic.
        return jnp.stack([task.loss(quantizer.round_nearest(w)), expected(w)])

    def one(rate):
        optimizer = optax.adam(
            optax.cosine_decay_schedule(rate, config.regression_steps)
        )
        if method in (MOVING, FROZEN):
            penalty = quantization.add_lotion_penalty(
                quantizer,
                curvature=task.diagonal(),
                differentiate_scale=method == MOVING,
                mask=True,
            )
            optimizer = optax.chain(penalty, optimizer)
        return optimize(
            optimizer,
            Problem(lambda _: jnp.zeros_like(task.target), grad, casts),
            run_key,
            config.regression_steps,
            record_every=config.regression_steps // ROWS,
        ).record

    # Rates within seeds: those of a seed share its covariance.
    return jax.vmap(one)(jnp.asarray(config.regression_rates))


def losses(config: Config, keys, basis: str) -> np.ndarray:
    """Losses of the casts, of shape (methods, seeds, rates, rows + 1, casts)."""
    return np.stack(
        [
            jax.device_get(
                sweep(
                    functools.partial(train, method=m, basis=basis, config=config),
                    keys,
                    {},
                )
            )
            for m in METHODS
        ]
    )


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Losses in each basis, on the same targets."""
    keys = jax.random.split(key, config.num_seeds)
    return {basis: losses(config, keys, basis) for basis in config.bases}


def shapes(config: Config) -> None:
    """Traces every method in each basis."""
    keys = jax.random.split(jax.random.key(0), config.num_seeds)
    for basis in config.bases:
        for method in METHODS:
            run = functools.partial(train, method=method, basis=basis, config=config)
            traced = jax.eval_shape(jax.vmap(run), keys)
            rates = len(config.regression_rates)
            assert traced.shape == (config.num_seeds, rates, ROWS + 1, len(CASTS))


def _comparable(x):
    """A run that diverged is no choice."""
    return np.where(np.isnan(x), np.inf, x)


def ratios(final) -> dict[str, np.ndarray]:
    """What is claimed, a figure per seed, from losses (methods, seeds, rates, casts).

    Returns:
        ``"peers"``: RTN loss of LOTION over the best of PTQ, QAT and RAT; ``"random"``:
        RR loss of LOTION over QAT; ``"scale"``: RTN loss with the scale held over
        with the scale moving; ``"gap"`` and ``"QAT gap"``: RR over RTN loss.
    """
    best = _comparable(final).min(axis=2)
    nearest, random = (
        dict(zip(METHODS, best[..., cast], strict=True)) for cast in range(len(CASTS))
    )
    return {
        "peers": nearest[MOVING] / np.min([nearest[m] for m in PEERS], axis=0),
        "random": random[MOVING] / random["QAT"],
        "scale": nearest[FROZEN] / nearest[MOVING],
        "gap": random[MOVING] / nearest[MOVING],
        "QAT gap": random["QAT"] / nearest["QAT"],
    }


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims from the losses along the runs in each basis."""
    final = {basis: data[basis][..., -1, :] for basis in config.bases}
    axes = (
        ("basis", config.bases),
        ("method", METHODS),
        ("seed", range(config.num_seeds)),
        ("learning_rate", config.regression_rates),
        ("cast", CASTS),
    )
    metrics = {"regression_loss": Metric(np.stack(list(final.values())), axes)}
    found = {basis: ratios(values) for basis, values in final.items()}
    return metrics, {"regression": _figure(config, data)}, tuple(_claims(found))


def _geometric(text, samples, threshold=None):
    interval = bootstrap_interval(samples, stats.gmean)
    return Claim(text, float(stats.gmean(samples)), threshold, interval)


def _claims(found):
    names = {"diag": "diagonal", "rot": "rotated"}
    thresholds = {"diag": at_most(0.8), "rot": at_most(0.95)}
    for basis, figures in found.items():
        yield _geometric(
            f"Power-law regression, {names[basis]} covariance, int4: RTN loss of "
            "LOTION over the best of PTQ, QAT and RAT (geometric mean over seeds)",
            figures["peers"],
            thresholds[basis],
        )
    if "diag" in found:
        diag = found["diag"]
        yield Claim(
            "Diagonal covariance: the same ratio, largest over seeds",
            float(diag["peers"].max()),
            at_most(0.9),
        )
        yield Claim(
            "Diagonal covariance: RTN loss with the scale held in differentiation over "
            "with it moving (least over seeds)",
            float(diag["scale"].min()),
            at_least(1.0),
        )
    together = {
        name: np.concatenate([figures[name] for figures in found.values()])
        for name in ("random", "gap", "QAT gap")
    }
    yield Claim(
        "RR loss of LOTION over QAT (largest over seeds and covariances)",
        float(together["random"].max()),
        at_most(0.4),
    )
    yield Claim(
        "LOTION ends on the grid: RR over RTN loss (largest)",
        float(together["gap"].max()),
    )
    yield _geometric("QAT does not: RR over RTN loss", together["QAT gap"])


def _figure(config, data):
    figure, panels = new_figure(
        f"Linear regression, d = {config.dimension}, int4: median and range over seeds",
        rows=len(config.bases),
        columns=2,
        sharey="row",
    )
    steps = np.linspace(0, config.regression_steps, ROWS + 1)
    for (left, right), basis in zip(panels, config.bases, strict=True):
        for method, values in zip(METHODS, data[basis][..., 0], strict=True):
            final = values[..., -1]
            plot_spread(
                left, config.regression_rates, final.T, method, quantiles=(0, 0.5, 1)
            )
            chosen = np.argmin(_comparable(final), axis=1)
            curves = np.take_along_axis(values, chosen[:, None, None], 1)[:, 0]
            plot_spread(right, steps, curves.T, method, quantiles=(0, 0.5, 1))
        left.set(title=f"{basis}: after training", ylabel="loss of the RTN cast")
        right.set(title=f"{basis}: along the run at the best rate")
        log_axes(left, ticks=config.regression_rates)
        log_axes(right, "y")
    panels[-1, 0].set_xlabel("learning rate")
    panels[-1, 1].set_xlabel("steps")
    panels[0, 0].legend()
    return figure
