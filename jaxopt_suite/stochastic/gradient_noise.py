"""Noise on gradients, and how heavy its tail is."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxopt_suite.core.checks import check_integer, leading_size
from jaxopt_suite.core.trees import global_norm, statistics_dtype
from jaxopt_suite.stochastic.noise import Noise, add_noise


class AddNoiseToGradientState(NamedTuple):
    """State of :func:`add_noise_to_gradient`: the key of the next draw."""

    key: PRNGKeyArray


def add_noise_to_gradient(
    noise: Noise, key: PRNGKeyArray
) -> optax.GradientTransformationExtraArgs:
    """Adds an independent draw of ``noise`` to every entry of the updates.

    Args:
        noise: any law of :mod:`jaxopt_suite.stochastic.noise`.
        key: typed key; split once per update and folded with the leaf index.

    Returns:
        A transformation that keeps every dtype; its state holds the key.

    Example:
        >>> from jaxopt_suite.stochastic import gaussian
        >>> tx = add_noise_to_gradient(gaussian(0.0), jax.random.key(0))
        >>> tx.update(jnp.ones(2), tx.init(jnp.zeros(2)))[0]
        Array([1., 1.], dtype=float32)
    """

    def init(params):
        del params
        # A copy: a caller may donate the state, and the factory keeps its key.
        return AddNoiseToGradientState(jax.random.clone(key))

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        next_key, draw_key = jax.random.split(state.key)
        return add_noise(draw_key, noise, updates), AddNoiseToGradientState(next_key)

    return optax.GradientTransformationExtraArgs(init, update)


def noisy_oracle(
    grad_fn: Callable[[PyTree], PyTree], noise: Noise, batch: int
) -> Callable[[PRNGKeyArray, PyTree], PyTree]:
    """A stochastic gradient oracle: the exact gradient plus independent noise.

    Args:
        grad_fn: ``params -> gradient``.
        noise: law of the noise of each entry.
        batch: number of oracle calls in a sample; static.

    Returns:
        ``fn(key, params) -> samples`` with a leading axis of ``batch``, as
        :class:`jaxopt_suite.core.Problem` wants it.

    Raises:
        ValueError: ``batch`` is not a positive integer.

    Example:
        >>> from jaxopt_suite.stochastic import cauchy
        >>> oracle = noisy_oracle(lambda x: 2 * x, cauchy(), batch=15)
        >>> oracle(jax.random.key(0), jnp.ones(4)).shape
        (15, 4)
    """
    check_integer("batch", batch)

    def oracle(key, params):
        return add_noise(key, noise, grad_fn(params), (batch,))

    return oracle


def tail_index_hill(samples: Float[Array, "..."], k: int) -> Float[Array, ""]:
    r"""Hill's estimate of the tail index from the ``k`` largest absolute values.

    .. math:: \hat\alpha = \left( \frac1k \sum_{j \le k}
        \log \frac{|X|_{(j)}}{|X|_{(k+1)}} \right)^{-1}, \quad |X|_{(1)} \text{ largest}

    A law with :math:`P(|X| > x) \sim x^{-\alpha}` has the index :math:`\alpha`: below 2
    the variance is infinite, at or below 1 the mean does not exist. Its standard error
    is :math:`\alpha / \sqrt k`.

    Args:
        samples: any shape, more than ``k`` entries.
        k: number of upper order statistics; static.

    Raises:
        ValueError: ``k`` < 1, or there are at most ``k`` samples.

    Example:
        >>> tail_index_hill(jnp.array([1.0, -1.0, jnp.e]), 1)
        Array(1., dtype=float32)

    Source: Hill (1975), Annals of Statistics 3.
    """
    check_integer("k", k)
    if samples.size <= k:
        raise ValueError(f"k must be < the number of samples {samples.size}, got {k}")
    sizes = jnp.abs(samples).ravel().astype(statistics_dtype(samples.dtype))
    largest, _ = jax.lax.top_k(sizes, k + 1)
    return 1.0 / jnp.mean(jnp.log(largest[:k]) - jnp.log(largest[k]))


class TailIndexMonitorState(NamedTuple):
    """State of :func:`tail_index_monitor`.

    Attributes:
        count: norms seen so far, kept below twice the window.
        norms: the last ``window`` norms, a ring.
        tail_index: the estimate; NaN until the window is full.
    """

    count: Int[Array, ""]
    norms: Float[Array, "window"]
    tail_index: Float[Array, ""]


def tail_index_monitor(
    k: int, window: int | None = None
) -> optax.GradientTransformationExtraArgs:
    """Passes updates through and estimates the tail index of their norms.

    Put it before an aggregator: its updates carry a leading sample (or group) axis. It
    keeps the norms of the last ``window`` samples and Hill's estimate from the ``k``
    largest. An index below 2 says that a mean of gradients has no variance to shrink,
    so that a median of means pays off.

    Args:
        k: number of upper order statistics; static.
        window: number of norms kept, more than ``k``; static. None: ``10 k``.

    Raises:
        ValueError: ``k`` < 1, ``window`` <= ``k``, or two leaves of the updates differ
            in leading size.

    Example:
        >>> from jaxopt_suite.stochastic import aggregate_median_of_means
        >>> tx = optax.chain(tail_index_monitor(5), aggregate_median_of_means(15))
        >>> state = tx.init(jnp.zeros(3))
        >>> grads = jax.random.cauchy(jax.random.key(0), (75, 3))
        >>> updates, state = tx.update(grads, state)
        >>> bool(state[0].tail_index < 2)
        True

    Source: Hill (1975), Annals of Statistics 3.
    """
    check_integer("k", k)
    window = 10 * k if window is None else window
    check_integer("window", window, k + 1)

    def init(params):
        dtype = global_norm(params).dtype
        return TailIndexMonitorState(
            jnp.zeros([], jnp.int32),
            jnp.zeros(window, dtype),
            jnp.full([], jnp.nan, dtype),
        )

    def update(updates, state, params=None, **extra_args):
        del params, extra_args
        batch = leading_size("updates", updates)
        if not batch:
            return updates, state
        new = jax.vmap(global_norm)(updates).astype(state.norms.dtype)[-window:]
        first = state.count + batch - new.size
        slots = (first + jnp.arange(new.size)) % window
        norms = state.norms.at[slots].set(new)
        # Only the place in the ring and "full" matter: wrap before the integer does.
        count = state.count + batch
        count = jnp.where(count >= 2 * window, window + count % window, count)
        estimate = tail_index_hill(norms, k)
        estimate = jnp.where(count >= window, estimate, jnp.nan)
        return updates, TailIndexMonitorState(
            count, norms, estimate.astype(state.tail_index.dtype)
        )

    return optax.GradientTransformationExtraArgs(init, update)
