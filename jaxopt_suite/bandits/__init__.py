"""Bandits: linear policies, ensembles, bandit convex optimization, off-policy tools."""

from jaxopt_suite.bandits.bco import (
    OracleState,
    dars,
    dftbl,
    periodic_restart,
    static_oracle,
)
from jaxopt_suite.bandits.bco_baselines import (
    BGDState,
    MildOGDState,
    bandit_mild_ogd,
    delayed_bgd,
)
from jaxopt_suite.bandits.bco_blocked import (
    Trace,
    dars_rollout_blocked,
)
from jaxopt_suite.bandits.bco_detect import (
    DetectState,
    dars_detect,
)
from jaxopt_suite.bandits.bco_primitives import (
    block_length,
    one_point_gradient,
    smoothing_radius,
    sphere_sample,
)
from jaxopt_suite.bandits.bco_rounds import (
    BCODecision,
    BCOState,
)
from jaxopt_suite.bandits.bco_schedule import (
    BCOSchedule,
    dars_schedule,
)
from jaxopt_suite.bandits.bco_two_point import (
    TwoPointDecision,
    TwoPointFeedback,
    dars_two_point,
    two_point_env,
    two_point_schedule,
)
from jaxopt_suite.bandits.convex_sets import (
    ConvexSet,
    box,
    l2_ball,
    simplex,
)
from jaxopt_suite.bandits.ensemble import (
    EnsembleState,
    ensemble_mixture,
    ensemble_sampling,
    ensemble_size,
)
from jaxopt_suite.bandits.eqol import (
    eqol,
    of_round,
)
from jaxopt_suite.bandits.generalized import (
    Link,
    generalized_eqol,
)
from jaxopt_suite.bandits.lazy import (
    LazyDecision,
    LazyState,
    lazy,
    rare_oful,
)
from jaxopt_suite.bandits.lazy_ensemble import (
    LazyEnsembleState,
    ensemble_values,
    lazy_ensemble_sampling,
)
from jaxopt_suite.bandits.linear import (
    choose,
    index_policy,
    play,
    ridge_learn,
)
from jaxopt_suite.bandits.neural_linear import (
    NeuralLinearState,
    eqol_on_features,
    refresh_encoder,
)
from jaxopt_suite.bandits.off_policy import (
    BanditLog,
    OffPolicyEstimate,
    bandit_log,
    bootstrap_interval,
    direct_method,
    doubly_robust,
    ips,
    replay_value,
    snips,
)
from jaxopt_suite.bandits.off_policy_bounds import (
    ConfidenceSequence,
    confidence_sequence,
)
from jaxopt_suite.bandits.off_policy_inputs import (
    arm_probabilities,
    cross_fitted_rewards,
)
from jaxopt_suite.bandits.optimism import (
    greedy,
    lin_imed,
    linucb,
    oful,
)
from jaxopt_suite.bandits.randomized import (
    RandomState,
    epsilon_greedy,
    random_policy,
    squarecb,
)
from jaxopt_suite.bandits.ridge import (
    RidgeState,
    ridge_init,
    ridge_predictions,
    ridge_radius,
    ridge_refactor,
    ridge_update,
    ridge_update_batch,
    ridge_widths,
)
from jaxopt_suite.bandits.supervised import (
    SupervisedDecision,
    SupervisedState,
    supervised_ridge,
)
from jaxopt_suite.bandits.thompson import (
    PerturbedHistoryState,
    ThompsonState,
    lin_phe,
    lin_ts,
)
from jaxopt_suite.problems.contextual import (
    BanditFeedback,
    LinearContext,
    LinearDecision,
)

__all__ = [
    "BCODecision",
    "BCOSchedule",
    "BCOState",
    "BGDState",
    "BanditFeedback",
    "BanditLog",
    "ConfidenceSequence",
    "ConvexSet",
    "DetectState",
    "EnsembleState",
    "LazyDecision",
    "LazyEnsembleState",
    "LazyState",
    "LinearContext",
    "LinearDecision",
    "Link",
    "MildOGDState",
    "NeuralLinearState",
    "OffPolicyEstimate",
    "OracleState",
    "PerturbedHistoryState",
    "RandomState",
    "RidgeState",
    "SupervisedDecision",
    "SupervisedState",
    "ThompsonState",
    "Trace",
    "TwoPointDecision",
    "TwoPointFeedback",
    "arm_probabilities",
    "bandit_log",
    "bandit_mild_ogd",
    "block_length",
    "bootstrap_interval",
    "box",
    "choose",
    "confidence_sequence",
    "cross_fitted_rewards",
    "dars",
    "dars_detect",
    "dars_rollout_blocked",
    "dars_schedule",
    "dars_two_point",
    "delayed_bgd",
    "dftbl",
    "direct_method",
    "doubly_robust",
    "ensemble_mixture",
    "ensemble_sampling",
    "ensemble_size",
    "ensemble_values",
    "epsilon_greedy",
    "eqol",
    "eqol_on_features",
    "generalized_eqol",
    "greedy",
    "index_policy",
    "ips",
    "l2_ball",
    "lazy",
    "lazy_ensemble_sampling",
    "lin_imed",
    "lin_phe",
    "lin_ts",
    "linucb",
    "of_round",
    "oful",
    "one_point_gradient",
    "periodic_restart",
    "play",
    "random_policy",
    "rare_oful",
    "refresh_encoder",
    "replay_value",
    "ridge_init",
    "ridge_learn",
    "ridge_predictions",
    "ridge_radius",
    "ridge_refactor",
    "ridge_update",
    "ridge_update_batch",
    "ridge_widths",
    "simplex",
    "smoothing_radius",
    "snips",
    "sphere_sample",
    "squarecb",
    "static_oracle",
    "supervised_ridge",
    "two_point_env",
    "two_point_schedule",
]
