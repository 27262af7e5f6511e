"""The battery for :class:`jaxopt_suite.core.Environment`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree

from jaxopt_suite.core.types import Environment
from jaxopt_suite.testing._common import (
    NUM_STEPS,
    Rule,
    Subject,
    make_pairs,
    require_difference,
    require_same_type,
    run_rules,
)
from jaxopt_suite.testing._rules import COMMON_RULES, FIRST_RULES


class _Carry(NamedTuple):
    state: PyTree
    context: PyTree


@dataclass(frozen=True, kw_only=True)
class _World(Subject):
    """An environment that answers arbitrary decisions."""

    decide: Callable[[PyTree, PRNGKeyArray], PyTree]

    def begin(self, method, start):
        return _Carry(*method.init(start))

    def data(self, lane):
        keys = jax.random.split(jax.random.key(lane), (NUM_STEPS + 1, 2))
        return keys[0, 0], keys[1:]

    def step(self, method, carry, inputs):
        state, context = carry
        decision = self.decide(context, inputs[0])
        state, context, feedback = method.step(state, decision, inputs[1])
        return (decision, feedback), _Carry(state, context)

    def state(self, carry):
        return carry.state


def check_environment(
    factory: Callable[..., Environment],
    hyperparameters: Mapping[str, Any] | None = None,
    *,
    decide: Callable[[PyTree, PRNGKeyArray], PyTree],
    static: Mapping[str, Any] | None = None,
    key: str | None = None,
    random: bool = True,
    bad: Sequence[tuple[Mapping[str, Any], str]] = (),
    skip: Mapping[str, str] | None = None,
    tolerance: float = 1e-5,
) -> dict[str, str]:
    """Runs the contract of environments on one factory.

    Args:
        factory: ``factory(**static, **hyperparameters)`` returns an ``Environment``.
        hyperparameters: the numeric ones, which may be traced: a value, or a pair of
            valid values to sweep between. A single value v is swept down to 0.8 v.
        decide: ``(context, key) -> decision``, any valid decision of a policy.
        static: all other arguments of the factory.
        key: name of the factory's argument that takes a PRNG key, if it has one.
        random: whether another key must give another run.
        bad: pairs ``(overrides, pattern)`` that must raise a matching ValueError.
        skip: rule name to the reason why this factory is exempt from it.
        tolerance: largest difference, relative to one plus the largest entry.

    Returns:
        Rule name to ``"passed"`` or the reason why it did not run.

    Raises:
        AssertionError: a rule is broken; the message has its name, the factory, what
            was seen and what to do.
        ValueError: ``skip`` has an unknown rule or no reason.

    Example:
        >>> from typing import NamedTuple
        >>> from jaxopt_suite.core import Environment
        >>> from jaxopt_suite.testing import check_environment
        >>> class Feedback(NamedTuple):
        ...     decision: jax.Array
        ...     mask: jax.Array
        ...     reward: jax.Array
        >>> class Still(NamedTuple):
        ...     pass
        >>> def noisy_target(target):
        ...     '''>>> noisy_target(0.5)  # rewards decisions near the target'''
        ...     def step(state, decision, key):
        ...         reward = jax.random.normal(key) - (decision - target) ** 2
        ...         feedback = Feedback(decision, jnp.array(True), reward)
        ...         return state, jnp.zeros([]), feedback
        ...     return Environment(lambda key: (Still(), jnp.zeros([])), step)
        >>> guess = lambda context, key: jax.random.normal(key)
        >>> report = check_environment(noisy_target, {"target": 0.5}, decide=guess)
        >>> report["pure_update"]
        'passed'
    """
    subject = _World(
        factory,
        make_pairs(hyperparameters),
        dict(static or {}),
        key,
        bad,
        tolerance,
        decide=decide,
    )
    rules = _RULES if random else [r for r in _RULES if r is not keys_matter]
    return run_rules(subject, rules, skip)


def returns_environment(subject: _World) -> None:
    """The factory returns a jaxopt_suite.core.Environment(init, step)."""
    method = subject.build(subject.values(0))
    if not isinstance(method, Environment):
        kind = type(method).__name__
        raise AssertionError(f"it must return an Environment, got {kind}")


def stable_context(subject: _World) -> None:
    """The contexts of init and step have one structure, one shape and one dtype."""
    _, carries = jax.eval_shape(subject.probe, subject.data(0))
    for carry in carries[1:]:
        require_same_type("context", carry.context, carries[0].context)


def feedback_fields(subject: _World) -> None:
    """Feedback is a NamedTuple with the fields decision and mask.

    decision is what step was given; mask is a boolean scalar, False where nothing came
    back.
    """
    outputs, _ = jax.eval_shape(subject.probe, subject.data(0))
    decision, feedback = outputs[0]
    for name in ("decision", "mask"):
        if name not in getattr(feedback, "_fields", ()):
            raise AssertionError(f"feedback must have the field {name}, got {feedback}")
    require_same_type("feedback.decision", feedback.decision, decision)
    shape, dtype = feedback.mask.shape, feedback.mask.dtype
    if shape or not jnp.issubdtype(dtype, jnp.bool_):
        raise AssertionError(f"feedback.mask must be bool[], got {dtype}{list(shape)}")


def keys_matter(subject: _World) -> None:
    """Another key gives another run.

    Draw from the keys of init and step, or say random=False.
    """
    method = subject.build(subject.values(0))
    start, keys = subject.data(1)
    (decision, feedback), carry = subject.eager[0][0], subject.eager[1][0]
    answer = method.step(carry.state, decision, keys[0, 1])
    got = answer, method.init(start)
    first = (*subject.eager[1][1], feedback), carry
    require_difference(got, first, "another key")


_RULES: tuple[Rule, ...] = (
    *FIRST_RULES,
    returns_environment,
    stable_context,
    feedback_fields,
    *COMMON_RULES,
    keys_matter,
)
