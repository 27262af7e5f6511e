"""Beyond linear rewards: a logistic model and learned features, on digits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.claims import Claim
from experiments.eqol.config import Config
from experiments.eqol.policies import Named, data_world, eqol_point, index, logistic
from experiments.eqol.runs import compiled, race, ratio_of_means, together
from experiments.figures import new_figure, plot_spread
from experiments.results import Metric
from jaxopt_suite import bandits
from jaxopt_suite.core import interaction_loop

DATA, SCALE = "digits", 0.05
BLOCKS = 8
WIDTHS = (64, 32)
STEPS, BATCH = 200, 128
LINEAR = Named("linear", index, eqol_point(SCALE))
LOGISTIC = [
    Named(f"logistic a={a:g} bound={b:g}", logistic, {"a": a, "bound": b})
    for a in (0.02, 0.05, 0.1)
    for b in (2.0, 4.0)
]
NEURAL = ("random features", "learned features")
NAMES = ("linear", *(policy.name for policy in LOGISTIC), *NEURAL)


def num_seeds(config: Config) -> int:
    """Half of the other studies' seeds: training encoders is slow."""
    return max(config.few_seeds // 2, 2)


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Mistakes of shape (policies, seeds, blocks)."""
    keys = jax.random.split(key, num_seeds(config))
    rounds = config.extension_rounds // BLOCKS

    def generalized():
        return race(
            [LINEAR, *LOGISTIC],
            data_world(DATA),
            keys,
            config.extension_rounds,
            checkpoints=BLOCKS,
        ).regret

    parts = together(
        [generalized, functools.partial(neural_mistakes, keys, rounds=rounds)]
    )
    return {"mistakes": np.concatenate([np.asarray(part) for part in parts])}


def encode(params, x):
    """Two layers and a constant, of norm 1 at most."""
    for weights, bias in params["layers"]:
        x = jnp.tanh(weights @ x + bias)
    return jnp.append(x, 1.0) / np.sqrt(len(x) + 1)


def start(key, width: int, num_arms: int):
    """The encoder at random, and the outputs it is trained with."""
    sizes = (width, *WIDTHS)
    keys = jax.random.split(key, len(WIDTHS))
    layers = [
        (jax.random.normal(k, (after, before)) * (2 / before**0.5), jnp.zeros(after))
        for k, before, after in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    return {"layers": layers, "head": jnp.zeros((num_arms, WIDTHS[-1] + 1))}


def train(key, params, state):
    """The encoder after Adam on the squared errors of the rows kept."""
    optimizer = optax.adam(3e-3)

    def loss(params, rows):
        features = jax.vmap(encode, (None, 0))(params, state.inputs[rows])
        outputs = jnp.sum(features * params["head"][state.arms[rows]], axis=1)
        return jnp.mean((outputs - state.rewards[rows]) ** 2)

    def step(carry, key):
        params, moments = carry
        rows = jax.random.randint(key, (BATCH,), 0, state.ridge.count)
        updates, moments = optimizer.update(jax.grad(loss)(params, rows), moments)
        return (optax.apply_updates(params, updates), moments), None

    first = (params, optimizer.init(params))
    (params, _), _ = jax.lax.scan(step, first, jax.random.split(key, STEPS))
    return params


@functools.partial(compiled, static_argnames="rounds")
def neural_mistakes(keys, rounds: int):
    """Mistakes after each block, without and with training between blocks."""
    world = data_world(DATA)

    def run(learned, key):
        policy_key, start_key, train_key = jax.random.split(key, 3)
        first = start(start_key, world.d, world.K)
        policy = bandits.eqol_on_features(
            encode,
            first,
            jnp.zeros(world.d),
            capacity=rounds * BLOCKS,
            noise=world.noise,
            a=SCALE,
            **world.layout,
        )
        loop = interaction_loop(
            policy, world.environment({}), rounds * BLOCKS, record="full"
        )

        def one_round(state, _):
            row, state = loop.update(None, state)
            return state, row.feedback.regret

        def block(state, key):
            state, wrong = jax.lax.scan(one_round, state, length=rounds)
            old = state.policy
            fresh = train(key, old.params, old)
            params = jax.tree.map(
                lambda a, b: jnp.where(learned, a, b), fresh, old.params
            )
            refreshed = bandits.refresh_encoder(encode, old, params)
            return state._replace(policy=refreshed), wrong.sum()

        blocks = jax.random.split(train_key, BLOCKS)
        return jnp.cumsum(jax.lax.scan(block, loop.init(policy_key), blocks)[1])

    over_seeds = jax.vmap(run, (None, 0))
    return jax.vmap(over_seeds, (0, None))(jnp.array([False, True]), keys)


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims on digits."""
    final = data["mistakes"][..., -1].astype(np.float64)
    metrics = {
        "extension_mistakes": Metric(
            final, (("policy", NAMES), ("seed", range(num_seeds(config))))
        )
    }
    best = 1 + int(np.argmin(final[1:-2].mean(axis=1)))
    claims = []
    for place in (best, len(NAMES) - 2, len(NAMES) - 1):
        value, interval = ratio_of_means(final[place], final[0])
        named = "the best of its grid, " if place == best else ""
        claims.append(
            Claim(
                f"{DATA}: mistakes, EQOL with {named}{NAMES[place]} over linear EQOL "
                f"(a={SCALE:g})",
                value,
                None,
                interval,
            )
        )
    return metrics, {"extensions": _figure(config, data, best)}, tuple(claims)


def _figure(config, data, best):
    figure, panels = new_figure(
        f"EQOL beyond linear rewards on {DATA}: median and 5% to 95% of "
        f"{num_seeds(config)} seeds",
        panel=(6.0, 3.4),
    )
    axes = panels[0, 0]
    rounds = np.arange(1, BLOCKS + 1) * config.extension_rounds // BLOCKS
    for place in (0, best, len(NAMES) - 2, len(NAMES) - 1):
        plot_spread(axes, rounds, data["mistakes"][place].T, NAMES[place])
    axes.set(xlabel="rows", ylabel="mistakes")
    axes.legend()
    return figure
