"""The Open Bandit data: off-policy estimates from its logs, and a shop made of them.

The samples come with the package obp; without it this part says that it did not run.
"""

import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments.claims import Claim, Interval
from experiments.eqol.config import Config
from experiments.eqol.policies import (
    World,
    click_logs,
    click_model,
    index_policies,
)
from experiments.eqol.runs import compiled, race
from experiments.figures import GREY, log_axes, new_figure
from experiments.results import Metric
from experiments.statistics import bootstrap_interval
from jaxopt_suite import bandits, problems
from jaxopt_suite.core import Logged, Policy, replay

CAMPAIGN = "men"
ESTIMATORS = ("IPS", "SNIPS", "DM", "DR")
TARGETS = ("uniform", "epsilon-greedy .5", "EQOL")
NOT_RUN = (
    "Open Bandit data: NOT RUN, the samples are missing "
    "(pip install --no-deps obp==0.4.1)"
)


def is_here() -> bool:
    """Whether the samples are installed."""
    return importlib.util.find_spec("obp") is not None


def compute(config: Config, key) -> dict[str, np.ndarray]:
    """Estimates with intervals, replayed rewards, and regret in the shop."""
    if not is_here():
        print(f"\n*** {NOT_RUN} ***\n", file=sys.stderr)
        return {"here": np.array(False)}
    shop_key, estimate_key = jax.random.split(key)
    model = click_model(CAMPAIGN)
    world = World(len(model.weights), model.item.shape[0], 0.5, "shop", data=CAMPAIGN)
    keys = jax.random.split(shop_key, config.few_seeds)
    shop = race(index_policies(world.noise), world, keys, config.shop_rounds)
    return {
        "here": np.array(True),
        "regret": shop.regret[..., -1],
        **estimates(estimate_key),
    }


def estimates(key) -> dict[str, np.ndarray]:
    """Policies that learned on half of the random log, valued on the other half."""
    log, _ = click_logs(CAMPAIGN)
    size = len(log.item)
    learn = np.arange(size) % 2 == 0
    # Its predictions are of rows that it has not seen.
    model = problems.fit_click_model([log], fit_on=learn)
    features = jax.lax.map(
        lambda row: problems.click_features(model, row), jnp.arange(size)
    )
    rows = _logged(log, features)
    held_out = bandits.bandit_log(jax.tree.map(lambda leaf: leaf[~learn], rows))
    num_arms, d = features.shape[1:]
    targets = {"uniform": jnp.full((size // 2, num_arms), 1 / num_arms)}
    replays = [held_out.reward.mean()]
    policies = {
        "epsilon-greedy .5": bandits.epsilon_greedy(d, epsilon=0.5),
        "EQOL": bandits.eqol(d, noise=0.1),
    }
    for name, policy in policies.items():
        targets[name], replayed = _try(policy, rows, learn, key)
        replays.append(replayed)
    predicted = problems.click_rates(model, np.flatnonzero(~learn))
    found = [_estimate(key, held_out, targets[name], predicted) for name in TARGETS]
    return {
        "estimates": np.stack(found),
        "replays": np.stack(replays),
        "logged": np.asarray(held_out.reward),
    }


def _logged(log: problems.OpenBanditLog, features: jax.Array) -> Logged:
    """A log with the features of all items in each row."""
    size = len(log.item)
    blank = jnp.zeros(size)
    decision = bandits.LinearDecision(
        arm=jnp.asarray(log.item),
        x=features[np.arange(size), log.item],
        score=blank,
        bonus=blank,
        propensity=jnp.asarray(log.propensity, jnp.float32),
        valid=blank == 0,
        member=jnp.full(size, -1),
    )
    feedback = bandits.BanditFeedback(
        decision, jnp.asarray(log.click), mask=blank == 0, regret=blank
    )
    return Logged(bandits.LinearContext(features), decision, feedback)


def _try(policy: Policy, rows: Logged, learn: np.ndarray, key):
    """Arm probabilities on the rows not learned from, and the value by replay."""
    half = jax.tree.map(lambda leaf: leaf[learn], rows.feedback)
    contexts = jax.tree.map(lambda leaf: leaf[~learn], rows.context)
    num_arms = contexts.features.shape[1]

    def both(rows, half, contexts):
        state = policy.update(half, policy.init(key))
        probabilities = bandits.arm_probabilities(
            policy, state, contexts, key, num_arms=num_arms, num_draws=2
        )
        return probabilities, bandits.replay_value(replay(policy, rows, key)).value

    return compiled(both)(rows, half, contexts)


@jax.jit
def _estimate(key, log, target, predicted) -> jax.Array:
    """Value and both ends of its interval by every estimator."""
    made = (
        bandits.ips(log, target),
        bandits.snips(log, target),
        bandits.direct_method(target, predicted),
        bandits.doubly_robust(log, target, predicted),
    )
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
    low, high = jax.vmap(bandits.bootstrap_interval, (None, 0))(key, stacked)
    return jnp.stack([stacked.value, low, high], axis=1)


def summarize(config: Config, data: dict[str, np.ndarray]):
    """Metrics, figures and claims; one line if the data are not here."""
    if not data["here"]:
        return {}, {}, (Claim(NOT_RUN, np.nan),)
    names = [policy.name for policy in index_policies(0.0)]
    metrics = {
        "shop_regret": Metric(
            data["regret"], (("policy", names), ("seed", range(config.few_seeds)))
        ),
        "shop_estimates": Metric(
            data["estimates"],
            (
                ("target", TARGETS),
                ("estimator", ESTIMATORS),
                ("end", ("value", "low", "high")),
            ),
        ),
        "shop_replays": Metric(data["replays"], (("target", TARGETS),)),
    }
    claims = [
        Claim(
            f"Open Bandit samples, {CAMPAIGN}: click rate of {name}, doubly robust, "
            f"from {len(data['logged']):,} rows of the random policy (its own rate is "
            f"{data['logged'].mean():.4f})",
            value,
            None,
            Interval(low, high, "95% percentile bootstrap over rows"),
        )
        for name, (value, low, high) in zip(
            TARGETS, data["estimates"][:, -1], strict=True
        )
    ]
    eqol, oful = (data["regret"][names.index(name)] for name in ("EQOL", "OFUL"))
    claims.append(
        Claim(
            f"Shop made of the click logs, {config.shop_rounds:,} rounds: regret of "
            "EQOL less that of OFUL",
            (eqol - oful).mean(),
            None,
            bootstrap_interval(eqol - oful),
        )
    )
    return metrics, {"open_bandit": _figure(config, data, names)}, tuple(claims)


def _figure(config, data, names):
    figure, (panels,) = new_figure(
        f"Open Bandit samples, campaign {CAMPAIGN}", columns=2
    )
    left, right = panels
    for offset, name in enumerate(ESTIMATORS):
        value, low, high = data["estimates"][:, offset].T
        left.errorbar(
            np.arange(len(TARGETS)) + 0.15 * (offset - 1.5),
            value,
            [value - low, high - value],
            linestyle="",
            label=name,
        )
    left.axhline(data["logged"].mean(), color=GREY, linestyle="--", marker="")
    left.set(
        xticks=range(len(TARGETS)),
        xticklabels=TARGETS,
        ylabel="click rate",
        title="estimates from 5,000 random rows, 95% bootstrap",
    )
    left.margins(y=0.25)
    left.legend(loc="upper right", ncols=4, columnspacing=1.0, handletextpad=0.3)
    heights = np.arange(len(names))[::-1]
    for height, regret in zip(heights, data["regret"], strict=True):
        right.plot(regret, np.full(len(regret), height), ".", color=GREY, linestyle="")
        right.plot(regret.mean(), height, "D", color="#0072B2")
    right.set(
        yticks=heights,
        yticklabels=names,
        xlabel="regret",
        title=f"shop with clicks from a model, {config.shop_rounds:,} rounds",
    )
    log_axes(right, "x")
    return figure
