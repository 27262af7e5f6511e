"""Families of ensembles: each is compiled once, whatever its number of members."""

import functools
import math
from typing import Any

import jax.numpy as jnp

from experiments.eqol.policies import (
    Family,
    Named,
    Point,
    World,
    eqol_point,
    index,
    perturbed,
    thompson,
)
from jaxopt_suite import bandits
from jaxopt_suite.bandits.members import draw_member
from jaxopt_suite.core import Policy

# Implicit members are not stored, so that there may be as many as anyone asks for.
PLENTY = 10**6


def standard_size(d: int, horizon: int) -> int:
    """``d log T``, which the theory of standard ensemble sampling asks for."""
    return math.ceil(d * math.log(horizon))


def lazy_size(d: int, horizon: int) -> int:
    """``d log d + d log log T``."""
    return bandits.ensemble_size(d, horizon)


def first_members(policy: Policy, count: Any) -> Policy:
    """An ensemble of which only the first ``count`` members are followed.

    The same arms as an ensemble of that size, but ``count`` may be traced: all sizes
    are one program.
    """

    def select(state, context, key):
        if isinstance(state, bandits.LazyEnsembleState):
            return policy.select(state._replace(active=count), context, key)
        member = draw_member(key, count)
        # Whichever member the policy draws now, it follows this one.
        only = jnp.broadcast_to(state.offsets[member], state.offsets.shape)
        decision = policy.select(state._replace(offsets=only), context, key)
        return decision._replace(member=member)

    return Policy(policy.init, select, policy.update)


@functools.cache
def standard(most: int) -> Family:
    """Standard ensembles of up to ``most`` members; ``v = R``."""

    def family(world: World, point: Point) -> Policy:
        policy = bandits.ensemble_sampling(
            world.d, most, scale=world.noise, **world.layout
        )
        return first_members(policy, point["members"])

    return family


@functools.cache
def symmetrized(members: int) -> Family:
    """A standard ensemble whose members are followed with a random sign."""

    def family(world: World, point: Point) -> Policy:
        del point
        return bandits.ensemble_sampling(
            world.d, members, scale=world.noise, symmetrized=True, **world.layout
        )

    return family


@functools.cache
def mixture(members: int) -> Family:
    """Random mixtures of a standard ensemble."""

    def family(world: World, point: Point) -> Policy:
        del point
        return bandits.ensemble_mixture(
            world.d, members, scale=world.noise, **world.layout
        )

    return family


@functools.cache
def lazy_ensemble(most: int = PLENTY, **variant: Any) -> Family:
    """Lazy ensembles of up to ``most`` members, by default implicit and with ``v=R``.

    Args:
        most: the number of members; a point may ask for fewer as ``members``.
        **variant: other arguments of ``lazy_ensemble_sampling``.
    """

    def family(world: World, point: Point) -> Policy:
        options: dict[str, Any] = {"num_arms": world.K, "members": "implicit"}
        options |= {"scale": world.noise, "noise": world.noise, **world.layout}
        policy = bandits.lazy_ensemble_sampling(
            world.d,
            options.pop("num_members", most),
            growth=point.get("growth", 1.0),
            **(options | variant),
        )
        return first_members(policy, point["members"]) if "members" in point else policy

    return family


def anytime(world: World, point: Point) -> Policy:
    """A lazy ensemble that is not told the horizon."""
    del point
    return bandits.lazy_ensemble_sampling(
        world.d, scale=world.noise, members="implicit"
    )


def rare_index(world: World, point: Point) -> Policy:
    """Rarely switching OFUL, EQOL and the like."""
    return bandits.lazy(index(world, point), growth=point["growth"])


def rare_thompson(world: World, point: Point) -> Policy:
    """Rarely switching Thompson sampling."""
    return bandits.lazy(thompson(world, point), growth=point["growth"])


def thompson_point(noise: float) -> dict[str, float]:
    """Thompson sampling with ``v = R``."""
    return {"multiplier": 0.0, "scale": noise}


OFUL_POINT = eqol_point(a=math.inf)
THEORY_POINT = {"multiplier": 1.0, "scale": 0.0}


def standard_ensembles(counts: tuple[int, ...]) -> list[Named]:
    """Standard ensembles of these sizes: one program, as large as the largest."""
    family = standard(max(counts))
    return [Named(f"ES m={count}", family, {"members": count}) for count in counts]


def lazy_ensembles(counts: tuple[int, ...]) -> list[Named]:
    """Lazy ensembles of these sizes: one program."""
    family = lazy_ensemble()
    return [Named(f"lazy m={count}", family, {"members": count}) for count in counts]


def baselines(world: World, horizon: int) -> list[Named]:
    """What ensembles are compared with."""
    d, small, noise = world.d, max(world.d // 2, 1), world.noise
    size = lazy_size(d, horizon)
    return [
        Named("LinTS v=R", thompson, thompson_point(noise)),
        Named("LinTS theory", thompson, THEORY_POINT),
        Named("OFUL", index, OFUL_POINT),
        Named("LinUCB alpha=R", index, eqol_point(a=math.inf, cap=0.0, alpha=noise)),
        Named("EQOL", index, eqol_point()),
        Named("greedy", index, eqol_point(a=0.0)),
        Named("rare OFUL", rare_index, OFUL_POINT | {"growth": 1.0}),
        Named(f"ES symmetrized m={small}", symmetrized(small), {"unused": 0.0}),
        Named(f"ES mixture m={size}", mixture(size), {"unused": 0.0}),
    ]


def variants(world: World, horizon: int) -> list[Named]:
    """Other lazy ensembles of the recommended size, and perturbed histories."""
    size = lazy_size(world.d, horizon)
    changes: dict[str, dict[str, Any]] = {
        "frozen": {"within_epoch": "frozen"},
        "trace": {"trigger": "trace"},
        "spectral": {"trigger": "spectral"},
        "accumulate": {"redraw": "accumulate", "members": "explicit"},
        "v theory": {"scale": "theory"},
        "v finite": {"scale": "finite"},
    }
    named = [
        Named(f"lazy {name} m={size}", lazy_ensemble(size, **change), {"growth": 1.0})
        for name, change in changes.items()
    ]
    return [*named, Named("LinPHE v=R", perturbed, {"perturb": world.noise})]
