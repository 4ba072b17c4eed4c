"""The calls of a run in their order, by module, small enough to be kept and to be drawn."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_BINS = 240
_LANES = 40
NO_MODULE = "(no module)"

_Cells = defaultdict[str, defaultdict[int, Counter[int]]]
"""For each module: of each bin how many calls of each group, by the group's rank."""


Counts: TypeAlias = tuple[tuple[str, int], ...]
"""The number of calls of each group, the most serious first."""


@dataclass(frozen=True)
class Lane:
    """The calls of one module, and of those in it where there were too many lanes.

    Args:
        name: the module's path.
        columns: of each bin in which it is called, the number, and the counts in it.
        counts: those of all bins.
    """

    name: str
    columns: tuple[tuple[int, Counts], ...]
    counts: Counts

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(count for _, count in self.counts)


@dataclass(frozen=True)
class Timeline:
    """The lanes in the order in which their modules were first called.

    Args:
        lanes: one a module.
        bins: the number of equal parts into which the run is cut.
        total: the number of places in the run, all bins together.
        calls: the number of calls in all lanes.
        unit: the unit of a call's place.
        point: the place at which two runs diverge, as a share of the run between 0 and 1.
    """

    lanes: tuple[Lane, ...]
    bins: int
    total: int
    calls: int
    unit: str
    point: float | None = None


class TimelineBuilder:
    """Gathers calls, in memory that does not grow with their number.

    Args:
        total: the number of places.
        groups: names of groups, the most serious first.
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

    def timeline(self, unit: str, point: int | None = None) -> Timeline:
        """Return the timeline of the calls so far.

        Args:
            unit: of a call's place.
            point: the place at which two runs diverge.
        """
        lanes = tuple(self._lane(name, bins) for name, bins in _merged(self._cells).items())
        calls = sum(lane.calls for lane in lanes)
        # In the middle of its call, which is seen where a run has few.
        share = None if point is None else min((point + 0.5) / self._total, 1.0)
        return Timeline(lanes, self._bins, self._total, calls, unit, share)

    def _lane(self, name: str, bins: Mapping[int, Counter[int]]) -> Lane:
        columns = tuple((place, self._named(bins[place])) for place in sorted(bins))
        return Lane(name, columns, self._named(sum(bins.values(), Counter[int]())))

    def _named(self, counts: Counter[int]) -> Counts:
        return tuple((self._groups[rank], count) for rank, count in sorted(counts.items()))


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
    calls: Iterable[tuple[str | None, str, int]], total: int, groups: Sequence[str], unit: str
) -> Timeline:
    """The timeline of calls given as ``(module, group, count)`` in their order."""
    builder = TimelineBuilder(total, groups)
    place = 0
    for module, group, count in calls:
        builder.add(place, module, group, count)
        place += count
    return builder.timeline(unit)
