"""The result of comparing two runs of many ranks, shown as text, JSON or a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from detmode.reports.page import Page, plural, shortened
from detmode.runs.collectives import some_ranks
from detmode.runs.comparison import Comparison
from detmode.runs.divergence import COLUMNS, Divergence, as_data


@dataclass(frozen=True)
class Cause:
    """A difference that no other rank can have caused.

    Args:
        ranks: the ranks that have it.
        divergence: the call, as the first of them made it.
        unknown: the members of its group whose inputs could not be compared, because their
            recordings are missing or end earlier.
    """

    ranks: tuple[int, ...]
    divergence: Divergence
    unknown: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class RunComparison(Comparison):
    """The result of comparing two runs of many ranks.

    The counts are those of all ranks together; the divergence is that of the first cause, and
    lines, dumps and timeline are those of its first rank.

    Args:
        causes: the differences that no other rank can have caused, the earliest first.
        comparisons: for each rank, its two traces compared.
        reached: for each rank whose first difference came from another one, that rank.
        missing: the ranks that only the first run has, and those that only the second has.
    """

    causes: tuple[Cause, ...] = ()
    comparisons: Mapping[int, Comparison] = field(default_factory=dict)
    reached: Mapping[int, int] = field(default_factory=dict)
    missing: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def identical(self) -> bool:
        """True if all ranks of both runs made the same calls with the same bytes."""
        return super().identical and not any(self.missing)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.causes:
            where = some_ranks(self.causes[0].ranks)
            divergence = self.causes[0].divergence
            return f"the runs diverge on {where}, at {divergence.place}: {divergence.meaning}"
        if any(self.missing):
            return f"{some_ranks(list(self.comparisons))} are identical, and others are missing"
        text = f"the runs of {plural(len(self.comparisons), 'rank')} are identical"
        return self._as_far_as_recorded(text)

    def as_data(self) -> dict[str, Any]:
        """Return what :meth:`to_json` writes."""
        return {
            **super().as_data(),
            "verdict": self.verdict,
            "causes": [
                {
                    "ranks": list(entry.ranks),
                    "unknown": list(entry.unknown),
                    **(as_data(entry.divergence) or {}),
                }
                for entry in self.causes
            ],
            "by_rank": {str(rank): entry.as_data() for rank, entry in self.comparisons.items()},
            "reached": {str(rank): origin for rank, origin in self.reached.items()},
            "missing": list(map(list, self.missing)),
        }

    def _opened(self) -> Iterator[tuple[str, Divergence]]:
        for number, cause in enumerate(self.causes):
            also = "also " if number else ""
            yield (
                f"The runs {also}diverge at this call of {some_ranks(cause.ranks)}",
                cause.divergence,
            )
        if self.outputs is not None and self.outputs != self.divergence:
            rank = self.causes[0].ranks[0]
            yield (
                f"The first call of rank {rank} whose inputs agree and outputs differ",
                self.outputs,
            )

    def _about_the_runs(self) -> Iterator[str]:
        worlds = [len(self.comparisons) + len(ranks) for ranks in self.missing]
        names = ("first", "second")
        for ranks, name in zip(self.missing, names):
            if ranks:
                yield (
                    f"only the {name} run has recordings of {some_ranks(ranks)}: the first run has "
                    f"{plural(worlds[0], 'rank')}, the second {worlds[1]:,}"
                )
        yield from super()._about_the_runs()
        for cause in self.causes:
            if cause.unknown:
                yield (
                    f"the inputs of {some_ranks(cause.unknown)} could not be compared: their "
                    "recordings are missing or end before this collective"
                )
        for rank, comparison in self.comparisons.items():
            yield f"rank {rank}: {self._state(rank, comparison)}"

    def _state(self, rank: int, comparison: Comparison) -> str:
        divergence = comparison.divergence
        if divergence is None:
            return f"{plural(comparison.same, 'call')} are identical"
        call = divergence.call
        where = f"call {call.number:,}, {call.overload} at {shortened(call.site)}"
        if rank in self.reached:
            return f"the difference of rank {self.reached[rank]} reaches it at {where}"
        return f"diverges by itself at {where}"

    def page(self) -> Page:
        """Return the page: the divergent calls with both sides, and each rank's lines."""
        rows = tuple(
            replace(row, cells=(str(rank), *row.cells))
            for rank, comparison in self.comparisons.items()
            for row in (
                line.row(None if rank in self.reached else comparison.divergence)
                for line in comparison.lines
            )
        )
        return replace(
            super().page(),
            title="Two runs of many ranks compared",
            columns=("rank", *COLUMNS),
            rows=rows,
        )
