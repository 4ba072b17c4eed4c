"""What the tables, the targets and the plots are made of: ratios of medians, and their means."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sides import OURS, Row
from timing import Spread

NOT_TIMED = "-"


def ratio(row: Row, side: str) -> float | None:
    """Our median over that of another side; ``None`` where that cannot run."""
    return over(row.times.get(OURS), row.times.get(side))


def over(mine: Spread | str | None, other: Spread | str | None) -> float | None:
    """One median over another; ``None`` where one is missing."""
    if not isinstance(mine, Spread) or not isinstance(other, Spread):
        return None
    return mine.median / other.median


def over_floor(row: Row) -> float | None:
    """Our median over the floor; ``None`` where the inputs were in the cache."""
    ours = row.times.get(OURS)
    if not isinstance(ours, Spread) or not row.beyond_cache or not row.floor:
        return None
    return ours.median / row.floor


def share(row: Row) -> float | None:
    """The share of a copy's bandwidth that the substitute reaches; ``None`` in the cache."""
    found = over_floor(row)
    return None if found is None else 1 / found


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    logs = [math.log(value) for value in values if value is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def number(value: float | None) -> str:
    """With two decimals; a dash where there is none."""
    return NOT_TIMED if value is None else f"{value:.2f}"
