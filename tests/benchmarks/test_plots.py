"""The plot of results; skipped without matplotlib, which only the benchmarks need."""

from collections.abc import Callable
from pathlib import Path

import plots
import pytest
from results import Results
from sides import ATEN, OURS, Row
from timing import Spread

pytest.importorskip("matplotlib")


def test_plot_is_written(
    measured: Results, spread: Callable[[float], Spread], tmp_path: Path
) -> None:
    """A picture with a line for each room."""
    times: dict[str, Spread | str] = {ATEN: spread(2), OURS: spread(1)}
    measured.rows = [Row(room, "aten::x", "a", "float32", "", times=times) for room in "ab"]
    plots.over_aten(measured, tmp_path / "over_aten.svg")
    assert (tmp_path / "over_aten.svg").read_text().startswith("<?xml")
