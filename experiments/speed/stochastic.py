"""Speed of the median of means: the median, a robust Adam step, a sweep, the import."""

import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from experiments.speed.timing import Ratio, compare
from jaxopt_suite import problems, stochastic
from jaxopt_suite.core import optimize, sweep

GROUPS, BATCH = 15, 60
MODES = ("vmap", "map")


def medians() -> list[Ratio]:
    """The median network on 15 gradients of a million parameters."""
    x = jax.random.normal(jax.random.key(0), (GROUPS, 1_000_000))
    batch = jax.random.normal(jax.random.key(1), (BATCH, 1_000_000))
    network = jax.jit(stochastic.exact_median)
    library = jax.jit(lambda x: jnp.median(x, axis=0))
    mean = jax.jit(lambda x: jnp.mean(x, axis=0))
    mom = jax.jit(lambda x: stochastic.median_of_means(x, GROUPS))
    return [
        compare(
            "exact_median on (15, 1e6) against jnp.median",
            lambda: network(x),
            lambda: library(x),
            turns=3,
        ),
        compare(
            "median_of_means of 60 x 1e6 in 15 groups against the plain mean",
            lambda: mom(batch),
            lambda: mean(batch),
        ),
    ]


def compile_time() -> Ratio:
    """Compiling the largest network of interest against compiling ``jnp.median``."""
    x = jnp.ones((31, 1000))

    def compiled(fn):
        start = time.perf_counter()
        jax.jit(fn).lower(x).compile()
        return time.perf_counter() - start

    ours, peer = [], []
    for _ in range(3):
        jax.clear_caches()
        ours.append(compiled(stochastic.exact_median))
        peer.append(compiled(lambda x: jnp.median(x, axis=0)))
    ratios = [p / o for o, p in zip(ours, peer, strict=True)]
    return Ratio(
        "compile time of exact_median, 31 slices, against jnp.median",
        sorted(ours)[1],
        sorted(peer)[1],
        min(ratios),
        max(ratios),
    )


def robust_adam() -> list[Ratio]:
    """A step of ``robustify(adam)`` on a million parameters against plain Adam's.

    All use the same 60 examples. The second peer takes the same 15 group
    gradients and averages them: that ratio is the price of the median alone.
    """
    model = eqx.nn.MLP(256, 10, 700, 3, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    images = jax.random.normal(jax.random.key(1), (BATCH, 256))
    labels = jax.random.randint(jax.random.key(2), (BATCH,), 0, 10)

    def loss(params, batch):
        logits = jax.vmap(eqx.combine(params, static))(batch[0])
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            logits, batch[1]
        ).mean()

    def stepper(optimizer, gradients):
        state = optimizer.init(params)

        @jax.jit
        def step(params, state):
            grads = gradients(params, (images, labels))
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        return lambda: step(params, state)

    def grouped(mode):
        fn = stochastic.group_gradients(loss, GROUPS, mode=mode)
        return lambda params, batch: fn(params, batch)[1]

    adam = optax.adam(1e-3)
    plain = stepper(adam, jax.grad(loss))
    robust = {m: stepper(stochastic.robustify(adam, GROUPS), grouped(m)) for m in MODES}
    averaged = stepper(optax.chain(stochastic.aggregate_mean(), adam), grouped("vmap"))
    size = sum(x.size for x in jax.tree.leaves(params)) / 1e6
    step = f"robustify(adam) on {size:.1f}M parameters, 15 groups by"
    return [
        *(compare(f"{step} {m}, against adam", robust[m], plain) for m in MODES),
        compare(
            f"{step} vmap, against adam on the mean of the same 15 gradients",
            robust["vmap"],
            averaged,
        ),
    ]


def memory() -> list[tuple[str, float]]:
    """Temporary memory of a robust step, in copies of the parameters."""
    size = 1_000_000
    found = []
    for name, count in (("median_of_means, 15 groups", GROUPS), ("mean of 60", BATCH)):
        fn = (
            (lambda x: stochastic.median_of_means(x, GROUPS))
            if count == GROUPS
            else (lambda x: jnp.mean(x, axis=0))
        )
        compiled = jax.jit(fn).lower(jnp.ones((count, size))).compile()
        analysis = compiled.memory_analysis()
        copies = getattr(analysis, "temp_size_in_bytes", 0) / (4 * size)
        found.append((f"{name}: temporary memory, in parameter copies", copies))
    return found


def sweeps() -> Ratio:
    """64 seeds x 16 values in one compile against a loop of jitted runs.

    Compiling is included on both sides. The loop passes the hyperparameters as
    constants, as a factory that branches on them would have to.
    """
    noise = stochastic.cauchy()
    problem = problems.noisy_quadratic(
        jnp.linspace(0.2, 1, 20), jnp.ones(20), noise, 15
    )
    steps = [0.01, 0.03, 0.1, 0.3]
    norms = [0.3, 1.0, 3.0, 10.0]

    def run(key, step_size, max_norm):
        optimizer = stochastic.mom_clipped_sgd(step_size, max_norm, GROUPS)
        return optimize(optimizer, problem, key, 100, record_every=100).record["excess"]

    keys = jax.random.split(jax.random.key(0), 64)

    def ours():
        jax.clear_caches()
        grid = {"step_size": jnp.array(steps), "max_norm": jnp.array(norms)}
        return sweep(run, keys, grid)

    def loop():
        jax.clear_caches()
        found = []
        for step_size in steps:
            for max_norm in norms:
                compiled = jax.jit(lambda k, s=step_size, m=max_norm: run(k, s, m))
                found += [compiled(key) for key in keys]
        return found

    return compare(
        "sweep of 64 seeds x 16 values against a loop of jitted runs, with compiling",
        ours,
        loop,
        turns=1,
        warm_up=False,
    )


def import_time() -> Ratio:
    """Importing the library in a fresh process against importing jax and optax."""

    def importing(modules):
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)

    library = "jaxopt_suite.core, jaxopt_suite.stochastic, jaxopt_suite.problems"
    return compare(
        "import of jaxopt_suite against import of jax, optax and equinox alone",
        lambda: importing(library),
        lambda: importing("jax, optax, equinox"),
        turns=5,
    )


def run() -> tuple[list[Ratio], list[tuple[str, float]]]:
    """All ratios, and memory figures."""
    ratios = [*medians(), compile_time(), *robust_adam(), sweeps(), import_time()]
    return ratios, memory()
