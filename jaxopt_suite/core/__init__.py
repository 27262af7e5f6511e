"""The contract and the drivers that every method shares."""

from jaxopt_suite.core.delays import (
    DelayModel,
    adversarial_block_delay,
    burst_delay,
    constant_delay,
    geometric_delay,
    uniform_delay,
)
from jaxopt_suite.core.drivers import (
    LoopState,
    OptimizeResult,
    optimization_loop,
    optimize,
    sweep,
)
from jaxopt_suite.core.gating import gated_cond
from jaxopt_suite.core.interaction import (
    InteractionKeys,
    InteractionState,
    InteractionSummary,
    InteractionTrace,
    InteractResult,
    interact,
    interaction_keys,
    interaction_loop,
)
from jaxopt_suite.core.loops import run_chunks
from jaxopt_suite.core.mesh import device_mesh, fetch, shard_leading
from jaxopt_suite.core.replay import Logged, ReplayResult, replay
from jaxopt_suite.core.types import Environment, Policy, Problem, Transformation

__all__ = [
    "DelayModel",
    "Environment",
    "InteractResult",
    "InteractionKeys",
    "InteractionState",
    "InteractionSummary",
    "InteractionTrace",
    "Logged",
    "LoopState",
    "OptimizeResult",
    "Policy",
    "Problem",
    "ReplayResult",
    "Transformation",
    "adversarial_block_delay",
    "burst_delay",
    "constant_delay",
    "device_mesh",
    "fetch",
    "gated_cond",
    "geometric_delay",
    "interact",
    "interaction_keys",
    "interaction_loop",
    "optimization_loop",
    "optimize",
    "replay",
    "run_chunks",
    "shard_leading",
    "sweep",
    "uniform_delay",
]
