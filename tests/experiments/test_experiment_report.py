"""The two pages on all results, the console table, and the figures."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib import image, pyplot
from rich.console import Console

from experiments.__main__ import main
from experiments.claims import Claim, at_least, at_most, between
from experiments.figures import (
    label_lines,
    log_axes,
    new_figure,
    plot_spread,
    save_figure,
    threshold_line,
)
from experiments.progress import stage_progress
from experiments.runner import claims_table


class Page(HTMLParser):
    """The rows of all tables, the images, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.images, self.open, self.links = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found[key] for key in ("src", "href") if key in found]
        if tag == "img":
            self.images.append(found["src"])
        elif tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture
def out(toy_results, tmp_path):
    """Two finished runs and one that is not."""
    for scale in ("full", "smoke", "default"):
        folder = tmp_path / "toy_walk" / scale
        shutil.copytree(toy_results / "toy_walk" / "smoke", folder)
        config = folder / "config.json"
        text = config.read_text().replace('"scale": "smoke"', f'"scale": "{scale}"')
        if scale == "default":
            text = text.replace('"finished"', '"running"')
        config.write_text(text)
    return tmp_path


def test_the_report_shows_every_finished_run(out, capsys):
    assert main(["report", "--out", str(out)]) == 0
    pages = [out / "report.md", out / "report.html"]
    assert capsys.readouterr().out.split() == [str(page) for page in pages]
    markdown, html = (page.read_text() for page in pages)
    page = Page(html)
    assert page.open == []

    summary = page.rows[1:3]
    assert [row[:6] for row in summary] == [
        ["toy_walk", "smoke", "6", "2", "0", "1"],
        ["toy_walk", "full", "6", "2", "0", "1"],
    ]
    claim = "the walk | stays *within* its <limit>"
    (first, second) = (row for row in page.rows if row[0] == claim)
    assert first == second
    assert [first[1], first[4], first[5]] == ["1.5", "<= 1000", "yes"]
    assert first[3] == "95% order statistics of 6 seeds (binomial)"
    assert r"| the walk \| stays \*within\* its \<limit\> | 1.5 |" in markdown

    png = (out / "toy_walk" / "smoke" / "walk.png").read_bytes()
    assert page.links == page.images
    data = [link.removeprefix("data:image/png;base64,") for link in page.images]
    assert [base64.b64decode(text) for text in data] == [png, png]
    links = re.findall(r"\]\((.*?)\)", markdown)
    assert len(links) == 4
    assert all((out / link).is_file() for link in links)


@pytest.mark.parametrize("name", ["claims.json", "walk.png", "config.json"])
def test_a_damaged_run_is_named(out, capsys, name):
    path = out / "toy_walk" / "full" / name
    path.write_text("[{}]") if name == "claims.json" else path.unlink()
    if name == "config.json":
        path.write_text("{")
    assert main(["report", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path.parent) in line
    assert not (out / "report.md").exists()


def test_the_table_prints_texts_as_they_are_and_a_failure_as_no():
    claims = (
        Claim("ratio [bold]>= 30[/bold]", 3.0, at_least(30)),
        Claim("slope", -0.4, between(-0.42, -0.32)),
        Claim("peers", 1.0),
    )
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(claims_table(claims, "toy"))
    lines = console.export_text().splitlines()
    verdicts = [line.split("│")[-2].strip() for line in lines if "│" in line]
    assert verdicts == ["NO", "yes", "-"]
    assert any("[bold]>= 30[/bold]" in line for line in lines)


def test_progress_is_a_bar_on_a_terminal_and_plain_lines_elsewhere():
    printed = []
    for terminal in (True, False):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=80)
        with stage_progress(console, 2) as observer:
            observer("one", None, False)
            observer("one", 1.25, False)
            observer("two", None, False)
            observer("two", 0.1, True)
        printed.append(stream.getvalue())
    assert "2/2" in printed[0]
    assert printed[1].splitlines() == [
        "one: started",
        "one: done in 1.2 s",
        "two: started",
        "two: read back",
    ]


def test_figures_need_no_pyplot_and_are_closed_once_saved(tmp_path):
    figure, axes = new_figure("Error", columns=2)
    assert axes.shape == (1, 2)
    samples = np.random.default_rng(0).exponential(size=(3, 50))
    for name, factor in (("mean", 1.0), ("median of means", 1.01)):
        plot_spread(axes[0, 0], [1, 10, 100], factor * samples, name)
    line, band = axes[0, 0].get_lines()[0], axes[0, 0].collections[0]
    np.testing.assert_array_equal(line.get_ydata(), np.quantile(samples, 0.5, axis=1))
    edges = np.quantile(samples, [0.05, 0.95], axis=1)
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == edges.min()
    assert corners[:, 1].max() == edges.max()
    log_axes(axes[0, 0])
    threshold_line(axes[0, 0], at_most(0.5))
    threshold_line(axes[0, 1], between(1.0, 2.0), along="x")
    assert [line.get_xdata()[0] for line in axes[0, 1].get_lines()] == [1.0, 2.0]
    label_lines(axes[0, 0])
    texts = axes[0, 0].texts
    assert [text.get_text() for text in texts] == [
        "claim: <= 0.5",
        "mean",
        "median of means",
    ]
    heights = [text.get_window_extent() for text in texts[1:]]
    assert not heights[0].overlaps(heights[1])

    path = tmp_path / "figure.png"
    save_figure(figure, path)
    height, width = image.imread(path).shape[:2]
    assert (width, height) == (round(2 * 4.4 * 200), round(3.2 * 200))
    assert figure.axes == []


def test_a_figure_made_with_pyplot_is_closed_too(tmp_path):
    figure = pyplot.figure()
    save_figure(figure, tmp_path / "figure.png")
    assert pyplot.get_fignums() == []
