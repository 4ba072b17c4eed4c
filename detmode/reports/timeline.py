"""The calls of a run in their order, by module, small enough to be kept and to be drawn."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_BINS = 240
_LANES = 40
NO_MODULE = "(no module)"

Cells: TypeAlias = Counter[tuple[str | None, int, str]]
"""The number of calls of each module, bin and group: of any run as many as can be drawn."""

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


def bin_of(place: int, total: int) -> int:
    """Return the bin of a call's place, of so many in all."""
    return place * min(_BINS, total) // total


def timeline_of(
    calls: Iterable[tuple[str | None, str, int]], total: int, groups: Sequence[str], unit: str
) -> Timeline:
    """The timeline of calls given as ``(module, group, count)`` in their order."""
    cells: Cells = Counter()
    place = 0
    for module, group, count in calls:
        cells[module, bin_of(place, total), group] += count
        place += count
    return timeline_of_cells(cells, total, groups, unit)


def timeline_of_cells(
    cells: Cells, total: int, groups: Sequence[str], unit: str, point: int | None = None
) -> Timeline:
    """Return the timeline of calls that were counted.

    Args:
        cells: in the order of their first calls.
        total: the number of places.
        groups: names of groups, the most serious first.
        unit: of a call's place.
        point: the place at which two runs diverge.
    """
    lane_of = _lanes({module or NO_MODULE for module, _, _ in cells})
    lanes: defaultdict[str, defaultdict[int, Counter[str]]]
    lanes = defaultdict(lambda: defaultdict(Counter))
    for (module, where, group), count in cells.items():
        lanes[lane_of(module or NO_MODULE)][where][group] += count

    def counted(counts: Counter[str]) -> Counts:
        return tuple((group, counts[group]) for group in groups if group in counts)

    drawn = tuple(
        Lane(
            name,
            tuple((where, counted(bins[where])) for where in sorted(bins)),
            counted(sum(bins.values(), Counter[str]())),
        )
        for name, bins in lanes.items()
    )
    # In the middle of its call, which is seen where a run has few.
    share = None if point is None else min((point + 0.5) / total, 1.0)
    return Timeline(drawn, min(_BINS, total), total, sum(cells.values()), unit, share)


def _lanes(modules: set[str]) -> Callable[[str], str]:
    """Return a function that gives a module's lane: it, or a parent, so that there are few."""
    deepest = max((name.count(".") + 1 for name in modules), default=1)

    def too_many(depth: int) -> bool:
        return len({".".join(name.split(".", depth)[:depth]) for name in modules}) > _LANES

    # A module may be a thousand deep: not every depth is tried.
    depth = max(bisect_left(range(1, deepest + 1), True, key=too_many), 1)
    return lambda name: ".".join(name.split(".", depth)[:depth])
