"""The documentation's table of DebugMode beside ``detmode diff`` is what is measured."""

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
