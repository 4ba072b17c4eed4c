"""Write the section of ``docs/performance.md`` on GPUs from ``benchmarks/results/``.

``--check`` says whether it is stale and changes nothing.
"""

import argparse
import sys

import sections
from sections import ROOT

sys.path[:0] = [str(ROOT / "benchmarks")]
from results import of_gpus
from tables import documented

PAGE = ROOT / "docs" / "performance.md"
TOOL = "tools/generate_performance.py"


def stale() -> str | None:
    """The fault of the committed section; ``None`` if it has none."""
    if sections.read(PAGE, TOOL) == documented(of_gpus()).strip():
        return None
    return f"docs/{PAGE.name} is stale; run: python {TOOL}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is stale")
    if not parser.parse_args().check:
        sections.write(PAGE, TOOL, documented(of_gpus()))
        return 0
    wrong = stale()
    if wrong is not None:
        print(wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
