"""The pictures of results, from figures that are made up for the test."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contention import KINDS
from results import Results
from sides import NATIVE, Row

from tests.shared import needs

pytestmark = needs.package("matplotlib")


@pytest.fixture
def draw() -> Callable[..., list[Path]]:
    """``plots.draw``. Collection does not import matplotlib, which takes a second."""
    plots: Any = importlib.import_module("plots")
    return plots.draw


@pytest.fixture
def rows(row: Callable[..., Row]) -> list[Row]:
    """Two families; one of them with varied contention, where PyTorch has no deterministic path."""
    more = {"floor": 1e-6, "times": {NATIVE: "raises"}}
    varied = [row("b", "aten::b", us, "x", kind, **more) for us, kind in enumerate(("", *KINDS), 2)]
    return [row("a", "aten::a", 2, "x", floor=1e-6), *varied]


def test_every_picture_is_written(
    draw: Callable[..., list[Path]], rows: list[Row], measured: Results, tmp_path: Path
) -> None:
    """As SVG, the same bytes each time, with what it was measured on; what failed is left out."""
    measured.rows = [rows[-1], Row("c", "aten::c", "x", "float32", "one", failure="it varies")]
    pictures = [draw(measured, tmp_path / name) for name in ("one", "other")]
    assert [path.name for path in pictures[0]] == [
        *("over_aten.svg", "roofline.svg", "contention.svg")
    ]
    for one, other in zip(*pictures):
        assert one.read_bytes() == other.read_bytes()
        words = re.findall("<!-- (.*?) -->", one.read_text(encoding="utf-8"))
        assert "some gpu" in words
        assert not {"c", "c\nx"} & set(words)


def test_pictures_of_nothing(
    draw: Callable[..., list[Path]], measured: Results, tmp_path: Path
) -> None:
    """A part alone has no operators, and is no error; without a GPU the title says so."""
    measured.provenance["gpu"] = None
    pictures = draw(measured, tmp_path)
    assert len(pictures) == 3
    for path in pictures:
        assert "no measurement of a GPU" in path.read_text(encoding="utf-8")
