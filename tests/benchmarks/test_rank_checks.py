"""The benchmark of check_ranks, at tiny sizes, and the figures that the documentation shows."""

from pathlib import Path

import pytest
import rank_checks
from provenance import ROOT
from rank_checks import EVERY, FOLDER, MODELS, TARGET, RankChecks


def test_figures_of_the_documentation() -> None:
    """The page shows the committed figures, and the target is met at ``every=100``."""
    (path,) = FOLDER.iterdir()
    measured = RankChecks.read(path)
    assert measured.rows.keys() == MODELS.keys()
    page = (ROOT / "docs" / "design" / "checking-ranks.md").read_text(encoding="utf-8")
    _, _, *rows = measured.table().splitlines()
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        assert f"| {' | '.join(cells)} |" in page
    for row in measured.rows.values():
        assert (row["checked"] - row["plain"]) / row["plain"] / EVERY[0] < TARGET


@pytest.mark.thorough
def test_tiny_run(tmp_path: Path) -> None:
    """Every model is timed on both sides, and the file has what the table shows."""
    assert rank_checks.main(["--quick", "--rounds", "2", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    measured = RankChecks.read(path)
    assert measured.rows.keys() == MODELS.keys()
    assert all(row["plain"] > 0 < row["checked"] for row in measured.rows.values())
