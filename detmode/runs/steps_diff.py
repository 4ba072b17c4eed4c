"""Comparing coarse recordings: the first step in which two runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from detmode.reports.page import Page, TableRow, plural
from detmode.reports.progress import progress
from detmode.runs.collectives import some_ranks
from detmode.runs.comparison import Comparison
from detmode.runs.divergence import DIFFERENT
from detmode.runs.started import origins_of, started_differently, started_of_all
from detmode.runs.step_range import as_text
from detmode.runs.trace_file import Reader, TraceError, unrecorded_in
from detmode.runs.trace_writer import CALL, MODULE


class FirstStep(NamedTuple):
    """The first step in which the recordings of one rank differ.

    Args:
        step: the step, counted from 0 at the beginning of the run.
        names: the modules, or the parts of the state, that differ in it; those that come first in
            the step come first. None if only one run has the step.
    """

    step: int
    names: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class StepsComparison(Comparison):
    """The result of comparing two coarse recordings; counts are of steps, of all ranks together.

    Args:
        level: the level of both recordings.
        firsts: for each rank with a difference, the first step that differs.
        compared: the ranks that were compared; empty for a program of one process.
        missing: the ranks that only the first run has, and those that only the second has.
    """

    level: str = MODULE
    firsts: Mapping[int, FirstStep] = field(default_factory=dict)
    compared: tuple[int, ...] = ()
    missing: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def identical(self) -> bool:
        """True if both recordings have the same steps with the same digests."""
        return not self.firsts and not any(self.missing)

    @property
    def step(self) -> int | None:
        """The first step that differs on any rank."""
        return min((first.step for first in self.firsts.values()), default=None)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.step is None:
            of = f" of {plural(len(self.compared), 'rank')}" if self.compared else ""
            others = ", and ranks are missing" if any(self.missing) else ""
            if not self.same and not any(self.missing):
                return "not compared: neither run has a recorded step"
            return self._as_far_as_recorded(f"the recorded steps{of} are identical{others}")
        ranks = [rank for rank, first in self.firsts.items() if first.step == self.step]
        where = f" on {some_ranks(ranks)}" if self.compared else ""
        names = self.firsts[ranks[0]].names
        if not names:
            return f"only one of the runs has step {self.step}{where}; they are the same up to it"
        return f"the runs differ first in step {self.step}{where}: {_some(names)}"

    @property
    def next(self) -> str | None:
        """The options of ``detmode record`` with which the call is found; ``None`` if identical."""
        return None if self.step is None else f"--steps {self.step}:{self.step + 1}"

    def as_data(self) -> dict[str, Any]:
        """Return what :meth:`to_json` writes."""
        return {
            **super().as_data(),
            "verdict": self.verdict,
            "level": self.level,
            "step": self.step,
            "by_rank": {str(rank): first._asdict() for rank, first in self.firsts.items()},
            "missing": list(map(list, self.missing)),
            "next": self.next,
        }

    @property
    def next_step(self) -> str:
        """The most useful next step after this comparison."""
        if self.next is None:
            return super().next_step
        return f"to find the call, record both runs again with {self.next}, and compare these"

    def _body(self, width: int | None) -> list[str]:
        counts = (
            f"{plural(self.same, 'step')} are the same, {self.different} differ, {self.only_first} "
            f"are only in the first run, {self.only_second} only in the second"
        )
        return [counts, *self._about_the_runs()]

    def _about_the_runs(self) -> Iterator[str]:
        for ranks, name in zip(self.missing, ("first", "second")):
            if ranks:
                yield f"only the {name} run has recordings of {some_ranks(ranks)}"
        yield from super()._about_the_runs()
        if self.compared:
            for rank, first in self.firsts.items():
                yield f"rank {rank}: differs from step {first.step} on: {_some(first.names)}"

    def page(self) -> Page:
        """Return the page: what differs in each rank's first step that differs."""
        rows = tuple(
            TableRow(
                cells=(str(rank), str(first.step), name),
                group=DIFFERENT.name,
                rule=name,
                message=f"{name} differs from step {first.step} on, on rank {rank}.",
                site="",
            )
            for rank, first in self.firsts.items()
            for name in first.names
        )
        facts = (f"{sentence}." for sentence in (*self._about_the_runs(), self.next_step))
        columns = ("rank", "step", "name")
        return replace(
            super().page(), columns=columns, rows=rows, facts=tuple(facts), timeline=None
        )


def level_of(pairs: Mapping[int, tuple[Path, Path]]) -> str:
    """Return the level of all recordings.

    Raises:
        TraceError: they have different levels, or different steps of a run.
    """
    folders: dict[str, Path] = {}
    for path in (path for pair in pairs.values() for path in pair):
        reader = Reader(path)
        level = str(reader.about.get("level", CALL))
        folders.setdefault(f"--level {level} --steps {as_text(reader.steps_recorded)}", path)
    if len(folders) > 1:
        (options, first), (others, second) = list(folders.items())[:2]
        raise TraceError(
            f"{first} was recorded with {options}, {second} with {others}; "
            "record both with the same --level and --steps"
        )
    return level


def diff_steps(
    pairs: Mapping[int, tuple[Path, Path]],
    missing: tuple[tuple[int, ...], tuple[int, ...]],
    level: str,
    *,
    is_run: bool,
) -> StepsComparison:
    """Compare coarse recordings, a rank after the other."""
    firsts: dict[int, FirstStep] = {}
    counts = [0, 0, 0, 0]
    incomplete, unrecorded, started = [], [], {}
    origins: tuple[tuple[str, str], ...] = ()
    for rank, pair in pairs.items():
        runs = tuple(map(Reader, pair))
        steps = zip_longest(*(run.steps() for run in runs))
        counted = progress(steps, f"comparing {pair[0]}", "steps")
        for number, (mine, theirs) in enumerate(counted, start=runs[0].steps_recorded.start):
            if mine is None or theirs is None:
                counts[2 if theirs is None else 3] += 1
                firsts.setdefault(rank, FirstStep(number, ()))
                continue
            differing = [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]
            counts[bool(differing)] += 1
            if differing:
                firsts.setdefault(rank, FirstStep(number, tuple(differing)))
        incomplete += [str(run.path) for run in runs if not run.complete]
        unrecorded += unrecorded_in(*runs)
        started[rank] = started_differently(*runs)
        origins = origins or origins_of(*runs)
    same, different, only_first, only_second = counts
    return StepsComparison(
        divergence=None,
        outputs=None,
        drift=None,
        same=same,
        different=different,
        only_first=only_first,
        only_second=only_second,
        incomplete=tuple(incomplete),
        unrecorded=tuple(unrecorded),
        started=started_of_all(started),
        origin=origins,
        level=level,
        firsts=firsts,
        compared=tuple(pairs) if is_run else (),
        missing=missing,
    )


def _some(names: tuple[str, ...]) -> str:
    """Name some, and count the others."""
    shown = ", ".join(names[:4])
    return f"{shown}, and {len(names) - 4:,} more" if len(names) > 4 else shown
