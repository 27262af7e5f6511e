"""``python -m experiments.speed [FIELD ...] [--out DIR]``: prints and saves ratios."""

import argparse
import importlib
import json
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from experiments.speed.timing import Ratio

FIELDS = ("stochastic", "annealing", "quantization", "bandits")


def main() -> None:
    """Runs the comparisons of each field, prints a table and writes ``speed.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.speed")
    parser.add_argument("field", nargs="*", help=f"of {', '.join(FIELDS)}; all if none")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    unknown = set(options.field) - set(FIELDS)
    if unknown:
        parser.error(f"no field {', '.join(unknown)}: choose from {', '.join(FIELDS)}")
    console, ratios, figures = Console(), [], {}
    if not console.is_terminal:
        console.width = 160
    for field in options.field or FIELDS:
        # A field's peers are loaded when its turn comes.
        found, more = importlib.import_module(f"experiments.speed.{field}").run()
        console.print(_table(field, found))
        for what, figure in more:
            console.print(f"{what}: {figure:.3g}", markup=False)
        ratios += found
        figures |= dict(more)
    options.out.mkdir(parents=True, exist_ok=True)
    document = {
        "device": jax.devices()[0].device_kind,
        "ratios": [{**r._asdict(), "ratio": r.ratio, "holds": r.holds} for r in ratios],
        "figures": figures,
    }
    path = options.out / "speed.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    console.print(f"wrote {path}")


def _table(field: str, ratios: list[Ratio]) -> Table:
    device = jax.devices()[0].device_kind
    table = Table(title=f"{field}: speed on {device}, ratios in one run")
    columns = ["comparison", "ours", "peer", "peer / ours", "range over turns"]
    demanded = any(ratio.holds is not None for ratio in ratios)
    for column in columns + ["demanded"] * demanded:
        table.add_column(column)
    for ratio in ratios:
        table.add_row(
            ratio.what,
            f"{ratio.ours * 1e3:.3g} ms",
            f"{ratio.peer * 1e3:.3g} ms",
            f"{ratio.ratio:.3g}x",
            f"{ratio.low:.3g} to {ratio.high:.3g}",
            *[_demand(ratio)] * demanded,
        )
    return table


def _demand(ratio: Ratio) -> str:
    """What is demanded of a ratio, and whether it holds."""
    if ratio.holds is None:
        return ""
    bounds = {">=": ratio.at_least, "<=": ratio.at_most}
    words = [f"{sign} {x:.3g}" for sign, x in bounds.items() if x is not None]
    return f"{', '.join(words)}: {'holds' if ratio.holds else 'MISSED'}"


if __name__ == "__main__":
    main()
