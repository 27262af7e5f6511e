"""What the four batteries share: a factory seen as a chain of steps, and its rules."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NUM_STEPS = 3


@dataclass(frozen=True)
class Subject:
    """One factory under test; subclasses say how one step of its shape goes.

    Attributes:
        factory: the public factory.
        hyperparameters: name to a pair of valid values; lanes lie between the two.
        static: the other arguments of the factory.
        key: name of the factory's argument that takes a PRNG key, if it has one.
        bad: pairs of argument overrides and a regular expression of the ValueError.
        traces: one entry for each trace of the jitted step.
        tolerance: allowed difference, relative to one plus the largest entry.
    """

    factory: Callable[..., Any]
    hyperparameters: Mapping[str, tuple[Any, Any]]
    static: Mapping[str, Any]
    key: str | None = None
    bad: Sequence[tuple[Mapping[str, Any], str]] = ()
    tolerance: float = 1e-5
    traces: list[int] = field(default_factory=list)

    def begin(self, method: Any, start: Any) -> Any:
        """The carry before the first step."""
        raise NotImplementedError

    def step(self, method: Any, carry: Any, inputs: Any) -> tuple[Any, Any]:
        """One step: outputs and the next carry."""
        raise NotImplementedError

    def state(self, carry: Any) -> Any:
        """The part of the carry that the method under test made."""
        return carry

    def data(self, lane: int) -> tuple[Any, Any]:
        """``(start, inputs)`` of a lane; inputs have a leading axis of steps."""
        keys = jax.random.split(jax.random.key(lane), NUM_STEPS + 1)
        return keys[0], keys[1:]

    @property
    def num_lanes(self) -> int:
        """An even number: as many as devices, at most eight and at least two."""
        return max(2, 2 * (min(8, jax.local_device_count()) // 2))

    def values(self, lane: int) -> dict[str, Any]:
        """Concrete hyperparameters of a lane: Python floats, arrays and the key."""
        weight = lane / (self.num_lanes - 1)
        values: dict[str, Any] = {}
        for name, (first, second) in self.hyperparameters.items():
            value = np.asarray(first) * (1 - weight) + np.asarray(second) * weight
            values[name] = np.asarray(value, np.float32) if value.ndim else float(value)
        return values | ({self.key: jax.random.key(lane)} if self.key else {})

    def build(self, values: Mapping[str, Any]) -> Any:
        """A new instance of the method."""
        return self.factory(**self.static, **values)

    def walk(self, method: Any, data: tuple[Any, Any]) -> tuple[list[Any], list[Any]]:
        """All outputs and all carries of a Python loop over the steps."""
        start, inputs = data
        carries, outputs = [self.begin(method, as_arrays(start))], []
        for t in range(NUM_STEPS):
            output, carry = self.step(method, carries[-1], at(inputs, t))
            outputs.append(output)
            carries.append(carry)
        return outputs, carries

    def probe(self, data: tuple[Any, Any]) -> Any:
        """What the rule ``traceable`` traces: by default a whole walk."""
        return self.walk(self.build(self.values(0)), data)

    def scan(self, values: Mapping[str, Any], data: tuple[Any, Any]) -> Any:
        """Builds the method and scans its steps: all outputs and the last carry."""
        method = self.build(values)
        start, inputs = data

        def body(carry, now):
            outputs, carry = self.step(method, carry, now)
            return carry, outputs

        return jax.lax.scan(body, self.begin(method, start), inputs)

    def traced_step(self, values: Mapping[str, Any], carry: Any, inputs: Any) -> Any:
        """One step of a new instance; counts how often it is traced."""
        self.traces.append(1)
        return self.step(self.build(values), carry, inputs)

    @functools.cached_property
    def jitted(self) -> Callable[..., Any]:
        """The step with traced hyperparameters and a donated carry, compiled once."""
        return jax.jit(self.traced_step, donate_argnums=1)

    @functools.cached_property
    def eager(self) -> tuple[list[Any], list[Any]]:
        """The Python loop of lane 0, run once for all rules."""
        return self.walk(self.build(self.values(0)), self.data(0))

    def compiled(self, lane: int, carry: Any) -> tuple[list[Any], list[Any]]:
        """All outputs and, but for the first, all carries of a loop of jitted steps.

        ``carry`` is donated; the carries returned are copies that nothing else holds.
        """
        values, (_, inputs) = as_arrays(self.values(lane)), self.data(lane)
        outputs, carries = [], []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Some donated buffers")
            for t in range(NUM_STEPS):
                output, carry = self.jitted(values, carry, at(inputs, t))
                outputs.append(output)
                carries.append(jax.tree.map(jnp.copy, carry))
        return outputs, carries

    @functools.cached_property
    def lanes(self) -> list[Any]:
        """What the loop of jitted steps gives for each lane."""
        lanes = []
        for lane in range(self.num_lanes):
            start, _ = self.data(lane)
            carry = self.begin(self.build(self.values(lane)), as_arrays(start))
            lanes.append(self.compiled(lane, jax.tree.map(jnp.copy, carry)))
        return lanes

    @functools.cached_property
    def last_step(self) -> tuple[Any, Any]:
        """Arguments and result of the last step, stacked over the lanes."""
        arguments, results = [], []
        for lane, (outputs, carries) in enumerate(self.lanes):
            now = at(self.data(lane)[1], NUM_STEPS - 1)
            arguments.append((self.values(lane), carries[-2], now))
            results.append((outputs[-1], carries[-1]))
        return stack(arguments), stack(results)

    @functools.cached_property
    def sharded_problem(self) -> Exception | None:
        """What goes wrong when steps are vmapped on each device, sharded over them."""
        devices = jax.local_devices()[: self.num_lanes // 2]
        auto = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((len(devices),), ("lanes",), auto, devices=devices)
        # Lanes never meet, so there is nothing for the replication check to find.
        sharded = jax.shard_map(
            jax.vmap(self.traced_step),
            mesh=mesh,
            in_specs=jax.P("lanes"),
            out_specs=jax.P("lanes"),
            check_vma=False,
        )
        arguments, expected = self.last_step
        try:
            got = jax.jit(sharded)(*arguments)
            require_close("sharded result", got, expected, self.tolerance)
        except Exception as error:
            return error
        return None


Rule = Callable[[Any], str | None]


def make_pairs(hyperparameters: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """Every value as a pair to sweep between; a single value v becomes (v, 0.8 v)."""
    pairs = {}
    for name, value in (hyperparameters or {}).items():
        pairs[name] = value if isinstance(value, tuple) else (value, 0.8 * value)
    return pairs


def name_of(factory: Any) -> str:
    """The name that a message calls the factory by."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "__name__", repr(factory))


def run_rules(
    subject: Subject, rules: Iterable[Rule], skip: Mapping[str, str] | None
) -> dict[str, str]:
    """Runs every rule in order and stops at the first that is broken.

    Returns:
        Rule name to ``"passed"`` or the reason why it did not run.

    Raises:
        AssertionError: the rule, the factory, what was seen and what to do.
        ValueError: ``skip`` names an unknown rule or gives no reason.
    """
    skip, rules = dict(skip or {}), list(rules)
    names = [rule.__name__ for rule in rules]
    for name, reason in skip.items():
        if name not in names:
            raise ValueError(f"skip: no rule {name!r}, must be one of {names}")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"skip[{name!r}] must be a reason, got {reason!r}")
    report = {}
    for rule in rules:
        name = rule.__name__
        if name in skip:
            report[name] = f"skipped: {skip[name]}"
            continue
        try:
            report[name] = rule(subject) or "passed"
        except Exception as error:
            seen = str(error)
            if not isinstance(error, AssertionError):
                seen = f"{type(error).__name__}: {seen}"
            advice = inspect.cleandoc(rule.__doc__ or "")
            raise AssertionError(
                f"rule {name} is broken by {name_of(subject.factory)}: {seen}\n{advice}"
            ) from error
    return report


# --- trees ---------------------------------------------------------------------------


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key array."""
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def is_float(leaf: Any) -> bool:
    """Whether a leaf has a real floating dtype."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def at(tree: Any, t: int) -> Any:
    """Entry ``t`` of the leading axis of every leaf, as jax arrays."""
    return as_arrays(jax.tree.map(lambda x: x[t], tree))


def as_arrays(tree: Any) -> Any:
    """Every leaf as a strongly typed jax array."""

    def one(leaf):
        if isinstance(leaf, float):
            leaf = np.float32(leaf)
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)

    return jax.tree.map(one, tree)


def stack(trees: Sequence[Any]) -> Any:
    """Stacks equal trees along a new leading axis; by NumPy, which compiles nothing."""

    def one(*leaves):
        leaves = [as_arrays(leaf) for leaf in leaves]
        if is_key(leaves[0]):
            return jnp.stack(leaves)
        return jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves]))

    return jax.tree.map(one, *trees)


def cast(tree: Any, dtype: Any) -> Any:
    """Floating leaves in another dtype."""
    return jax.tree.map(lambda x: x.astype(dtype) if is_float(x) else x, tree)


def to_numpy(leaf: Any) -> np.ndarray:
    """A leaf as a NumPy array that can be compared (float64, or the raw key data)."""
    if isinstance(leaf, jax.Array) and is_key(leaf):
        return np.asarray(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    return array.astype(np.float64) if is_float(leaf) else array


def abstract(tree: Any) -> tuple[list[tuple[str, str]], Any]:
    """Path and type (shape, dtype, weak or not) of each leaf, and the structure."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(tree)

    def describe(leaf):
        weak = " (weak type)" if getattr(leaf, "weak_type", False) else ""
        return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}{weak}"

    return [(jax.tree_util.keystr(p), describe(x)) for p, x in leaves], treedef


def require_same_type(name: str, got: Any, expected: Any) -> None:
    """Same structure, shapes, dtypes and weak types, or an error with the path."""
    (leaves, treedef), (wanted, wanted_def) = abstract(got), abstract(expected)
    for (path, now), (wanted_path, before) in zip(leaves, wanted, strict=False):
        if path == wanted_path and now != before:
            raise AssertionError(f"{name}{path} must be {before}, got {now}")
    if treedef != wanted_def or len(leaves) != len(wanted):
        raise AssertionError(f"{name} must be {wanted_def}, got {treedef}")


def require_close(name: str, got: Any, expected: Any, tolerance: float) -> None:
    """Leaves differ by ``tolerance * (1 + largest)`` at most; integers by 0."""
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True
    )
    for (path, leaf), wanted in pairs:
        a, b = to_numpy(leaf), to_numpy(wanted)
        where = f"{name}{jax.tree_util.keystr(path)}"
        if a.shape != b.shape:
            raise AssertionError(f"{where} must have shape {b.shape}, got {a.shape}")
        if a.dtype != np.float64 or tolerance == 0:
            same = np.array_equal(a, b, equal_nan=a.dtype == np.float64)
        else:
            finite = np.abs(b[np.isfinite(b)])
            scale = 1 + (finite.max() if finite.size else 0.0)
            same = np.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)
        if not same:
            raise AssertionError(f"{where} must be\n{b}\ngot\n{a}")


def has_nan(tree: Any) -> bool:
    """Whether any floating leaf holds a NaN."""
    return any(
        np.isnan(to_numpy(x)).any() for x in jax.tree.leaves(tree) if is_float(x)
    )


def require_difference(got: Any, other: Any, cause: str) -> None:
    """At least one leaf differs."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(other), strict=True)
    if all(np.array_equal(to_numpy(a), to_numpy(b)) for a, b in pairs):
        raise AssertionError(f"{cause} changes nothing")


def shows_nan(tree: Any, clean: Any) -> bool:
    """Whether there is a NaN that a clean run lacks, or an integer counts it."""
    for leaf, other in zip(jax.tree.leaves(tree), jax.tree.leaves(clean), strict=True):
        a, b = to_numpy(leaf), to_numpy(other)
        if is_float(leaf):
            if np.any(np.isnan(a) & ~np.isnan(b)):
                return True
        elif not np.array_equal(a, b):
            return True
    return False
