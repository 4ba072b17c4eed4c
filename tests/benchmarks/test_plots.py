"""The pictures of results, from figures that are made up for the test."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import plots
import pytest
from contention import KINDS
from matplotlib.figure import Figure
from results import Results
from sides import NATIVE, Row


@pytest.fixture
def rows(row: Callable[..., Row]) -> list[Row]:
    """Two families; one of them with varied contention, where PyTorch has no deterministic path."""
    more = {"floor": 1e-6, "times": {NATIVE: "raises"}}
    varied = [row("b", "aten::b", us, "x", kind, **more) for us, kind in enumerate(("", *KINDS), 2)]
    return [row("a", "aten::a", 2, "x", floor=1e-6), *varied]


def points(figure: Figure, axes: int = 0) -> list[tuple[Sequence[float], Sequence[float]]]:
    """Of each line with a marker, its places."""
    lines = figure.axes[axes].get_lines()
    found = [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]
    return [(x, y) for line, (x, y) in zip(lines, found) if line.get_marker() != "None" and len(x)]


def test_every_picture_is_written(rows: list[Row], measured: Results, tmp_path: Path) -> None:
    """As SVG, the same bytes each time, with what it was measured on; what failed is left out."""
    measured.rows = [rows[-1], Row("c", "aten::c", "x", "float32", "one", failure="it varies")]
    pictures = [plots.draw(measured, tmp_path / name) for name in ("one", "other")]
    assert [path.name for path in pictures[0]] == [
        *("over_aten.svg", "roofline.svg", "contention.svg")
    ]
    for one, other in zip(*pictures):
        assert one.read_bytes() == other.read_bytes()
        words = re.findall("<!-- (.*?) -->", one.read_text(encoding="utf-8"))
        assert "some gpu" in words
        assert not {"c", "c\nx"} & set(words)


def test_pictures_of_nothing(measured: Results, tmp_path: Path) -> None:
    """A part alone has no operators, and is no error; without a GPU the title says so."""
    measured.provenance["gpu"] = None
    pictures = plots.draw(measured, tmp_path)
    assert len(pictures) == 3
    for path in pictures:
        assert "no measurement of a GPU" in path.read_text(encoding="utf-8")


def test_ratio_is_ours_over_aten(rows: list[Row]) -> None:
    """A family's own inputs and those of other contention are told apart."""
    figure = plots.over_aten(rows)
    assert points(figure) == [([0.5], [0]), ([0.5], [1]), ([0.75, 1.0, 1.25], [1] * 3)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b"]


def test_roofline_is_the_share_of_a_copy(rows: list[Row]) -> None:
    """Over the bytes; with lines at all of a copy's bandwidth and at the target's share."""
    figure = plots.roofline(rows)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == ["a", "b"]
    for place in range(2):
        assert points(figure, place) == [([1 << 20], [0.5])]
        goals = [line.get_ydata()[0] for line in figure.axes[place].get_lines()][-2:]
        assert goals == [1.0, 0.6]


def test_contention_is_ours_beside_the_others(rows: list[Row]) -> None:
    """A side that cannot run has no line."""
    figure = plots.contended(rows)
    ours, aten = points(figure)
    assert ours[0] == aten[0] == [0, 1, 2]
    assert ours[1] == pytest.approx([3, 4, 5])
    assert aten[1] == pytest.approx([4, 4, 4])
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == list(KINDS)
