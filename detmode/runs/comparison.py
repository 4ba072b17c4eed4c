"""What comparing two runs gave, and how it is shown: as text, JSON and a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from detmode.reports.page import (
    Fact,
    Group,
    Opened,
    Page,
    Table,
    TableRow,
    listed,
    plural,
    shortened,
)
from detmode.reports.shown import Shown
from detmode.reports.timeline import Timeline
from detmode.rules import default_rules
from detmode.runs.dump_diff import CallDifference
from detmode.runs.dump_file import CallName
from detmode.runs.trace_file import UNDEFINED, TraceCall
from detmode.table.rule import Allow
from detmode.table.rule_table import resolve

KINDS = {
    "outputs": "the same inputs gave other outputs: this call varies, or a fault is in it",
    "inputs": "the inputs came into the run different: other data, weights or order of data",
    "arguments": "it was called with other numbers: compare them, and where they come from",
    "generator": "its random generator was in another state: compare its seed, and what used it "
    "before",
    "seed": "the runs began with different seeds",
    "calls": "the runs do not make the same calls: a step more, an operator less",
    "replica": "this collective gives all ranks of its group the same, and these two other results",
    "drift": "it wrote over what both ranks had, with other bytes: as expected of a shard, and of "
    "what a rank knows of its own data, but not of weights that all ranks have",
}
"""The ways in which two runs can part, and what each means."""

_BY_ITSELF = ("outputs", "replica", "drift")
"""The kinds where the operator may be the reason, and the rule table has something to say."""

DIFFERENT = Group("different", "error", "both runs made the call, with other bytes")
ONLY_FIRST = Group("only first", "warning", "only the first run made the call")
ONLY_SECOND = Group("only second", "warning", "only the second run made the call")
SAME = Group("same", "none", "the call is the same to the byte in both runs")
GROUPS = (DIFFERENT, ONLY_FIRST, ONLY_SECOND, SAME)
"""What can become of a call, the most serious first."""

_COLUMNS = ("which", *(group.name for group in GROUPS), "overload", "site", "module")


@dataclass(frozen=True)
class Line:
    """The calls of one overload at one site and module, not all the same in both runs.

    Args:
        overload: as in :class:`TraceCall`, and so ``site`` and ``module``.
        counts: how many calls there are of each of :data:`GROUPS`.
    """

    overload: str
    site: str
    module: str | None
    counts: tuple[int, ...]

    def row(self) -> TableRow:
        """The line of a table."""
        group = next(group for group, count in zip(GROUPS, self.counts) if count)
        counted = [f"{count:,} {group.name}" for group, count in zip(GROUPS, self.counts) if count]
        return TableRow(
            cells=(group.name, *map(str, self.counts), self.overload, self.site, self.module or ""),
            group=group.name,
            rule=self.overload,
            message=f"{self.overload}: of its calls here, {', '.join(counted)}.",
            site=self.site,
            modules=(self.module,),
        )


@dataclass(frozen=True)
class Parting:
    """A call at which two runs differ.

    Args:
        kind: one of :data:`KINDS`.
        first: the call in the first run; ``None`` where it has none.
        second: the call in the second run.
        differing: which tensors differ: "input 0", "output 1", "mutated 0", "generator".
        generators: the generators that were in other states when the recordings began: "torch",
            "cuda:0", "python", "numpy"; none where they cannot be the reason.
    """

    kind: str
    first: TraceCall | None
    second: TraceCall | None
    differing: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()

    @property
    def call(self) -> TraceCall:
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
        drift: of two ranks, the first call that writes over what both have, with other bytes.
        same: how many calls are the same to the byte.
        different: how many are made by both and differ.
        only_first: how many only the first run made.
        only_second: how many only the second run made.
        incomplete: the runs that failed or were killed, by their paths.
        lines: the operators and sites whose calls are not all the same.
        timeline: the calls by module.
        ranks: of two recordings of one distributed run, and ``None`` for others. Calls of ranks on
            data of their own may differ; the results of collectives that give all ranks the same
            should not, nor the results of the same inputs.
        dumped: how the tensors differ of the calls that both runs have a dump of.
        to_dump: for each run, the calls to dump so that it is seen how the tensors differ.
        started: in what the runs were started differently, of arguments, PyTorch's version and its
            threads: the name, the first run's and the second's.
    """

    parting: Parting | None
    outputs: Parting | None
    drift: Parting | None
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

    @property
    def identical(self) -> bool:
        """Whether both runs made the same calls with the same bytes; of ranks, what they share."""
        return self.parting is None

    @property
    def verdict(self) -> str:
        """What was found."""
        if self.parting is not None:
            return f"the runs part at {self.parting.call.overload}: {KINDS[self.parting.kind]}"
        if self.ranks is not None:
            names = " and ".join(self.ranks)
            return f"ranks {names} have the same results of collectives, and of the same inputs"
        return "the runs are identical"

    def to_json(self) -> str:
        """The comparison as a JSON object."""
        return json.dumps(
            {
                "identical": self.identical,
                "parting": _as_data(self.parting),
                "outputs": _as_data(self.outputs),
                "drift": _as_data(self.drift),
                "same": self.same,
                "different": self.different,
                "only_first": self.only_first,
                "only_second": self.only_second,
                "incomplete": list(self.incomplete),
                "ranks": self.ranks and list(self.ranks),
                "dumped": [each.as_data() for each in self.dumped],
                "to_dump": [list(map(str, calls)) for calls in self.to_dump],
                "started": {name: list(both) for name, *both in self.started},
            },
            indent=2,
        )

    def __str__(self) -> str:
        lines = [
            f"{self.same} calls are the same, {self.different} differ, {self.only_first} are only "
            f"in the first run, {self.only_second} only in the second"
        ]
        lines += self._about_the_runs()
        if self.parting is None:
            lines.insert(0, self.verdict)
        for title, parting in self._opened():
            lines += ["", f"{title}:", "", _described(parting)]
        for each in self.dumped:
            lines += ["", str(each)]
        advice = self._how_to_dump()
        if advice is not None:
            lines += ["", advice]
        return "\n".join(lines)

    def _opened(self) -> Iterator[tuple[str, Parting]]:
        """What is shown of each call that is named, with a title."""
        if self.parting is not None:
            yield "The runs part here", self.parting
        if self.outputs is not None and self.outputs != self.parting:
            yield "The first call whose inputs agree and whose outputs differ", self.outputs
        if self.drift is not None and self.drift != self.parting:
            yield "The first call after which the ranks do not have the same", self.drift

    def _about_the_runs(self) -> Iterator[str]:
        for path in dict.fromkeys(self.incomplete):
            yield f"the program of {path} failed or was killed: compared up to there"
        for name, first, second in self.started:
            yield f"started with other {name}: {first}, and {second}"

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
        facts += [f"{line}." for line in self._about_the_runs()]
        opened = [_opened(title, parting) for title, parting in self._opened()]
        opened += map(_opened_dump, self.dumped)
        return Page(
            title="Two runs compared",
            verdict=f"{self.verdict[0].upper()}{self.verdict[1:]}.",
            severity="note" if self.identical else "error",
            groups=GROUPS,
            table=Table(_COLUMNS, tuple(line.row() for line in self.lines)),
            facts=(*facts, *filter(None, [self._how_to_dump()])),
            timeline=self.timeline,
            opened=tuple(opened),
        )


def _rule_for(call: TraceCall) -> str:
    # A backward gets what its forward has left for it, of which parts may be unwritten.
    reads_unwritten = UNDEFINED in call.inputs.digests and "backward" not in call.overload
    if reads_unwritten and not call.mutated.digests:
        return "it reads memory that nobody has written: fill what empty() gives before it is read"
    func = resolve(call.overload)
    rows = default_rules().get(func) if func is not None else ()
    actions = [row for row in rows if not isinstance(row.rule.action, Allow)]
    if not actions:
        return "no rule: detmode probe tells whether it varies by itself"
    return "; ".join(dict.fromkeys(f"{row.family}: {row.rule.because}" for row in actions))


def _described(parting: Parting) -> str:
    call = parting.call
    rows = [
        ("what", KINDS[parting.kind]),
        ("operator", call.overload),
        ("site", shortened(call.site)),
        ("module", call.module or "-"),
        ("number", " and ".join("-" if c is None else str(c.number) for c in _both(parting))),
        *((("differing", ", ".join(parting.differing)),) if parting.differing else ()),
        *(
            (f"{name} {n}", form)
            for name, side in (("input", call.inputs), ("output", call.outputs))
            for n, form in enumerate(side.forms)
        ),
    ]
    if parting.kind in _BY_ITSELF:
        rows.append(("rule", _rule_for(call)))
    if parting.generators:
        rows.append(("generators", _about_generators(parting)))
    return listed(rows)


def _about_generators(parting: Parting) -> str:
    names = ", ".join(parting.generators)
    return f"{names}: another state when recording began; detmode.seed_everything(seed) seeds all"


def _both(parting: Parting) -> tuple[TraceCall | None, TraceCall | None]:
    return parting.first, parting.second


def _opened(title: str, parting: Parting) -> Opened:
    sides = [{} if call is None else dict(_facts(call)) for call in _both(parting)]
    missing = ["no such call" if not side else "-" for side in sides]
    facts = (
        Fact(name, *(side.get(name, text) for side, text in zip(sides, missing)))
        for name in dict.fromkeys(name for side in sides for name in side)
    )
    details = []
    if parting.kind in _BY_ITSELF:
        details.append(f"The table on this operator: {_rule_for(parting.call)}.")
    if parting.generators:
        details.append(f"Generators: {_about_generators(parting)}.")
    return Opened(title, tuple(facts), tuple(details))


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


def _facts(call: TraceCall) -> Iterator[tuple[str, str]]:
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
        "generators": list(parting.generators),
        "forms": list(chain(call.inputs.forms, call.outputs.forms, call.mutated.forms)),
        "rule": _rule_for(call),
    }
