"""The calls of a run in their order, by module, small enough to be drawn."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

_BINS = 240
_LANES = 40
NO_MODULE = "(no module)"

_Cells = defaultdict[str, defaultdict[int, Counter[int]]]
"""For each module: of each bin how many calls of each group, by the group's rank."""


@dataclass(frozen=True)
class Span:
    """Neighbouring calls of one lane that look alike.

    Args:
        begin: its beginning, as a share of the run between 0 and 1; ``end`` likewise.
        end: its end.
        group: the most serious group among the calls.
        calls: the number of calls of the lane.
    """

    begin: float
    end: float
    group: str
    calls: int


@dataclass(frozen=True)
class Lane:
    """The calls of one module, and of those in it where there were too many lanes."""

    name: str
    spans: tuple[Span, ...]
    counts: tuple[tuple[str, int], ...]
    """The number of calls of each group."""


@dataclass(frozen=True)
class Timeline:
    """The lanes in the order in which their modules were first called.

    Args:
        lanes: one a module.
        calls: the number of calls in them.
        unit: the unit of a call's place.
    """

    lanes: tuple[Lane, ...]
    calls: int
    unit: str


class TimelineBuilder:
    """Gathers calls, in memory that does not grow with their number.

    Args:
        total: the number of places.
        groups: names of groups, the most serious first: it is what a span shows.
    """

    def __init__(self, total: int, groups: Sequence[str]) -> None:
        self._total = max(total, 1)
        self._groups = tuple(groups)
        self._rank = {name: rank for rank, name in enumerate(groups)}
        self._bins = min(_BINS, self._total)
        self._cells: _Cells = defaultdict(lambda: defaultdict(Counter))

    def add(self, place: int, module: str | None, group: str, count: int = 1) -> None:
        """Add calls at a place between 0 and ``total``."""
        where = min(place * self._bins // self._total, self._bins - 1)
        self._cells[module or NO_MODULE][where][self._rank[group]] += count

    def timeline(self, unit: str) -> Timeline:
        """Return the timeline of the calls so far."""
        lanes = tuple(self._lane(name, bins) for name, bins in _merged(self._cells).items())
        calls = sum(count for lane in lanes for _, count in lane.counts)
        return Timeline(lanes, calls, unit)

    def _lane(self, name: str, bins: Mapping[int, Counter[int]]) -> Lane:
        spans = []
        places = sorted(bins.items())
        filled = ((where, min(counts), sum(counts.values())) for where, counts in places)
        # Bins that follow each other and show the same group differ from their number by the same.
        for (_, rank), run in groupby(
            enumerate(filled), lambda each: (each[1][0] - each[0], each[1][1])
        ):
            members = [each for _, each in run]
            begin, end = members[0][0], members[-1][0] + 1
            calls = sum(count for _, _, count in members)
            spans.append(Span(begin / self._bins, end / self._bins, self._groups[rank], calls))
        totals = sum(bins.values(), Counter[int]())
        counts = tuple((self._groups[rank], count) for rank, count in sorted(totals.items()))
        return Lane(name, tuple(spans), counts)


def _merged(cells: _Cells) -> _Cells:
    """Merge the deepest modules into their parents until there are few enough lanes."""
    deepest = max((name.count(".") + 1 for name in cells), default=1)

    def lane_of(name: str, depth: int) -> str:
        return ".".join(name.split(".", depth)[:depth])

    def too_many(depth: int) -> bool:
        return len({lane_of(name, depth) for name in cells}) > _LANES

    # A module may be a thousand deep: not every depth is tried.
    depth = max(bisect_left(range(1, deepest + 1), True, key=too_many), 1)
    merged: _Cells = defaultdict(lambda: defaultdict(Counter))
    for name, bins in cells.items():
        for where, counts in bins.items():
            merged[lane_of(name, depth)][where].update(counts)
    return merged


def timeline_of(
    calls: Iterable[tuple[str | None, str]], total: int, groups: Sequence[str], unit: str
) -> Timeline:
    """The timeline of calls given as ``(module, group)`` in their order."""
    builder = TimelineBuilder(total, groups)
    for place, (module, group) in enumerate(calls):
        builder.add(place, module, group)
    return builder.timeline(unit)
