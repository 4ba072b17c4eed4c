"""Comparing two recorded runs: where they part first, and in what way."""

from __future__ import annotations

import json
import os
import shlex
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tabulate import tabulate

from detmode.reports.page import Fact, Group, Opened, Page, Row, Shown, Table, plural
from detmode.reports.progress import progress
from detmode.reports.timeline import Timeline, TimelineBuilder
from detmode.rule import Allow
from detmode.rules import default_rules
from detmode.runs.align import align
from detmode.runs.dump_diff import CallDifference, compare_dumps, pairs
from detmode.runs.dump_file import CallName, dumps_of
from detmode.runs.trace_file import DIGEST_BYTES, UNDEFINED, CallRecord, Reader, Tensors, split
from detmode.table import resolve

KINDS = {
    "outputs": "the same inputs gave other outputs: this call varies, or a fault is in it",
    "inputs": "the inputs came into the run different: other data, weights or order of data",
    "arguments": "it was called with other numbers: compare them, and where they come from",
    "generator": "its random generator was in another state: compare what used it before",
    "seed": "the runs began with different seeds",
    "calls": "the runs do not make the same calls: a step more, an operator less",
}
"""The ways in which two runs can part, and what each means."""

DIFFERENT = Group("different", "error", "both runs made the call, with other bytes")
ONLY_FIRST = Group("only first", "warning", "only the first run made the call")
ONLY_SECOND = Group("only second", "warning", "only the second run made the call")
SAME = Group("same", "none", "the call is the same to the byte in both runs")
GROUPS = (DIFFERENT, ONLY_FIRST, ONLY_SECOND, SAME)
"""What can become of a call, the most serious first."""

_SEVEREST_FIRST = tuple(group.name for group in GROUPS)
_COLUMNS = ("which", *_SEVEREST_FIRST, "overload", "site", "module")


@dataclass(frozen=True)
class Line:
    """The calls of one overload at one site and module, not all the same in both runs.

    Args:
        overload: as in :class:`CallRecord`, and so ``site`` and ``module``.
        counts: how many calls there are of each of :data:`GROUPS`.
    """

    overload: str
    site: str
    module: str | None
    counts: tuple[int, ...]

    def row(self) -> Row:
        """The line of a table."""
        group = next(group for group, count in zip(GROUPS, self.counts) if count)
        counted = [f"{count:,} {group.name}" for group, count in zip(GROUPS, self.counts) if count]
        return Row(
            cells=(group.name, *map(str, self.counts), self.overload, self.site, self.module or ""),
            group=group.name,
            rule=self.overload,
            message=f"{self.overload}: of its calls here, {', '.join(counted)}.",
            site=self.site,
            module=self.module,
        )


@dataclass(frozen=True)
class Parting:
    """A call at which two runs differ.

    Args:
        kind: one of :data:`KINDS`.
        first: the call in the first run; ``None`` where it has none.
        second: the call in the second run.
        differing: which tensors differ: "input 0", "output 1", "mutated 0", "generator".
    """

    kind: str
    first: CallRecord | None
    second: CallRecord | None
    differing: tuple[str, ...] = ()

    @property
    def call(self) -> CallRecord:
        """The call, as one of the runs made it."""
        found = self.first or self.second
        assert found is not None
        return found


@dataclass(frozen=True)
class Comparison(Shown):
    """What comparing two runs gave.

    Args:
        parting: where they differ first; ``None`` where they are the same.
        outputs: the first call whose inputs agree and whose outputs differ, where there is one.
        same: how many calls are the same to the byte.
        different: how many are made by both and differ.
        only_first: how many only the first run made.
        only_second: how many only the second run made.
        incomplete: the runs that were cut off, by their paths.
        lines: the operators and sites whose calls are not all the same.
        timeline: the calls by module.
        dumped: how the tensors differ of the calls that both runs have a dump of.
        to_dump: for each run, the calls to dump so that it is seen how the tensors differ.
    """

    parting: Parting | None
    outputs: Parting | None
    same: int
    different: int
    only_first: int
    only_second: int
    incomplete: tuple[str, ...]
    lines: tuple[Line, ...] = ()
    timeline: Timeline | None = None
    dumped: tuple[CallDifference, ...] = ()
    to_dump: tuple[tuple[CallName, ...], tuple[CallName, ...]] = ((), ())

    @property
    def identical(self) -> bool:
        """Whether both runs made the same calls with the same bytes."""
        return self.parting is None

    def to_json(self) -> str:
        """The comparison as a JSON object."""
        return json.dumps(
            {
                "identical": self.identical,
                "parting": _as_data(self.parting),
                "outputs": _as_data(self.outputs),
                "same": self.same,
                "different": self.different,
                "only_first": self.only_first,
                "only_second": self.only_second,
                "incomplete": list(self.incomplete),
                "dumped": [each.as_data() for each in self.dumped],
                "to_dump": [list(map(str, calls)) for calls in self.to_dump],
            },
            indent=2,
        )

    def __str__(self) -> str:
        lines = [
            f"{self.same} calls are the same, {self.different} differ, {self.only_first} are only "
            f"in the first run, {self.only_second} only in the second"
        ]
        lines += [f"{path} was cut off: compared up to there" for path in self.incomplete]
        if self.parting is None:
            return "\n".join(["the runs are identical", *lines])
        lines += ["", "The runs part here:", "", _described(self.parting)]
        if self.outputs is not None and self.outputs != self.parting:
            lines += ["", "The first call whose inputs agree and whose outputs differ:", ""]
            lines.append(_described(self.outputs))
        for each in self.dumped:
            lines += ["", str(each)]
        advice = self._how_to_dump()
        if advice is not None:
            lines += ["", advice]
        return "\n".join(lines)

    def _how_to_dump(self) -> str | None:
        options = [" ".join(f"--dump {shlex.quote(str(c))}" for c in each) for each in self.to_dump]
        if not all(options):
            return None
        how = (
            f"both runs again with {options[0]}"
            if options[0] == options[1]
            else f"the first run again with {options[0]}, the second with {options[1]}"
        )
        return f"to see how the tensors differ, record {how}"

    def page(self) -> Page:
        """What is shown: the parting call with both sides, and the lines that differ."""
        facts = [
            f"{plural(self.same, 'call')} the same, {self.different:,} different, "
            f"{self.only_first:,} only in the first run, {self.only_second:,} only in the second."
        ]
        facts += [f"{path} was cut off: compared up to there." for path in self.incomplete]
        opened = []
        if self.parting is not None:
            opened.append(_opened(f"The runs part at {self.parting.call.overload}", self.parting))
        if self.outputs is not None and self.outputs != self.parting:
            opened.append(
                _opened("The first call whose inputs agree and whose outputs differ", self.outputs)
            )
        opened += map(_opened_dump, self.dumped)
        return Page(
            title="Two runs compared",
            verdict="The runs are identical."
            if self.parting is None
            else f"The runs part at {self.parting.call.overload}: {KINDS[self.parting.kind]}.",
            severity="note" if self.identical else "error",
            groups=GROUPS,
            table=Table(_COLUMNS, tuple(line.row() for line in self.lines)),
            facts=(*facts, *filter(None, [self._how_to_dump()])),
            timeline=self.timeline,
            opened=tuple(opened),
        )


class _Tally:
    """What an alignment gives, counted by line and gathered by module.

    Args:
        one: the first run.
        other: the second.
    """

    def __init__(self, one: _Run, other: _Run) -> None:
        self._one, self._other = one, other
        self._builder = TimelineBuilder(max(len(one.kinds), len(other.kinds)), _SEVEREST_FIRST)
        self._lines: dict[tuple[str, str, str | None], dict[str, int]] = {}
        self._place = 0
        self.totals = dict.fromkeys(_SEVEREST_FIRST, 0)

    def add(self, i: int | None, j: int | None, group: str) -> None:
        """Count a call of both runs, or of one."""
        if i is not None:
            self._place = i
            line = self._one.lines[self._one.line_of[i]]
        else:
            assert j is not None
            line = self._other.lines[self._other.line_of[j]]
        self.totals[group] += 1
        self._builder.add(self._place, line[2], group)
        counts = self._lines.get(line)
        if counts is None:
            counts = self._lines[line] = dict.fromkeys(_SEVEREST_FIRST, 0)
        counts[group] += 1

    def lines(self) -> tuple[Line, ...]:
        """The lines whose calls are not all the same, in the order in which they are called."""
        return tuple(
            Line(overload, site, module, tuple(counts[group.name] for group in GROUPS))
            for (overload, site, module), counts in self._lines.items()
            if any(counts[group.name] for group in GROUPS if group is not SAME)
        )

    def timeline(self) -> Timeline:
        """All calls."""
        return self._builder.timeline("calls, at their places in the first run")


class _Run:
    """A trace, with numbers for each call: its kind, its inputs, all of it, and as an anchor.

    What comes from the run itself alone (masks of dropout, counters of steps) goes on alike when a
    step is passed over; such calls are no anchors, and have 0.
    """

    def __init__(self, path: str | os.PathLike[str], kinds: dict[Any, int]) -> None:
        self.reader = Reader(path)
        self.kinds, self.inputs = array("q"), array("q")
        self.whole, self.anchors = array("q"), array("q")
        # Of each call the position of its line: overload, site and module.
        self.line_of = array("q")
        positions: dict[tuple[str, str, str | None], int] = {}
        made_here = {UNDEFINED}
        known: dict[int, tuple[int, int, int, int]] = {}
        for shape, arguments, digests in progress(self.reader.scan(), f"reading {path}", "calls"):
            found = known.get(id(shape))
            if found is None:
                # Without the site: a line that moved between two runs is the same call.
                kind = kinds.setdefault((shape.overload, shape.sides), len(kinds))
                n_inputs, n_outputs, n_mutated = (len(side) for side in shape.sides)
                ends = (n_inputs, n_inputs + n_outputs + n_mutated)
                line = (shape.overload, shape.site, shape.module)
                position = positions.setdefault(line, len(positions))
                found = (kind, ends[0] * DIGEST_BYTES, ends[1] * DIGEST_BYTES, position)
                known[id(shape)] = found
            kind, inputs_end, end, position = found
            inputs = hash((kind, arguments, digests[:inputs_end], digests[end:]))
            whole = hash((inputs, digests[inputs_end:end]))
            from_outside = not made_here.issuperset(split(digests[:inputs_end]))
            if not from_outside:
                made_here.update(split(digests[inputs_end:end]))
            self.kinds.append(kind)
            self.inputs.append(inputs)
            self.whole.append(whole)
            self.anchors.append(whole if from_outside else 0)
            self.line_of.append(position)
        self.lines = list(positions)

    def name_of(self, number: int) -> CallName:
        """A call by its overload, and which of its calls it is."""
        overload = self.lines[self.line_of[number]][0]
        alike = {place for place, line in enumerate(self.lines) if line[0] == overload}
        return CallName(overload, sum(place in alike for place in self.line_of[:number]))

    def calls_at(self, numbers: set[int]) -> dict[int, CallRecord]:
        """Some of the calls, read again."""
        found: dict[int, CallRecord] = {}
        if numbers:
            for call in self.reader.calls(numbers):
                found[call.number] = call
                if len(found) == len(numbers):
                    break
        return found


def diff(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    """Compare two runs that :func:`detmode.record` wrote.

    Args:
        first: the folder of one run.
        second: that of the other.

    Raises:
        TraceError: one of them cannot be read.
    """
    kinds: dict[Any, int] = {}
    one, other = _Run(first, kinds), _Run(second, kinds)
    dumps = dumps_of(one.reader.path), dumps_of(other.reader.path)
    dumped_numbers = {dump.number for dump in dumps[0]}
    aligned: dict[int, int] = {}
    parting: tuple[int | None, int | None] | None = None
    outputs: tuple[int, int] | None = None
    tally = _Tally(one, other)
    for i, j in progress(_aligned(one, other), "comparing", "calls"):
        if i is None or j is None:
            group = ONLY_SECOND if i is None else ONLY_FIRST
        else:
            group = SAME if one.whole[i] == other.whole[j] else DIFFERENT
            if i in dumped_numbers:
                aligned[i] = j
        tally.add(i, j, group.name)
        if group is SAME:
            continue
        if parting is None:
            parting = (i, j)
        if i is None or j is None or outputs is not None:
            continue
        if one.inputs[i] == other.inputs[j]:
            outputs = (i, j)
    different, only_first, only_second, same = (tally.totals[name] for name in _SEVEREST_FIRST)
    wanted = [pair for pair in (parting, outputs) if pair is not None]
    calls = one.calls_at({i for i, _ in wanted if i is not None})
    others = other.calls_at({j for _, j in wanted if j is not None})
    seeds = one.reader.about.get("generators"), other.reader.about.get("generators")

    def parted(pair: tuple[int | None, int | None] | None) -> Parting | None:
        if pair is None:
            return None
        i, j = pair
        found = _parting(
            None if i is None else calls[i], None if j is None else others[j], seeds[0] == seeds[1]
        )
        if found.kind in ("inputs", "arguments") and only_first + only_second:
            # A step more is a step on other data first.
            return replace(found, kind="calls")
        return found

    dumped = list(pairs(*dumps, aligned))
    known = {(mine.number, theirs.number) for mine, theirs in dumped}
    unseen = [
        (one.name_of(i), other.name_of(j))
        for i, j in dict.fromkeys(wanted)
        if i is not None and j is not None and (i, j) not in known
    ]
    cut = [str(run.reader.path) for run in (one, other) if not run.reader.complete]
    return Comparison(
        parted(parting),
        parted(outputs),
        same,
        different,
        only_first,
        only_second,
        tuple(cut),
        tally.lines(),
        tally.timeline(),
        tuple(compare_dumps(*pair) for pair in dumped),
        (tuple(mine for mine, _ in unseen), tuple(theirs for _, theirs in unseen)),
    )


def _aligned(one: _Run, other: _Run) -> Iterator[tuple[int | None, int | None]]:
    return align((one.kinds, other.kinds), (one.whole, other.whole), (one.anchors, other.anchors))


def _parting(first: CallRecord | None, second: CallRecord | None, same_seed: bool) -> Parting:
    if first is None or second is None:
        return Parting("calls", first, second)
    inputs = _differing("input", first.inputs, second.inputs)
    if inputs:
        return Parting("inputs" if same_seed else "seed", first, second, inputs)
    if first.generator != second.generator:
        return Parting("generator" if same_seed else "seed", first, second, ("generator",))
    if first.arguments != second.arguments:
        return Parting(
            "arguments", first, second, (f"({first.arguments})", f"({second.arguments})")
        )
    outputs = _differing("output", first.outputs, second.outputs)
    mutated = _differing("mutated", first.mutated, second.mutated)
    return Parting("outputs", first, second, outputs + mutated)


def _differing(name: str, one: Tensors, other: Tensors) -> tuple[str, ...]:
    pairs = zip(one.digests, other.digests)
    return tuple(f"{name} {position}" for position, (a, b) in enumerate(pairs) if a != b)


def _rule_for(call: CallRecord) -> str:
    if UNDEFINED in call.inputs.digests and not call.mutated.digests:
        return "it reads memory that nobody has written: fill what empty() gives before it is read"
    func = resolve(call.overload)
    rows = default_rules().get(func) if func is not None else ()
    actions = [row for row in rows if not isinstance(row.rule.action, Allow)]
    if not actions:
        return "no rule: detmode probe tells whether it varies by itself"
    return "; ".join(dict.fromkeys(f"{row.room}: {row.rule.because}" for row in actions))


def _described(parting: Parting) -> str:
    call = parting.call
    rows = [
        ("what", KINDS[parting.kind]),
        ("operator", call.overload),
        ("site", call.site),
        ("module", call.module or "-"),
        ("number", " and ".join("-" if c is None else str(c.number) for c in _both(parting))),
        ("differing", ", ".join(parting.differing) or "-"),
        *(
            (f"{name} {n}", form)
            for name, side in (("input", call.inputs), ("output", call.outputs))
            for n, form in enumerate(side.forms)
        ),
        ("rule", _rule_for(call)),
    ]
    return tabulate(rows, tablefmt="plain")


def _both(parting: Parting) -> tuple[CallRecord | None, CallRecord | None]:
    return parting.first, parting.second


def _opened(title: str, parting: Parting) -> Opened:
    sides = [{} if call is None else dict(_facts(call)) for call in _both(parting)]
    missing = ["no such call" if not side else "-" for side in sides]
    facts = (
        Fact(name, *(side.get(name, text) for side, text in zip(sides, missing)))
        for name in dict.fromkeys(name for side in sides for name in side)
    )
    return Opened(title, tuple(facts), (f"The table on this operator: {_rule_for(parting.call)}.",))


def _opened_dump(call: CallDifference) -> Opened:
    details = (
        f"{each.name}: {', '.join(' '.join(fact) for fact in list(each.facts())[1:])}"
        for each in call.differing
    )
    return Opened(
        call.title,
        tuple(Fact(each.name, *each.forms) for each in call.differing),
        (*details, *call.summary()),
        tuple((f"{each.name}: ULPs", each.ulps) for each in call.differing if each.ulps),
    )


def _facts(call: CallRecord) -> Iterator[tuple[str, str]]:
    yield "operator", call.overload
    yield "site", call.site
    yield "module", call.module or "-"
    yield "call number", str(call.number)
    yield "arguments", call.arguments or "-"
    if call.generator is not None:
        yield "generator", call.generator.hex()
    sides = (("input", call.inputs), ("output", call.outputs), ("mutated", call.mutated))
    for name, side in sides:
        for position, (form, digest) in enumerate(zip(side.forms, side.digests)):
            yield f"{name} {position}", f"{form}, digest {digest.hex()}"


def _as_data(parting: Parting | None) -> dict[str, Any] | None:
    if parting is None:
        return None
    call = parting.call
    return {
        "kind": parting.kind,
        "overload": call.overload,
        "site": call.site,
        "module": call.module,
        "first": None if parting.first is None else parting.first.number,
        "second": None if parting.second is None else parting.second.number,
        "differing": list(parting.differing),
        "forms": list(chain(call.inputs.forms, call.outputs.forms, call.mutated.forms)),
        "rule": _rule_for(call),
    }
