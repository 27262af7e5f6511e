"""Problems, and policies by families: what a program is compiled for."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxopt_suite import bandits, problems
from jaxopt_suite.bandits.eqol import balanced
from jaxopt_suite.core import Environment, Policy

# Of all confidence radii.
CONF = 0.01
# Of the shop's clicks: from about 5 of 1000 to about 9 of 100, enough to learn from.
LOGIT_SHIFT = 3.0
Point = Mapping[str, Any]
Family = Callable[["World", Point], Policy]


class World(NamedTuple):
    """A problem, and what policies are told of it.

    Attributes:
        d: width of features, or of the context.
        K: number of arms.
        noise: the sub-Gaussian scale that policies are told.
        arms: as for ``linear_env``; or ``"gap"``; or ``"rows"``: labelled data; or
            ``"shop"``: a shop made of click logs.
        pool: number of arm sets.
        data: name of the data set or of the shop's campaign.
    """

    d: int
    K: int
    noise: float
    arms: str = "fixed"
    pool: int = 1
    data: str = ""

    @property
    def layout(self) -> dict[str, Any]:
        """The layout of the statistics, as arguments of a policy."""
        if self.arms == "rows":
            return {"layout": "disjoint", "num_arms": self.K}
        return {}

    def environment(self, point: Point) -> Environment:
        """The environment; a point may say which gap."""
        if self.arms == "rows":
            return classification(self.data)
        if self.arms == "shop":
            return problems.obd_env(click_model(self.data), logit_shift=LOGIT_SHIFT)
        if self.arms == "gap":
            return problems.gap_env(self.d, self.K, point["gap"], noise=self.noise)
        return problems.linear_env(
            self.d, self.K, noise=self.noise, arms=self.arms, pool=self.pool
        )


ROWS = {
    "fixed10": World(10, 50, 0.5),
    "pool20": World(10, 20, 0.5, "pool", 20),
    "pool5": World(20, 100, 0.3, "pool", 5),
    "fixed5": World(5, 100, 0.5),
    "pool512": World(10, 20, 0.1, "pool", 512),
}


def row_title(name: str) -> str:
    """A synthetic problem in words."""
    world = ROWS[name]
    sets = f"pool of {world.pool}" if world.arms == "pool" else "fixed arms"
    return f"d={world.d}, K={world.K}, {sets}, R={world.noise:g}"


@functools.cache
def labelled(name: str) -> problems.LabelledData:
    """A packaged data set by its short name."""
    loaders = {"cancer": problems.breast_cancer, "digits": problems.digits}
    loaders |= {"wine": problems.wine, "iris": problems.iris}
    # Kept for all programs, so not made within the trace of one.
    with jax.ensure_compile_time_eval():
        return loaders[name]()


@functools.cache
def classification(name: str) -> Environment:
    """The data set as a bandit."""
    data = labelled(name)
    with jax.ensure_compile_time_eval():
        return problems.classification_env(data.features, data.labels)


@functools.cache
def data_world(name: str) -> World:
    """The data set as a problem, with the noise that policies are told."""
    data = labelled(name)
    width = context_rows(name).shape[1]
    return World(width, int(np.asarray(data.labels).max()) + 1, 0.5, "rows", data=name)


def context_rows(name: str) -> jax.Array:
    """The contexts of a data set."""
    return problems.bandit_rows(labelled(name).features)


@functools.cache
def click_logs(campaign: str) -> list[problems.OpenBanditLog]:
    """The logs of both policies in a campaign, the uniformly random one first."""
    return [problems.load_open_bandit(policy, campaign) for policy in ("random", "bts")]


@functools.cache
def click_model(campaign: str) -> problems.ClickModel:
    """The click model that is fitted on all rows of a campaign."""
    with jax.ensure_compile_time_eval():
        return problems.fit_click_model(click_logs(campaign))


def index(world: World, point: Point) -> Policy:
    """EQOL and its exact special cases, in one program.

    The quadratic branch is that of ``eqol(a=)``, infinite for OFUL and LinUCB, or the
    balanced one; the cap is ``cap`` times the radius plus ``alpha``.
    """
    num_parameters = world.d * world.layout.get("num_arms", 1)

    def radius(state):
        return bandits.ridge_radius(state, noise=world.noise, conf=CONF)

    def quadratic(state):
        rounds = (state.count + 1).astype(state.theta.dtype)
        even = balanced(rounds, num_parameters)
        scale = jnp.where(point["balanced"], even, point["a"])
        return scale * radius(state) * jnp.sqrt(rounds / num_parameters)

    def cap(state):
        return point["cap"] * radius(state) + point["alpha"]

    return bandits.eqol(world.d, c1=quadratic, c2=cap, **world.layout)


def thompson(world: World, point: Point) -> Policy:
    """Thompson sampling: a multiple of the radius plus a constant for scale."""

    def scale(state):
        radius = bandits.ridge_radius(state, noise=world.noise, conf=CONF)
        return point["multiplier"] * radius + point["scale"]

    return bandits.lin_ts(world.d, scale=scale, **world.layout)


def epsilon(world: World, point: Point) -> Policy:
    """Epsilon-greedy; at 1 it plays at random."""
    return bandits.epsilon_greedy(world.d, epsilon=point["epsilon"], **world.layout)


def squarecb(world: World, point: Point) -> Policy:
    """Inverse-gap weighting."""
    return bandits.squarecb(world.d, gamma=point["gamma"], **world.layout)


def imed(world: World, point: Point) -> Policy:
    """Minimum empirical divergence; the point is not read."""
    return bandits.lin_imed(world.d, noise=world.noise, conf=CONF, **world.layout)


def perturbed(world: World, point: Point) -> Policy:
    """Perturbed history of the last 3000 rows."""
    return bandits.lin_phe(
        world.d, perturb=point["perturb"], horizon=3000, **world.layout
    )


def logistic(world: World, point: Point) -> Policy:
    """EQOL for yes or no, with the model's own noise."""
    return bandits.generalized_eqol(
        world.d, "logistic", a=point["a"], bound=point["bound"], **world.layout
    )


class Named(NamedTuple):
    """A policy by name: its family, and its point in it."""

    name: str
    family: Family
    point: Point


def eqol_point(
    a: float = 0.1, cap: float = 1.0, alpha: float = 0.0, balanced: bool = False
) -> dict[str, float]:
    """A point of the family :func:`index`."""
    return {"a": a, "cap": cap, "alpha": alpha, "balanced": balanced}


def index_policies(noise: float) -> list[Named]:
    """What is compared everywhere."""
    points = {
        "EQOL": eqol_point(),
        "EQOL a=.05": eqol_point(a=0.05),
        "EQOL balanced": eqol_point(balanced=True),
        "OFUL": eqol_point(a=np.inf),
        "LinUCB alpha=R": eqol_point(a=np.inf, cap=0.0, alpha=noise),
        "greedy": eqol_point(a=0.0),
    }
    return [Named(name, index, point) for name, point in points.items()]


def all_policies(world: World, horizon: int) -> list[Named]:
    """The same and the randomized baselines."""
    gamma = (world.K * horizon / (world.d * world.layout.get("num_arms", 1))) ** 0.5
    return [
        *index_policies(world.noise),
        Named("LinTS theory", thompson, {"multiplier": 1.0, "scale": 0.0}),
        Named("LinTS scale=R", thompson, {"multiplier": 0.0, "scale": world.noise}),
        Named("epsilon-greedy .05", epsilon, {"epsilon": 0.05}),
        Named("random", epsilon, {"epsilon": 1.0}),
        Named("SquareCB", squarecb, {"gamma": gamma}),
        Named("SquareCB, 10 gamma", squarecb, {"gamma": 10 * gamma}),
        Named("LinIMED", imed, {"unused": 0.0}),
    ]
