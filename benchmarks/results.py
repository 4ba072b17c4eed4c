"""Measurements of ``families.py``, as JSON and back, and ratios of their medians."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provenance import ROOT, Measured
from sides import OURS, Row
from tabulate import tabulate
from timing import Spread
from whole_steps import Step

FOLDER = ROOT / "benchmarks" / "results"
NOT_TIMED = "-"


@dataclass
class Results(Measured):
    """The measurements of one run.

    Args:
        provenance: as in :class:`Measured`.
        bandwidth: bytes that a copy reads and writes in a second.
        rounds: the number of times that each side was timed.
        rows: the operators.
        host: the host's cost of a call's parts.
        steps: whole training steps, by model.
    """

    bandwidth: float
    rounds: int
    rows: list[Row] = field(default_factory=list)
    host: dict[str, Spread | str] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True if a GPU was measured."""
        return self.provenance["gpu"] is not None

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what :meth:`write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        found["rows"] = [
            Row(**_with_times({"warm": {}} | row, "times", "warm")) for row in found["rows"]
        ]
        found["steps"] = {
            name: Step(**_with_times(step, "times", "work"))
            for name, step in found["steps"].items()
        }
        return cls(**_with_times(found, "host"))


def _with_times(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """The fields, of which these are spreads, or words, by name."""
    return fields | {
        name: {
            what: Spread(**time) if isinstance(time, dict) else time
            for what, time in fields[name].items()
        }
        for name in names
    }


def of_gpus(folder: Path = FOLDER) -> list[Results]:
    """The committed results that are of a GPU, by file name."""
    found = [Results.read(path) for path in sorted(folder.glob("*.json"))]
    return [results for results in found if results.on_gpu]


def ratio(row: Row, side: str) -> float | None:
    """Our median over that of another side; ``None`` where that cannot run."""
    return over(row.times.get(OURS), row.times.get(side))


def over(mine: Spread | str | None, other: Spread | str | None) -> float | None:
    """One median over another; ``None`` where one is missing."""
    if not isinstance(mine, Spread) or not isinstance(other, Spread):
        return None
    return mine.median / other.median


def over_floor(row: Row) -> float | None:
    """Our median over the floor; ``None`` where there is none."""
    ours = row.times.get(OURS)
    return ours.median / row.floor if isinstance(ours, Spread) and row.floor else None


def share(row: Row) -> float | None:
    """The share of a copy's bandwidth that the substitute reaches."""
    found = over_floor(row)
    return None if found is None else 1 / found


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def number(value: float | None) -> str:
    """With two decimals; a dash where there is none."""
    return NOT_TIMED if value is None else f"{value:.2f}"


def table(heads: Sequence[str], lines: Iterable[tuple[str, ...]], form: str = "simple") -> str:
    """Show cells as they are, in a form of tabulate."""
    return tabulate(lines, headers=heads, disable_numparse=True, tablefmt=form)
