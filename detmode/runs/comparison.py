"""The result of comparing two runs, shown as text, JSON or a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from detmode.reports.by_line import Entry, by_line
from detmode.reports.page import Opened, Page, plural
from detmode.reports.shown import Shown
from detmode.reports.terminal import fitted
from detmode.reports.timeline import Timeline
from detmode.runs.divergence import (
    BY_ITSELF,
    COLUMNS,
    EAGERLY,
    GROUPS,
    INITIALIZE,
    Divergence,
    Line,
    as_data,
    as_opened,
    described,
    rows_for,
)
from detmode.runs.dump_diff import CallDifference
from detmode.runs.dump_file import CallName


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The result of comparing two runs.

    >>> for name in ("first", "second"):
    ...     with detmode.record(name):
    ...         sums = torch.ones(3).cumsum(0)
    >>> comparison = detmode.diff("first", "second")
    >>> comparison.identical, comparison.different
    (True, 0)

    Args:
        divergence: the first difference; ``None`` if the runs are the same.
        outputs: the first call whose inputs agree and whose outputs differ, if there is one.
        drift: for two ranks, the first call that overwrites a tensor both share with different
            bytes.
        same: the number of calls that are bitwise identical.
        different: the number of calls that both runs made and that differ.
        only_first: the number of calls that only the first run made.
        only_second: the number of calls that only the second run made.
        incomplete: the paths of the runs that failed or were killed.
        unrecorded: for the path of each run whose other threads made calls, how many.
        lines: the operators and sites whose calls are not all the same.
        timeline: the calls by module.
        ranks: the two ranks, for two recordings of one distributed run; otherwise ``None``. Calls
            on data of one rank may differ. The results of collectives that give all ranks the same
            result should not differ, and neither should the results of the same inputs.
        dumped: for each call that both runs dumped, how its tensors differ.
        to_dump: for each run, the calls to dump in order to see how the tensors differ.
        started: differences in the runs' starts (arguments, PyTorch's version, its threads):
            the name, the first run's value and the second's.
        steps: the steps that were recorded, as ``--steps`` has them; "0:" for all of them.
        origin: names and texts: the folder, the arguments and PyTorch's version of each run.
        coarse_from: the call of the first run from which on calls were aligned coarsely, since the
            runs differ too much; more of them count as made by one run only. ``None`` if none were.
        unsaid: the number of calls of the first run whose results are not compared, since they
            read uninitialized memory.
    """

    divergence: Divergence | None
    outputs: Divergence | None
    drift: Divergence | None
    same: int
    different: int
    only_first: int
    only_second: int
    incomplete: tuple[str, ...]
    lines: tuple[Line, ...] = ()
    timeline: Timeline | None = None
    ranks: tuple[str, str] | None = None
    dumped: tuple[CallDifference, ...] = ()
    to_dump: tuple[tuple[CallName, ...], tuple[CallName, ...]] = ((), ())
    started: tuple[tuple[str, str, str], ...] = ()
    steps: str = "0:"
    origin: tuple[tuple[str, str], ...] = ()
    unrecorded: tuple[tuple[str, int], ...] = ()
    coarse_from: int | None = None
    unsaid: int = 0

    @property
    def identical(self) -> bool:
        """True if both runs made the same calls with the same bytes; for ranks, what they share."""
        return self.divergence is None

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.divergence is not None:
            return f"the runs diverge at {self.divergence.place}: {self.divergence.meaning}"
        if self.ranks is not None:
            names = " and ".join(self.ranks)
            text = f"ranks {names} have the same results of collectives, and of equal inputs"
            return self._as_far_as_recorded(text)
        if not self.same:
            return "not compared: neither run has a recorded call"
        if self.unsaid:
            return (
                "the runs are identical in all that is recorded: not the results of "
                f"{plural(self.unsaid, 'call')} that read uninitialized memory"
            )
        return self._as_far_as_recorded("the runs are identical")

    def _as_far_as_recorded(self, text: str) -> str:
        return f"{text} as far as recorded" if self.incomplete or self.unrecorded else text

    def to_json(self) -> str:
        """Return the comparison as a JSON object."""
        return json.dumps(self.as_data(), indent=2)

    def as_data(self) -> dict[str, Any]:
        """Return what :meth:`to_json` writes."""
        return {
            "identical": self.identical,
            "divergence": as_data(self.divergence),
            "outputs": as_data(self.outputs),
            "drift": as_data(self.drift),
            "same": self.same,
            "different": self.different,
            "only_first": self.only_first,
            "only_second": self.only_second,
            "incomplete": list(self.incomplete),
            "unrecorded": dict(self.unrecorded),
            "ranks": self.ranks and list(self.ranks),
            "dumped": [dump.as_data() for dump in self.dumped],
            "to_dump": [list(map(str, calls)) for calls in self.to_dump],
            "coarse_from": self.coarse_from,
            "unsaid": self.unsaid,
            "started": {name: list(both) for name, *both in self.started},
        }

    @property
    def next_step(self) -> str:
        """The most useful next step after this comparison."""
        divergence = self.divergence
        if self.identical:
            return "keep a recording, and compare it with one of another machine or version"
        if divergence is None:
            return "record all ranks of both runs, and compare these"
        if divergence.kind in ("graph", "fused"):
            return EAGERLY
        if divergence.kind == "uninitialized":
            return INITIALIZE
        if self.started:
            names = " and ".join(name for name, *_ in self.started[:3])
            return f"start both runs with the same {names}, and compare them again"
        overload = divergence.call.overload
        if divergence.kind not in BY_ITSELF:
            return "compare what the runs began with; `detmode doctor` lists what can differ"
        if rows_for(overload):
            return f"`detmode explain {overload}` says why it varies, and what to do"
        return f"`detmode probe` shows whether {overload} varies by itself"

    def text(self, *, long: bool = False, width: int | None = None, colour: bool = False) -> str:
        """Return the verdict, the next step, and the calls at which the runs diverge.

        Args:
            long: all lines whose calls are not the same, too.
            width: the columns of the terminal, which no line exceeds.
            colour: the verdict in colour.
        """
        body = (fitted(part, width) for part in self._body(width))
        parts = [self.opening(width=width, colour=colour), *body]
        if long and self.lines:
            parts += ["", by_line(map(_entry, self.lines), width)]
        return "\n".join(parts)

    def _body(self, width: int | None) -> list[str]:
        lines = [
            f"{self.same} {'call is' if self.same == 1 else 'calls are'} the same, "
            f"{self.different} differ, {self.only_first} are only in the first run, "
            f"{self.only_second} only in the second"
        ]
        lines += self._about_the_runs()
        for title, divergence in self._opened():
            lines += ["", f"{title}:", "", described(divergence, width)]
        for dump in self.dumped:
            lines += ["", dump.text(width)]
        advice = self._how_to_dump()
        if advice is not None:
            lines += ["", advice]
        return lines

    def _opened(self) -> Iterator[tuple[str, Divergence]]:
        """Yield each call that is shown, with a title."""
        if self.divergence is not None:
            yield "The runs diverge at this call", self.divergence
        if self.outputs is not None and self.outputs != self.divergence:
            yield "The first call whose inputs agree and whose outputs differ", self.outputs
        if self.drift is not None and self.drift != self.divergence:
            yield "The first call after which the ranks have different bytes", self.drift

    def _about_the_runs(self) -> Iterator[str]:
        for path in dict.fromkeys(self.incomplete):
            yield f"the program of {path} failed or was killed: compared up to that point"
        for path, calls in self.unrecorded:
            yield f"{path} lacks {plural(calls, 'call')} of other threads, which are not recorded"
        if self.coarse_from is not None:
            yield (
                f"from call {self.coarse_from:,} of the first run on, calls are aligned coarsely: "
                "the runs differ too much to match each, so more count as only in one run"
            )
        for name, first, second in self.started:
            yield f"started with different {name}: {first}, and {second}"

    def _how_to_dump(self) -> str | None:
        options = [
            " ".join(f"--dump {shlex.quote(str(c))}" for c in command) for command in self.to_dump
        ]
        if not all(options):
            return None
        if self.steps != "0:":
            options = [f"--steps {self.steps} {command}" for command in options]
        how = (
            f"both runs again with {options[0]}"
            if options[0] == options[1]
            else f"the first run again with {options[0]}, the second with {options[1]}"
        )
        return f"to see how the tensors differ, record {how}"

    def page(self) -> Page:
        """Return the page: the divergent call with both sides, and the lines that differ."""
        facts = [
            f"{plural(self.same, 'call')} identical, {self.different:,} different, "
            f"{self.only_first:,} only in the first run, {self.only_second:,} only in the second."
        ]
        facts += [f"{line}." for line in self._about_the_runs()]
        opened = [as_opened(title, divergence) for title, divergence in self._opened()]
        opened += map(_opened_dump, self.dumped)
        return Page(
            title="Two runs compared",
            verdict=f"{self.verdict[0].upper()}{self.verdict[1:]}.",
            severity="note" if self.identical else "error",
            groups=GROUPS,
            columns=COLUMNS,
            rows=tuple(line.row(self.divergence) for line in self.lines),
            facts=(*facts, *filter(None, [self._how_to_dump()])),
            timeline=self.timeline,
            opened=tuple(opened),
            origin=self.origin,
        )


def _entry(line: Line) -> Entry:
    """Return a line of code with the outcomes of its calls."""
    outcomes = ", ".join(f"{n:,} {group.name}" for n, group in zip(line.counts, GROUPS) if n)
    return Entry(line.row(None), "    ", (line.module or "", outcomes))


def _opened_dump(call: CallDifference) -> Opened:
    details = (
        f"{array.name}: {', '.join(' '.join(fact) for fact in list(array.facts())[1:])}"
        for array in call.differing
    )
    return Opened(
        call.title,
        tuple((array.name, *array.forms) for array in call.differing),
        (*details, *call.summary()),
        tuple((f"{array.name}: ULPs", array.ulps) for array in call.differing if array.ulps),
    )
