"""What contextual bandit policies and their environments hand to each other."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int


class LinearContext(NamedTuple):
    """What a linear policy sees before it plays.

    Attributes:
        features: one row per arm, shape (num_arms, d), in the shared layout; the one
            context vector, shape (p,), in the disjoint layout.
        mask: which arms may be played; None: all of them.
    """

    features: Float[Array, "*arms d"]
    mask: Bool[Array, " num_arms"] | None = None


class LinearDecision(NamedTuple):
    """What a linear policy played, with all that its update will need.

    Attributes:
        arm: the arm played.
        x: its features in the shared layout; the context in the disjoint one.
        score: its index, the value that was maximal.
        bonus: the part of the score that pays for exploration.
        propensity: the probability of this arm under the policy; NaN where the choice
            was deterministic given the state, or its probability has no closed form.
        valid: False if no arm could be played: arm 0 stands in, with score -inf.
        member: the ensemble member that was followed; -1 without an ensemble.
    """

    arm: Int[Array, "*batch"]
    x: Float[Array, "*batch d"]
    score: Float[Array, "*batch"] | float = float("nan")
    bonus: Float[Array, "*batch"] | float = 0.0
    propensity: Float[Array, "*batch"] | float = float("nan")
    valid: Bool[Array, "*batch"] | bool = True
    member: Int[Array, "*batch"] | int = -1


class BanditFeedback(NamedTuple):
    """The answer to a decision; all fields with or without one leading batch axis.

    Attributes:
        decision: the decision it answers.
        reward: what was earned.
        mask: False where there is nothing: an empty slot of a batch.
        regret: mean reward of the best arm less that of the arm played, for the record
            only (NaN there changes no decision); 0 where it is not known.
    """

    decision: LinearDecision
    reward: Float[Array, "*batch"] | float
    mask: Bool[Array, "*batch"] | bool = True
    regret: Float[Array, "*batch"] | float = 0.0
