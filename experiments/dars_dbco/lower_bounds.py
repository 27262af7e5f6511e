"""Problems on which no policy can do better: what they make any policy pay."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, at_least, at_most
from experiments.dars_dbco.config import Config
from experiments.dars_dbco.runs import together
from jaxopt_suite.bandits.bco_blocked import dars_rollout_blocked
from jaxopt_suite.bandits.bco_schedule import dars_schedule
from jaxopt_suite.core.delays import DelayModel
from jaxopt_suite.core.interaction import interaction_keys
from jaxopt_suite.problems.bco_lower_bounds import rademacher_blocks, strong_first_block

HORIZON = 2**18
SEGMENTS = 4
CHECKED = 256
FIRST_DELAYS = tuple(2**k for k in range(8, 13))
FIRST_SEGMENTS = (1, 2, 4, 8, 16)
FIRST_DELAY = 2**10
DEVIATIONS = 4.5


@functools.partial(jax.jit, static_argnames=("d", "m"))
def centre_regret(keys, *, d: int, m: int):
    """Regret of the policy that stays at the centre, one draw of the signs a key.

    Losses are constant within a block, so one round a block is enough.
    """
    law = rademacher_blocks(HORIZON, 2, d, m).losses

    def one(key):
        losses = law.losses(law.draw(key))
        firsts = jnp.arange(0, HORIZON, d)
        centre = jnp.zeros(2)
        return d * jnp.sum(
            jax.vmap(lambda t: losses.value(centre, t) - losses.min_value(t))(firsts)
        )

    return jax.lax.map(one, keys, batch_size=50)


@jax.jit
def dars_regret(keys):
    """Regret of DARS on the random blocks of ``CHECKED`` rounds."""
    problem = rademacher_blocks(HORIZON, 2, CHECKED, SEGMENTS)
    starts = range(0, HORIZON, HORIZON // SEGMENTS)
    schedule = dars_schedule(
        HORIZON, 2, segment_starts=tuple(starts), d_max=CHECKED - 1, k_scale=0.2
    )

    def one(key):
        return dars_rollout_blocked(
            schedule,
            problem.losses,
            problem.delays,
            key,
            trace="summary",
            checkpoints=1,
        ).regret

    return jnp.squeeze(jnp.asarray(jax.vmap(one)(keys)), axis=-1)


@functools.partial(jax.jit, static_argnames=("horizon", "segments", "d_max"))
def early_regret(keys, delays, *, horizon: int, segments: int, d_max: int):
    """Regret of DARS in the first ``delays`` rounds of each segment.

    Returns:
        An array (delays, segments, seeds); every delay is a multiple of the smallest of
        ``FIRST_DELAYS``.
    """
    every, length = FIRST_DELAYS[0], horizon // segments
    schedule = dars_schedule(
        horizon,
        2,
        segment_starts=tuple(range(0, horizon, length)),
        d_max=d_max,
        strong_convexity=1.0,
        k_scale=0.2,
    )
    law = strong_first_block(horizon, 2, every, segments).losses

    def one(key, delay):
        run = dars_rollout_blocked(
            schedule,
            law,
            DelayModel(
                lambda key, horizon: jnp.full(horizon, delay, jnp.int32), d_max, 1
            ),
            key,
            strong_convexity=1.0,
            trace="summary",
            checkpoints=horizon // every,
        )
        sums = jnp.concatenate([jnp.zeros(1), jnp.asarray(run.regret)])
        first = jnp.arange(segments) * (length // every)
        return sums[first + delay // every] - sums[first]

    regret = jax.vmap(lambda key: jax.vmap(lambda d: one(key, d))(delays))(keys)
    return jnp.moveaxis(regret, 0, -1)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Samples (points, draws or seeds) of the fits, and DARS against the exact mean."""
    keys, found = jax.random.split(key, 8), {}

    def walks(key, d, m):
        regret = centre_regret(jax.random.split(key, config.draws), d=d, m=m)
        return np.asarray(regret, np.float64)

    for name, places, cells in (
        ("12", config.blocks, [(d, SEGMENTS) for d in config.blocks]),
        ("13", config.segments, [(CHECKED, m) for m in config.segments]),
    ):
        if int(name) in config.rows:
            own = jax.random.split(keys[int(name) - 12], len(cells))
            calls = [
                functools.partial(walks, own[i], *cell) for i, cell in enumerate(cells)
            ]
            found |= {name: np.stack(together(calls)), f"x{name}": np.array(places)}
    if 13 in config.rows:
        runs = jax.random.split(keys[2], 4 * config.num_seeds)
        drawn = jax.vmap(lambda key: interaction_keys(key).environment)(runs)
        found["dars"] = np.asarray(dars_regret(runs))
        found["centre"] = np.asarray(centre_regret(drawn, d=CHECKED, m=SEGMENTS))
    if 14 in config.rows:
        found |= _first_rounds(config, keys[3:5])
    return found


def _first_rounds(config, keys):
    by_delay = early_regret(
        jax.random.split(keys[0], config.num_seeds),
        jnp.asarray(FIRST_DELAYS),
        horizon=HORIZON,
        segments=SEGMENTS,
        d_max=FIRST_DELAYS[-1],
    )
    most, seeds = FIRST_SEGMENTS[-1], config.num_seeds
    sums = early_regret(
        jax.random.split(keys[1], len(FIRST_SEGMENTS) * seeds),
        jnp.asarray([FIRST_DELAY]),
        horizon=HORIZON,
        segments=most,
        d_max=FIRST_DELAY,
    )[0].reshape(most, len(FIRST_SEGMENTS), seeds)
    # Segments are independent of one another: the first m are a run of m segments.
    by_count = [np.sum(sums[:m, i], axis=0) for i, m in enumerate(FIRST_SEGMENTS)]
    return {
        "14a": np.asarray(jnp.sum(by_delay, axis=1), np.float64),
        "x14a": np.array(FIRST_DELAYS),
        "14b": np.stack(by_count).astype(np.float64),
        "x14b": np.array(FIRST_SEGMENTS),
    }


def claims(data: dict[str, np.ndarray]) -> tuple[Claim, ...]:
    """Claims beside the fits: the exact value, and the floor of the first rounds."""
    found = []
    if "dars" in data:
        exact = rademacher_blocks(HORIZON, 2, CHECKED, SEGMENTS).regret
        difference = data["dars"] - data["centre"]
        found += [
            Claim(
                f"Random blocks of {CHECKED} rounds: DARS against the centre on the "
                f"same {len(difference)} draws, whose mean regret is the same "
                "(difference in standard errors)",
                float(abs(difference.mean()) / _standard_error(difference)),
                at_most(DEVIATIONS),
            ),
            Claim(
                f"The same: mean regret of DARS over the exact expectation {exact:.0f}",
                float(data["dars"].mean() / exact),
            ),
        ]
    if "14a" in data:
        floors = [SEGMENTS * data["x14a"] / 8, FIRST_DELAY * data["x14b"] / 8]
        samples = np.concatenate([data["14a"], data["14b"]])
        reached = samples.mean(axis=1) + DEVIATIONS * _standard_error(samples)
        found.append(
            Claim(
                "Strongly convex, first d rounds of all segments: regret plus 4.5 "
                "standard errors over the lower bound m d / 8 (smallest)",
                float(np.min(reached / np.concatenate(floors))),
                at_least(1.0),
            )
        )
    return tuple(found)


def _standard_error(samples: np.ndarray) -> np.ndarray:
    return samples.std(axis=-1, ddof=1) / np.sqrt(samples.shape[-1])
