"""Write what was measured, ``benchmarks/results/``, into pages under ``docs/``, and draw the chart.

``--check`` says whether a page is stale and changes nothing.
"""

import argparse
import sys
from pathlib import Path

import sections
from sections import ROOT

sys.path[:0] = [str(ROOT / "benchmarks")]
import compiled
from compiled import committed
from ratio_chart import chart
from results import of_gpus
from tables import documented

DESIGN = ROOT / "docs" / "design"
PAGE, COMPILED = DESIGN / "measured.md", DESIGN / "compiled-code.md"
CHART = ROOT / "docs" / "_static" / "families.svg"
TOOL = "tools/generate_performance.py"


def contents() -> dict[Path, str]:
    """Return the generated section of each page."""
    return {PAGE: documented(of_gpus()), COMPILED: compiled.documented(committed())}


def stale() -> str | None:
    """The fault of a committed section; ``None`` if none has any."""
    for page, content in contents().items():
        if sections.read(page, TOOL) != content.strip():
            return f"docs/design/{page.name} is stale; run: python {TOOL}"
    if CHART.read_text(encoding="utf-8") != chart(of_gpus()[-1]):
        return f"docs/_static/{CHART.name} is stale; run: python {TOOL}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether one is stale")
    if not parser.parse_args().check:
        for page, content in contents().items():
            sections.write(page, TOOL, content)
        CHART.write_text(chart(of_gpus()[-1]), encoding="utf-8")
        return 0
    wrong = stale()
    if wrong is not None:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
