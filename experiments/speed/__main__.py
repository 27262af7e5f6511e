"""``python -m experiments.speed [--out DIR]``: prints all ratios and saves them."""

import argparse
import json
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from experiments.speed import stochastic


def main() -> None:
    """Runs every comparison, prints a table and writes ``speed.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.speed")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    ratios, memory = stochastic.run()
    table = Table(title=f"Speed on {jax.devices()[0].device_kind}, ratios in one run")
    for column in ("comparison", "ours", "peer", "peer / ours", "range over turns"):
        table.add_column(column)
    for ratio in ratios:
        table.add_row(
            ratio.what,
            f"{ratio.ours * 1e3:.1f} ms",
            f"{ratio.peer * 1e3:.1f} ms",
            f"{ratio.ratio:.3g}x",
            f"{ratio.low:.3g} to {ratio.high:.3g}",
        )
    console = Console()
    console.print(table)
    for what, copies in memory:
        console.print(f"{what}: {copies:.1f}")
    options.out.mkdir(parents=True, exist_ok=True)
    document = {
        "device": jax.devices()[0].device_kind,
        "ratios": [{**r._asdict(), "ratio": r.ratio} for r in ratios],
        "memory": dict(memory),
    }
    path = options.out / "speed.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
