"""Delayed, non-stationary bandit convex optimization in blocks (Oracle-DARS-DBCO).

Family: Oracle-DARS-DBCO (2026), reconstructed from its abstract, on delayed follow the
bandit leader, arXiv 2402.09152, and delayed dynamic regret, arXiv 2305.12131.
"""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.dars_dbco import (
    application,
    benchmarks,
    explicit_bound,
    exponents,
    extras,
    fits,
    lower_bounds,
    restarts,
)
from experiments.dars_dbco.config import SCALES, Config
from experiments.dars_dbco.runs import Case, equal_starts, shapes_of
from experiments.results import Result
from experiments.stages import COMPUTE, Stages

__all__ = ["SCALES", "STAGES", "Config", "run", "shapes"]

STAGES = (
    "convex_fits",
    "strong_fits",
    "lower_bounds",
    "benchmarks",
    "restarts",
    "explicit_bound",
    "extras",
    "application",
)


def run(config: Config, key: jax.Array, stages: Stages = COMPUTE) -> Result:
    """Runs all parts; each is a stage."""
    keys: dict[str, jax.Array] = dict(
        zip(STAGES, jax.random.split(key, len(STAGES)), strict=True)
    )

    def stage(name: str, compute, **options) -> Any:
        return stages(name, lambda: compute(config, keys[name], **options))

    samples = {
        **stage("convex_fits", exponents.compute, strong=False),
        **stage("strong_fits", exponents.compute, strong=True),
    }
    lower = stage("lower_bounds", lower_bounds.compute)
    metrics, figures, claims = exponents.summarize(config, samples, lower)
    claims += lower_bounds.claims(lower)
    for name, part in (
        ("benchmarks", benchmarks),
        ("restarts", restarts),
        ("explicit_bound", explicit_bound),
        ("extras", extras),
        ("application", application),
    ):
        more = part.summarize(config, stage(name, part.compute))
        metrics, figures = metrics | more[0], figures | more[1]
        claims += more[2]
    return Result(metrics, figures, claims)


def shapes(config: Config) -> None:
    """Traces the largest computations of ``config`` without running them."""
    seeds = config.num_seeds
    keys = jax.random.split(jax.random.key(0), seeds)
    for fit in fits.fits(config):
        point = max(fit.points, key=lambda p: (p.case.horizon, p.case.n, p.x))
        lanes = len({p.delay for p in fit.points if p.case == point.case})
        traced = shapes_of(point.case, fit.seeds, lanes, point.delay)
        assert traced.shape == (fit.seeds, lanes, 1)
    cell = max(benchmarks.cells(config), key=lambda cell: cell.horizon)
    shapes_of(Case(cell.horizon, equal_starts(*cell.plan())), seeds, 1, 64)
    benchmarks.shapes(config, keys)
    horizon = config.application_horizon
    for problem in config.problems:
        for method in application.METHODS:
            traced = jax.eval_shape(
                lambda k, p=problem, m=method: application.curves(
                    k, name=p, method=m, horizon=horizon
                ),
                keys,
            )
            assert traced.shape == (seeds, 2, application.ROWS)
    jax.eval_shape(lambda k: extras.two_points(k, horizon=config.offset_horizon), keys)
    offsets = jnp.asarray(extras.OFFSETS)
    for count, delay in config.offset_cells:
        case = Case(config.offset_horizon, equal_starts(config.offset_horizon, count))
        jax.eval_shape(
            lambda k, c=case, d=delay: extras.with_baseline(
                k, offsets, case=c, delay=d
            ),
            keys,
        )
