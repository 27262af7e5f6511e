"""Experiments: one thin script per paper, run with ``python -m experiments``.

An experiment is a module (or package) of this package with a frozen dataclass
``Config`` (one field is ``num_seeds``), ``SCALES: dict[str, Config]`` with the keys
``smoke``, ``default`` and ``full``, and ``run(config, key, stages=COMPUTE) -> Result``.
Two more names are optional: ``STAGES``, the names of its stages in order, for the
progress bar, and ``shapes(config)``, which builds the run by ``jax.eval_shape`` alone.
"""
