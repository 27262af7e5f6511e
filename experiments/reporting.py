"""Renders all results under a folder as one Markdown and one HTML page."""

import base64
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.claims import Interval, figure_with_spread, verdict
from experiments.files import InputError, cannot_write, read_document, replaced_whole

SCALE_ORDER = ("smoke", "default", "full")
CLAIM_HEAD = ("claim", "paper", "measured", "spread", "threshold", "holds")
SUMMARY_HEAD = ("experiment", "scale", "seeds", "hold", "do not", "reported", "device")


class Run(NamedTuple):
    """One finished run, as its files tell it.

    Attributes:
        folder: relative to the folder of all results, with forward slashes.
        document: what ``config.json`` holds.
        claims: what ``claims.json`` holds.
        figures: name to the bytes of the PNG.
    """

    folder: str
    document: dict[str, Any]
    claims: list[dict[str, Any]]
    figures: dict[str, bytes]

    @property
    def title(self) -> str:
        """Experiment and scale."""
        return f"{self.document['experiment']}, {self.document['scale']}"

    def verdicts(self) -> list[str]:
        """How many claims hold, how many do not, how many are reported only."""
        return [
            str(sum(claim["holds"] is value for claim in self.claims))
            for value in (True, False, None)
        ]


def write_report(out: Path) -> tuple[Path, Path]:
    """Writes ``report.md`` and ``report.html`` on every finished run under ``out``.

    The HTML page holds its figures; the Markdown page links to them.

    Returns:
        The two pages.

    Raises:
        InputError: nothing finished is there, a file is damaged, or ``out`` cannot be
            written.
    """
    runs = read_runs(out)
    if not runs:
        raise InputError(
            f"no finished run under {out}: `python -m experiments run NAME` makes one"
        )
    pages = (out / "report.md", out / "report.html")
    try:
        for page, render in zip(pages, (markdown_page, html_page), strict=True):
            with replaced_whole(page) as partial:
                partial.write_text(render(runs), encoding="utf-8")
    except OSError as error:
        raise cannot_write(out, error) from error
    return pages


def read_runs(out: Path) -> list[Run]:
    """The finished runs under ``out``, by experiment and then from small to large.

    Raises:
        InputError: a file of one is damaged.
    """
    runs = []
    for folder in sorted(path.parent for path in out.glob("*/*/config.json")):
        document = read_document(folder)
        if document["status"] != "finished":
            continue
        where = folder.relative_to(out).as_posix()
        try:
            text = (folder / "claims.json").read_text(encoding="utf-8")
            figures = {n: (folder / n).read_bytes() for n in document["figures"]}
            run = Run(where, document, json.loads(text), figures)
            # Rendered once here, so that a damaged file is named.
            markdown_page([run])
        except (LookupError, OSError, TypeError, ValueError) as error:
            raise InputError(f"{folder} is not a whole run: run it again") from error
        runs.append(run)
    rank = {scale: i for i, scale in enumerate(SCALE_ORDER)}
    return sorted(
        runs, key=lambda r: (r.document["experiment"], rank[r.document["scale"]])
    )


def markdown_page(runs: Sequence[Run]) -> str:
    """All runs in Markdown: a summary, then claims, figures and settings of each."""
    parts = ["# Results", _markdown_table(SUMMARY_HEAD, map(_summary_row, runs))]
    for run in runs:
        parts += [f"## {_escape(run.title)}", _escape(run.document["summary"])]
        parts.append(_markdown_table(CLAIM_HEAD, map(_claim_row, run.claims)))
        parts += [
            f"![{Path(name).stem}]({run.folder}/{name})" for name in sorted(run.figures)
        ]
        parts.append(f"Every number: [metrics.csv]({run.folder}/metrics.csv)")
        parts.append(f"Settings:\n\n```json\n{_settings(run)}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def html_page(runs: Sequence[Run]) -> str:
    """The same as one self-contained HTML page."""
    parts = [_html_table(SUMMARY_HEAD, map(_summary_row, runs))]
    for run in runs:
        parts.append(f"<h2>{html.escape(run.title)}</h2>")
        parts.append(f"<p>{html.escape(run.document['summary'])}</p>")
        parts.append(_html_table(CLAIM_HEAD, map(_claim_row, run.claims)))
        for name, data in sorted(run.figures.items()):
            source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            parts.append(f'<img alt="{html.escape(Path(name).stem)}" src="{source}">')
        settings = html.escape(_settings(run))
        parts.append(
            f"<details><summary>Settings</summary><pre>{settings}</pre></details>"
        )
    return _PAGE.replace("{body}", "\n".join(parts))


def _summary_row(run: Run) -> list[str]:
    document = run.document
    device = f"{document['device']['count']} x {document['device']['kind']}"
    seeds = str(document["num_seeds"])
    name, scale = document["experiment"], document["scale"]
    return [name, scale, seeds, *run.verdicts(), device]


def _claim_row(claim: dict[str, Any]) -> list[str]:
    interval = claim["interval"]
    if interval is not None:
        low, high = float(interval["low"]), float(interval["high"])
        interval = Interval(low, high, interval["method"])
    return [
        claim["text"],
        claim["paper"] or "-",
        figure_with_spread(float(claim["measured"]), interval),
        interval.method if interval else "-",
        claim["threshold"] or "-",
        verdict(claim["holds"]),
    ]


def _settings(run: Run) -> str:
    keys = ("num_seeds", "base_seed", "config", "versions", "device", "float64")
    return json.dumps({key: run.document[key] for key in keys}, indent=2)


def _markdown_table(head: Sequence[str], rows: Any) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(map(_escape, row)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _escape(text: str) -> str:
    """``text`` as Markdown shows it letter by letter, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _html_table(head: Sequence[str], rows: Any) -> str:
    def cell(tag: str, text: str) -> str:
        kind = {"yes": ' class="yes"', "NO": ' class="no"'}.get(text, "")
        return f"<{tag}{kind}>{html.escape(text)}</{tag}>"

    lines = ["".join(cell("th", name) for name in head)]
    lines += ["".join(cell("td", text) for text in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="table"><table>\n{body}\n</table></div>'


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Results</title>
<style>
:root {
  color-scheme: light dark;
  --ink: #1b1f24; --paper: #ffffff; --line: #d5dae0; --shade: #f4f6f8;
  --yes: #087a55; --no: #c22f0b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e4e8ec; --paper: #15181c; --line: #3a4149; --shade: #1f242a;
    --yes: #4cc79a; --no: #ff8a65;
  }
}
body {
  margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif;
}
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td {
  border: 1px solid var(--line); padding: 0.35rem 0.6rem;
  text-align: left; vertical-align: top;
}
th { background: var(--shade); }
.yes { color: var(--yes); font-weight: 600; }
.no { color: var(--no); font-weight: 700; }
img {
  display: block; max-width: 100%; height: auto; margin: 1rem 0;
  background: white; border: 1px solid var(--line); border-radius: 6px;
}
pre { background: var(--shade); padding: 0.8rem; overflow-x: auto; font-size: 0.8rem; }
details { margin: 1rem 0; }
</style>
</head>
<body>
<h1>Results</h1>
{body}
</body>
</html>
"""
