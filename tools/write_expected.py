"""Writes what tests expect, and prints each line that changes.

``digests``: ``tests/expect/digests.txt``, the bits of every substitute. A change is a decision:
programs that run today get other results. ``substituted``: ``tests/expect/substituted.txt``, the
operators that PyTorch's sample inputs meet; it takes minutes. ``called``:
``detmode/table/called_as.txt``, operators by the names of functions; it takes minutes, too.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("digests", "substituted", "called"))
    expected: Any = importlib.import_module(f"tests.shared.{parser.parse_args().what}")
    before, now = expected.pinned(), expected.found()
    expected.LINES.write_text(expected.text_of(now), encoding="utf-8")
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            print(f"{name}: {before.get(name)} -> {now.get(name)}")


if __name__ == "__main__":
    main()
