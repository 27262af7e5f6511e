"""Median of means without per-example gradients: over microbatches, or by groups.

Three ways to get group means cheaply: accumulate one microbatch gradient per call
(:func:`accumulate_median_of_means`, :func:`median_of_means_steps`), or take one
gradient per group of a batch (:func:`group_gradients`), which :func:`robustify` feeds
to any Optax optimizer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree
from optax.experimental import aggregating

from jaxopt_suite.core.checks import (
    check_choice,
    check_floating,
    check_integer,
    leading_size,
)
from jaxopt_suite.stochastic.aggregators import (
    aggregate_median_of_means,
    as_aggregator,
)
from jaxopt_suite.stochastic.robust_mean import median_of_means_tree


class AccumulateMedianOfMeansState(NamedTuple):
    """State of :func:`accumulate_median_of_means`.

    Attributes:
        micro_step: gradients stored in the current window, in ``[0, num_groups)``.
        buffer: the window, leaves of shape ``(num_groups, ...)``.
        ready: True exactly after the call that returned a median.
    """

    micro_step: Int[Array, ""]
    buffer: PyTree[Float[Array, "k ..."]]
    ready: Bool[Array, ""]


def accumulate_median_of_means(
    num_groups: int,
) -> optax.GradientTransformationExtraArgs:
    """Medians of every ``num_groups`` successive gradients, zeros in between.

    Each call takes one ordinary (microbatch-mean) gradient. Calls k, 2k, ... return the
    coordinate-wise median of the last k gradients, the others return zeros; windows do
    not overlap. The state's ``ready`` tells ``optax.experimental.aggregating.process``
    when to run what comes after; :func:`median_of_means_steps` does the same in one
    optimizer. Memory is k copies of the parameters.

    Args:
        num_groups: k, a positive odd integer; static.

    Raises:
        ValueError: ``num_groups`` is not a positive odd integer, or a leaf is not
            floating.

    Example:
        >>> tx = accumulate_median_of_means(3)
        >>> state = tx.init(jnp.zeros([]))
        >>> for gradient in (1.0, 1e9, 2.0):
        ...     update, state = tx.update(jnp.asarray(gradient), state)
        ...     print(update, state.ready)
        0.0 False
        0.0 False
        2.0 True
    """
    check_integer("num_groups", num_groups, odd=True)

    def init(params):
        buffer = jax.tree.map(
            lambda p: jnp.zeros((num_groups, *jnp.shape(p)), jnp.result_type(p)), params
        )
        return AccumulateMedianOfMeansState(
            jnp.zeros([], jnp.int32), buffer, jnp.zeros([], bool)
        )

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        check_floating("updates", updates)
        buffer = jax.tree.map(
            lambda b, u: b.at[state.micro_step].set(u.astype(b.dtype)),
            state.buffer,
            updates,
        )
        ready = state.micro_step == num_groups - 1
        median = median_of_means_tree(buffer, num_groups)
        # A branch, not a product: 0 * inf would be NaN.
        updates = jax.tree.map(
            lambda m, u: jnp.where(ready, m, 0).astype(u.dtype), median, updates
        )
        micro_step = (state.micro_step + 1) % num_groups
        return updates, AccumulateMedianOfMeansState(micro_step, buffer, ready)

    return optax.GradientTransformationExtraArgs(init, update)


class MedianOfMeansStepsState(NamedTuple):
    """State of :func:`median_of_means_steps`.

    Attributes:
        accumulator: the window of microbatch gradients.
        inner_state: the wrapped optimizer's state; advances once per full window.
    """

    accumulator: Any
    inner_state: Any


def median_of_means_steps(
    inner: optax.GradientTransformation, num_groups: int
) -> optax.GradientTransformationExtraArgs:
    """Runs an optimizer once per ``num_groups`` gradients, on their median.

    What ``optax.MultiSteps`` does with means: on the other calls the updates are zero
    and the inner state does not advance.

    Args:
        inner: any Optax optimizer.
        num_groups: gradients per step, a positive odd integer; static.

    Raises:
        ValueError: ``num_groups`` is not a positive odd integer, or a leaf is not
            floating.

    Example:
        >>> optimizer = median_of_means_steps(optax.sgd(0.1), 3)
        >>> state = optimizer.init(jnp.zeros([]))
        >>> for gradient in (1.0, 1e9, 2.0):
        ...     update, state = optimizer.update(jnp.asarray(gradient), state)
        >>> update
        Array(-0.2, dtype=float32)
    """
    accumulator = accumulate_median_of_means(num_groups)
    inner = optax.with_extra_args_support(inner)

    def init(params):
        return MedianOfMeansStepsState(accumulator.init(params), inner.init(params))

    def update(updates, state, params=None, **extra_args):
        medians, window = accumulator.update(updates, state.accumulator)
        window = cast(AccumulateMedianOfMeansState, window)

        def step(medians, inner_state):
            return inner.update(medians, inner_state, params, **extra_args)

        def wait(medians, inner_state):
            shapes, _ = jax.eval_shape(step, medians, inner_state)
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
            return zeros, inner_state

        updates, inner_state = jax.lax.cond(
            window.ready, step, wait, medians, state.inner_state
        )
        return updates, MedianOfMeansStepsState(window, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def group_gradients(
    loss_fn: Callable[..., Any],
    num_groups: int,
    *,
    has_aux: bool = False,
    mode: str = "vmap",
) -> Callable[[PyTree, PyTree], tuple[Any, PyTree]]:
    """Value and gradient of a loss for each contiguous group of a batch.

    Memory is ``num_groups`` copies of the parameters and not one per example, so an
    aggregator with the same ``num_groups`` gives the exact median of means.

    Args:
        loss_fn: ``loss_fn(params, batch) -> scalar``, the mean loss of a batch, or
            ``(scalar, aux)`` with ``has_aux``. ``params`` is any pytree; leaves that
            are not floating arrays (as in Equinox modules) get None.
        num_groups: number of groups, a divisor of the batch size; static.
        has_aux: as in ``jax.value_and_grad``.
        mode: ``"vmap"`` takes all gradients at once; ``"map"`` takes one after the
            other, with one live backward pass.

    Returns:
        ``fn(params, batch) -> (values, grads)`` with a leading axis of ``num_groups``.

    Raises:
        ValueError: ``num_groups`` < 1 or not a divisor of the batch size; unknown
            ``mode``; two leaves of the batch differ in leading size.

    Example:
        >>> loss = lambda w, x: jnp.mean((x - w) ** 2)
        >>> values, grads = group_gradients(loss, 3)(jnp.zeros([]), jnp.arange(6.0))
        >>> grads
        Array([-1., -5., -9.], dtype=float32)
    """
    check_integer("num_groups", num_groups)
    check_choice("mode", mode, ("vmap", "map"))
    value_and_grad = eqx.filter_value_and_grad(loss_fn, has_aux=has_aux)

    def fn(params, batch):
        size = leading_size("batch", batch)
        if size % num_groups or not size:
            raise ValueError(
                f"the batch size must be a positive multiple of num_groups, "
                f"got batch size {size} and num_groups {num_groups}"
            )
        groups = jax.tree.map(
            lambda x: jnp.reshape(x, (num_groups, -1, *jnp.shape(x)[1:])), batch
        )

        def one(group):
            return value_and_grad(params, group)

        return jax.vmap(one)(groups) if mode == "vmap" else jax.lax.map(one, groups)

    return fn


def robustify(
    optimizer: optax.GradientTransformation, num_groups: int
) -> aggregating.Aggregator:
    """Puts the median of group gradients in front of any Optax optimizer.

    Feed it :func:`group_gradients` with the same ``num_groups`` (or per-example
    gradients whose number is a multiple of it). Against the plain optimizer on the same
    batch it costs ``num_groups`` gradient copies of memory and one median.

    Args:
        optimizer: any Optax optimizer or chain.
        num_groups: a positive odd integer; static. 1 is the plain mean.

    Raises:
        ValueError: as :func:`~jaxopt_suite.stochastic.aggregate_median_of_means`.

    Example:
        >>> loss = lambda w, x: jnp.mean((x - w) ** 2)
        >>> optimizer = robustify(optax.sgd(0.5), num_groups=3)
        >>> w, batch = jnp.zeros([]), jnp.array([1.0, 1.0, 1e9, 1.0, 1.0, 1.0])
        >>> values, grads = group_gradients(loss, 3)(w, batch)
        >>> updates, state = optimizer.update(grads, optimizer.init(w), w)
        >>> updates
        Array(1., dtype=float32)
    """
    return as_aggregator(optax.chain(aggregate_median_of_means(num_groups), optimizer))
