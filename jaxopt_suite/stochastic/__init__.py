"""Gradients under noise: samplers, robust means, clipped methods, annealing.

Chain :func:`aggregate_median_of_means` in front of any Optax optimizer and feed it
per-example or per-group gradients (:func:`group_gradients`). Where the noise is a
friend, :mod:`~jaxopt_suite.stochastic.schedules` cool it (:func:`annealed_sgd`), and
:func:`run_chains` counts what that buys.
"""

from jaxopt_suite.stochastic import annealing_oracle, diffusion_oracle, schedules
from jaxopt_suite.stochastic.accelerated import (
    clipped_sstm,
    mom_clipped_sstm,
    restarted_clipped_sstm,
    sstm_eval_params,
)
from jaxopt_suite.stochastic.accumulation import (
    accumulate_median_of_means,
    group_gradients,
    median_of_means_steps,
    robustify,
)
from jaxopt_suite.stochastic.aggregators import (
    adaptive_median_of_means,
    aggregate_clip_then_mean,
    aggregate_geometric_median,
    aggregate_mean,
    aggregate_median_of_means,
    aggregate_medoid,
    aggregate_trimmed_mean,
)
from jaxopt_suite.stochastic.annealing import (
    annealed_sgd,
    estimate_noise_std,
    inject_gradient_noise,
    langevin,
    temperature_monitor,
)
from jaxopt_suite.stochastic.bounded_noise import rademacher, uniform
from jaxopt_suite.stochastic.chains import (
    ChainRecord,
    ReplicaSummary,
    queries_to_target,
    replica_summary,
    run_chains,
)
from jaxopt_suite.stochastic.clipped import (
    clip_by_scheduled_norm,
    clipped_sgd,
    mom_clipped_sgd,
    normalized_sgd_momentum,
)
from jaxopt_suite.stochastic.diffusion_oracle import Landscape1D, landscape_1d
from jaxopt_suite.stochastic.gradient_noise import (
    add_noise_to_gradient,
    noisy_oracle,
    tail_index_hill,
    tail_index_monitor,
)
from jaxopt_suite.stochastic.mom_theory import (
    bias_bound,
    cauchy_median_second_moment,
    default_num_groups,
    plan_groups,
    second_moment_bound,
)
from jaxopt_suite.stochastic.momentum import normalize, storm
from jaxopt_suite.stochastic.noise import (
    Noise,
    add_noise,
    additive,
    cauchy,
    centred_exponential,
    centred_pareto,
    gaussian,
    mixture,
    skewed_stable,
    student_t,
    symmetric_lomax,
    symmetric_pareto,
    symmetric_stable,
)
from jaxopt_suite.stochastic.population_annealing import (
    PopulationRecord,
    population_annealing,
    systematic_resample,
)
from jaxopt_suite.stochastic.robust_mean import (
    clip_then_mean,
    exact_median,
    geometric_median,
    median_of_means,
    median_of_means_tree,
    medoid,
    trimmed_mean,
)
from jaxopt_suite.stochastic.schedule_planning import (
    SchedulePlan,
    plan_schedule,
    staircase,
)

__all__ = [
    "ChainRecord",
    "Landscape1D",
    "Noise",
    "PopulationRecord",
    "ReplicaSummary",
    "SchedulePlan",
    "accumulate_median_of_means",
    "adaptive_median_of_means",
    "add_noise",
    "add_noise_to_gradient",
    "additive",
    "aggregate_clip_then_mean",
    "aggregate_geometric_median",
    "aggregate_mean",
    "aggregate_median_of_means",
    "aggregate_medoid",
    "aggregate_trimmed_mean",
    "annealed_sgd",
    "annealing_oracle",
    "bias_bound",
    "cauchy",
    "cauchy_median_second_moment",
    "centred_exponential",
    "centred_pareto",
    "clip_by_scheduled_norm",
    "clip_then_mean",
    "clipped_sgd",
    "clipped_sstm",
    "default_num_groups",
    "diffusion_oracle",
    "estimate_noise_std",
    "exact_median",
    "gaussian",
    "geometric_median",
    "group_gradients",
    "inject_gradient_noise",
    "landscape_1d",
    "langevin",
    "median_of_means",
    "median_of_means_steps",
    "median_of_means_tree",
    "medoid",
    "mixture",
    "mom_clipped_sgd",
    "mom_clipped_sstm",
    "noisy_oracle",
    "normalize",
    "normalized_sgd_momentum",
    "plan_groups",
    "plan_schedule",
    "population_annealing",
    "queries_to_target",
    "rademacher",
    "replica_summary",
    "restarted_clipped_sstm",
    "robustify",
    "run_chains",
    "schedules",
    "second_moment_bound",
    "skewed_stable",
    "sstm_eval_params",
    "staircase",
    "storm",
    "student_t",
    "symmetric_lomax",
    "symmetric_pareto",
    "symmetric_stable",
    "systematic_resample",
    "tail_index_hill",
    "tail_index_monitor",
    "temperature_monitor",
    "trimmed_mean",
    "uniform",
]
