"""The documentation's table of DebugMode beside ``detmode diff`` is what is measured."""

from pathlib import Path

import compare_debug_mode
import pytest
import sections

SECTION = sections.read(compare_debug_mode.PAGE, compare_debug_mode.TOOL)


@pytest.mark.thorough
@pytest.mark.skipif(
    compare_debug_mode.measured_with(SECTION) != compare_debug_mode.version(),
    reason="the committed table is of another PyTorch: DebugMode changes with each",
)
def test_table_is_what_is_measured() -> None:
    """Run `python tools/compare_debug_mode.py` where this fails, and commit what it writes."""
    rows = compare_debug_mode.measure()
    assert compare_debug_mode.table(rows) in SECTION
    assert all(row[2].startswith("names it: ") for row in rows[1:])


def test_section_keeps_what_stands_around_it(tmp_path: Path) -> None:
    """A tool writes between its comments only, however often."""
    page = tmp_path / "page.md"
    around = "before\n\n<!-- Begin: written by me -->\n<!-- End: written by me -->\n\nafter\n"
    page.write_text(around)
    for content in ("one\n\ntwo", "three"):
        sections.write(page, "me", content)
        assert sections.read(page, "me") == content
    assert page.read_text().split(content) == [
        "before\n\n<!-- Begin: written by me -->\n\n",
        "\n\n<!-- End: written by me -->\n\nafter\n",
    ]
    with pytest.raises(SystemExit, match=r"page.md: put one '<!-- Begin: written by you -->'"):
        sections.read(page, "you")
