"""Drivers: run a gradient transformation on a problem, and sweep any run.

Policies have their own drivers in :mod:`jaxopt_suite.core.interaction`; runs too long
for one compiled call go through :func:`jaxopt_suite.core.run_chunks`.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int, Key, PRNGKeyArray, PyTree

from jaxopt_suite.core import checks
from jaxopt_suite.core.types import Problem, Transformation

Record = Callable[[PyTree, PyTree], PyTree[Array]]


class LoopState(NamedTuple):
    """State of :func:`optimization_loop`.

    Attributes:
        step: number of gradient steps so far.
        key: step ``t`` draws its gradient with ``fold_in(key, t)``.
        params: the parameters.
        optimizer: the optimizer's state.
    """

    step: Int[Array, ""]
    key: PRNGKeyArray
    params: PyTree
    optimizer: PyTree


class OptimizeResult(NamedTuple):
    """What :func:`optimize` returns.

    Attributes:
        params: the last parameters.
        state: the optimizer's last state.
        record: recorded rows, with a leading axis of ``num_steps / record_every + 1``;
            row r is after ``r * record_every`` steps, row 0 the start.
    """

    params: PyTree
    state: PyTree
    record: PyTree[Array]


def optimization_loop(
    optimizer: optax.GradientTransformation,
    problem: Problem,
    *,
    params: PyTree | None = None,
    record: Record | None = None,
    record_every: int = 1,
) -> Transformation:
    r"""The iteration behind :func:`optimize`, for :func:`run_chunks` or your own loop.

    .. math:: u_t = \mathrm{update}(g(k_t, x_t)), \quad x_{t+1} = x_t + u_t

    with :math:`k_t` = ``fold_in(grad_key, t)`` and ``init_key, grad_key = split(key)``.
    An optimizer that takes extra arguments gets ``grad_fn=``, the gradient of the same
    sample at other parameters, as ``optax.contrib.sam`` calls it.

    Args:
        optimizer: any gradient transformation, an Aggregator's chain included.
        problem: where to start, the gradients, the metrics.
        params: where to start instead of ``problem.init(init_key)``.
        record: ``record(params, optimizer_state) -> pytree of arrays``; None records
            ``problem.metrics(params)``.
        record_every: gradient steps per update of the loop.

    Returns:
        ``init(key) -> LoopState`` and ``update(None, state) -> (row, state)``: one
        update is ``record_every`` gradient steps, and ``row`` is recorded after them.

    Raises:
        ValueError: ``record_every`` is not a static integer ``>= 1``.

    Example:
        >>> from jaxopt_suite.core import Problem
        >>> problem = Problem(lambda key: jnp.ones(2), lambda key, x: x, jnp.sum)
        >>> loop = optimization_loop(optax.sgd(0.5), problem, record_every=2)
        >>> row, state = loop.update(None, loop.init(jax.random.key(0)))
        >>> float(row), int(state.step)
        (0.5, 2)
    """
    checks.check_integer("record_every", record_every)
    optimizer = optax.with_extra_args_support(optimizer)
    observe = _observer(problem, record)

    def init(key):
        init_key, grad_key = jax.random.split(key)
        start = problem.init(init_key) if params is None else params
        return LoopState(
            jnp.zeros([], jnp.int32), grad_key, start, optimizer.init(start)
        )

    def step(state, _):
        key = jax.random.fold_in(state.key, state.step)
        updates, optimizer_state = optimizer.update(
            problem.grad(key, state.params),
            state.optimizer,
            state.params,
            grad_fn=lambda params, *_: problem.grad(key, params),
        )
        moved = optax.apply_updates(state.params, updates)
        return LoopState(state.step + 1, state.key, moved, optimizer_state), None

    def update(inputs, state, **extra):
        del inputs, extra
        state, _ = jax.lax.scan(step, state, length=record_every)
        return observe(state), state

    return Transformation(init, update)


def optimize(
    optimizer: optax.GradientTransformation,
    problem: Problem,
    key: PRNGKeyArray,
    num_steps: int,
    *,
    params: PyTree | None = None,
    record: Record | None = None,
    record_every: int = 1,
) -> OptimizeResult:
    """Runs a gradient transformation on a problem for ``num_steps`` steps.

    A pure function in one ``lax.scan``: jit it, vmap it over keys and traced
    hyperparameters, or hand it to :func:`sweep`. Memory is that of the record,
    ``num_steps / record_every`` rows, whatever ``num_steps`` is. Step ``t`` draws its
    gradient with ``fold_in(grad_key, t)``, ``init_key, grad_key = split(key)``.

    Args:
        optimizer: any gradient transformation; see :func:`optimization_loop` for those
            that need more than one gradient a step.
        problem: where to start, the gradients, the metrics.
        key: a typed key.
        num_steps: gradient steps, a multiple of ``record_every``.
        params: where to start instead of ``problem.init(init_key)``.
        record: ``record(params, optimizer_state) -> pytree of arrays``; None records
            ``problem.metrics(params)``.
        record_every: gradient steps between two rows.

    Raises:
        ValueError: ``num_steps`` or ``record_every`` is below 1, or the former is not a
            multiple of the latter.

    Example:
        >>> from jaxopt_suite.core import Problem
        >>> problem = Problem(lambda key: jnp.ones(2), lambda key, x: x, jnp.sum)
        >>> key = jax.random.key(0)
        >>> optimize(optax.sgd(0.5), problem, key, 4, record_every=2).record
        Array([2.   , 0.5  , 0.125], dtype=float32)
    """
    checks.check_integer("num_steps", num_steps)
    loop = optimization_loop(
        optimizer, problem, params=params, record=record, record_every=record_every
    )
    if num_steps % record_every:
        raise ValueError(
            f"num_steps must be a multiple of record_every, got num_steps={num_steps} "
            f"and record_every={record_every}"
        )
    start = loop.init(key)
    first = _observer(problem, record)(start)
    final, rows = jax.lax.scan(
        lambda state, _: loop.update(None, state)[::-1],
        start,
        length=num_steps // record_every,
    )
    rows = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rows)
    return OptimizeResult(final.params, final.optimizer, rows)


def _observer(
    problem: Problem, record: Record | None
) -> Callable[[LoopState], PyTree[Array]]:
    def observe(state):
        if record is None:
            row = problem.metrics(state.params)
        else:
            row = record(state.params, state.optimizer)
        return jax.tree.map(jnp.asarray, row)

    return observe


def sweep(
    run: Callable[..., PyTree],
    keys: Key[Array, " seeds"],
    grid: Mapping[str, Any],
    *,
    mesh: Mesh | None = None,
) -> PyTree[Array]:
    """Runs ``run(key, **hyperparameters)`` over a grid and keys, in one compile.

    The product of the grid's arrays and the keys is one vmapped axis named ``"lanes"``.
    A second sweep with the same function ``run`` and the same shapes does not compile
    again. Each lane draws the same random bits as ``run`` alone; its results agree with
    those of ``run`` alone to rounding, as XLA may sum a batch in another order.

    Over a mesh, each device runs its own lanes, with no communication until the results
    are gathered: they come back whole on every device, and so on every host.

    Args:
        run: a function of a key and of the grid's names as keyword arguments, which
            returns a pytree of arrays. It must be hashable, as every function is.
        keys: typed keys, one per seed: ``jax.random.split(jax.random.key(0), 16)``.
        grid: name -> array whose leading axis lists the values; ``{}`` is seeds only.
        mesh: devices to lay the lanes over, along all of its axes; None is one device.
            The number of lanes need not be a multiple of the number of devices.

    Returns:
        The results of ``run`` with leading axes (grid..., seeds), in the grid's order.

    Raises:
        ValueError: ``keys`` is not a one-dimensional array of typed keys, a grid value
            is a scalar or empty, or ``run`` does not accept one of the names.

    Example:
        >>> def run(key, rate, power):
        ...     return rate * jnp.exp(-power)
        >>> keys = jax.random.split(jax.random.key(0), 5)
        >>> sweep(run, keys, {"rate": jnp.ones(3), "power": jnp.arange(2.0)}).shape
        (3, 2, 5)
    """
    if not checks.is_key_array(keys) or keys.ndim != 1 or not keys.size:
        raise ValueError(
            "keys must be a one-dimensional array of typed keys, as jax.random.split("
            f"jax.random.key(0), 4) gives, got {jax.typeof(keys)}"
        )
    values = {name: jnp.asarray(value) for name, value in grid.items()}
    for name, value in values.items():
        if not value.ndim or not len(value):
            raise ValueError(
                f"grid[{name!r}] must have a leading axis with at least one value, got "
                f"shape {value.shape}"
            )
    _require_names(run, keys, values)
    return _sweep(run, tuple(values), mesh, keys, tuple(values.values()))


def _require_names(run: Callable[..., PyTree], keys: Any, values: dict) -> None:
    try:
        signature = inspect.signature(run)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(keys, **values)
    except TypeError as error:
        raise ValueError(
            f"grid must have the names that run{signature} takes after the key, got "
            f"{list(values)}: {error}"
        ) from None


@functools.partial(jax.jit, static_argnames=("run", "names", "mesh"))
def _sweep(
    run: Callable[..., PyTree],
    names: tuple[str, ...],
    mesh: Mesh | None,
    keys: Key[Array, " seeds"],
    values: tuple[Array, ...],
) -> PyTree[Array]:
    sizes = (*(len(value) for value in values), len(keys))
    num_lanes = math.prod(sizes)

    def run_lane(lane, keys, values):
        *places, seed = jnp.unravel_index(lane, sizes)
        chosen = {n: v[i] for n, v, i in zip(names, values, places, strict=True)}
        return run(keys[seed], **chosen)

    run_lanes = jax.vmap(run_lane, in_axes=(0, None, None), axis_name="lanes")
    if mesh is None:
        results = run_lanes(jnp.arange(num_lanes), keys, values)
    else:
        results = _on_mesh(mesh, run_lanes, num_lanes)(keys, values)
    return jax.tree.map(lambda x: x[:num_lanes].reshape(sizes + x.shape[1:]), results)


def _on_mesh(
    mesh: Mesh, run_lanes: Callable[..., PyTree], num_lanes: int
) -> Callable[..., PyTree]:
    """Each device's own block of lanes, gathered; the last lane pads the last block."""
    axes, per_device = mesh.axis_names, -(-num_lanes // mesh.size)

    def local(keys, values):
        lanes = jax.lax.axis_index(axes) * per_device + jnp.arange(per_device)
        results = run_lanes(jnp.minimum(lanes, num_lanes - 1), keys, values)
        gather = functools.partial(jax.lax.all_gather, axis_name=axes, tiled=True)
        return jax.tree.map(gather, results)

    # A run's own scans start from constants, which the check on varying axes refuses.
    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
