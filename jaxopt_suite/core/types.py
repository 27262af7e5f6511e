"""The contract: four shapes of pure functions, nothing else.

Whatever maps gradients to updates is an ``optax.GradientTransformationExtraArgs``, used
as it is; what reduces per-example gradients is an
``optax.experimental.aggregating.Aggregator``. The other three shapes are here, with the
:class:`Problem` that :func:`jaxopt_suite.core.optimize` runs a transformation on.

All state is a NamedTuple of arrays whose structure, shapes and dtypes never change
under ``update``, so it goes through ``lax.scan``, ``vmap``, checkpoints and sharding as
it is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, PRNGKeyArray, PyTree


class Transformation(NamedTuple):
    """Any iteration that is not a gradient transformation.

    Attributes:
        init: ``init(...) -> state``.
        update: ``update(inputs, state, ...) -> (outputs, state)``, in Optax's order.
    """

    init: Callable[..., Any]
    update: Callable[..., tuple[Any, Any]]


class Policy(NamedTuple):
    """Whoever decides, then learns from what comes back.

    ``select`` leaves the state alone, and the decision carries whatever ``update``
    needs later (a perturbation, a feature vector). So feedback may come late, out of
    order or in batches. A feedback is a NamedTuple with the fields ``decision`` and
    ``mask`` (False: nothing there), all with or without one leading batch axis; a field
    ``regret`` is for the record and is never read by a policy.

    Attributes:
        init: ``init(key) -> state``.
        select: ``select(state, context, key) -> decision``.
        update: ``update(feedback, state) -> state``.
    """

    init: Callable[[PRNGKeyArray], Any]
    select: Callable[[Any, Any, PRNGKeyArray], Any]
    update: Callable[[Any, Any], Any]


class Environment(NamedTuple):
    """A simulator that answers a :class:`Policy`.

    Attributes:
        init: ``init(key) -> (state, context)``.
        step: ``step(state, decision, key) -> (state, context, feedback)``; the context
            is that of the next round.
    """

    init: Callable[[PRNGKeyArray], tuple[Any, Any]]
    step: Callable[[Any, Any, PRNGKeyArray], tuple[Any, Any, Any]]


class Problem(NamedTuple):
    """What a gradient transformation is run on.

    Attributes:
        init: ``init(key) -> params``.
        grad: ``grad(key, params) -> updates``, a stochastic gradient, or per-example
            gradients with a leading sample axis for an Aggregator.
        metrics: ``metrics(params) -> pytree of arrays``, noise-free, for the record.
    """

    init: Callable[[PRNGKeyArray], PyTree]
    grad: Callable[[PRNGKeyArray, PyTree], PyTree]
    metrics: Callable[[PyTree], PyTree[Array]]
