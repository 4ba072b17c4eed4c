"""A call at which two runs differ: in which way, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from detmode.reports.page import Group, Opened, TableRow, listed, shortened
from detmode.reports.written_as import written_as
from detmode.rules import default_rules
from detmode.runs.dump_file import CallName
from detmode.runs.trace_file import TraceCall
from detmode.sites.source_lines import source_of
from detmode.table.rule import Allow
from detmode.table.rule_table import Row, resolve

KINDS = {
    "outputs": "the same inputs gave different outputs: the call varies, or it is faulty",
    "inputs": "the inputs already differed when they entered the run: different data, weights or "
    "order of data",
    "graph": "the same inputs of a compiled graph gave different outputs: the code that the "
    "compiler generated varies, or the runs have different code",
    "fused": "code that the compiler generated, earlier in the same graph, gave it different "
    "inputs",
    "uninitialized": "it read memory that is uninitialized, and may hold anything",
    "arguments": "it was called with different numbers: compare them, and where they come from",
    "generator": "its random generator was in a different state: compare its seed, and what used "
    "it before",
    "seed": "the runs began with different seeds",
    "calls": "the runs do not make the same calls: an extra step, a missing operator",
    "replica": "this collective should give all ranks of its group the same result, and gave these "
    "two different ones",
    "received": "this rank gave the collective the same inputs and got a different result: another "
    "rank gave it different inputs, or it varies; compare the runs of all ranks",
    "collective": "all ranks gave the collective the same inputs, and its results differ: its "
    "order of additions varies, or it is faulty",
    "drift": "it overwrote what both ranks had with different bytes: expected of a shard and of "
    "data that belongs to one rank, but not of weights that all ranks share",
}
"""The ways in which two runs can diverge, and what each means."""

BY_ITSELF = ("outputs", "replica", "drift", "collective", "uninitialized")
"""The kinds where the operator may be the cause, so that the rule table is consulted."""

INITIALIZE = "write to what empty() returns before reading it"

EAGERLY = (
    "to see which operator, record both runs again without compiling: set TORCH_COMPILE_DISABLE=1 "
    "in the environment, or call torch.compiler.set_stance('force_eager')"
)

DIFFERENT = Group("different", "error", "both runs made the call, with different bytes")
ONLY_FIRST = Group("only first", "warning", "only the first run made the call")
ONLY_SECOND = Group("only second", "warning", "only the second run made the call")
SAME = Group("same", "none", "the call is bitwise identical in both runs")
GROUPS = (DIFFERENT, ONLY_FIRST, ONLY_SECOND, SAME)
"""The outcomes for a call, the most serious first."""

COLUMNS = ("which", *(group.name for group in GROUPS), "overload", "site", "module")
"""The columns of the table of lines."""


@dataclass(frozen=True)
class Line:
    """The calls of one overload at one site and module, not all the same in both runs.

    Args:
        overload: as in :class:`TraceCall`, and so ``site`` and ``module``.
        counts: the number of calls in each of :data:`GROUPS`.
    """

    overload: str
    site: str
    module: str | None
    counts: tuple[int, ...]

    def row(self, divergence: Divergence | None) -> TableRow:
        """The line of a table, marked if the runs diverge at one of its calls."""
        group = next(group for group, count in zip(GROUPS, self.counts) if count)
        counted = [f"{count:,} {group.name}" for group, count in zip(GROUPS, self.counts) if count]
        return TableRow(
            cells=(group.name, *map(str, self.counts), self.overload, self.site, self.module or ""),
            source=(source := source_of(self.site)),
            called=written_as(self.overload, source),
            group=group.name,
            rule=self.overload,
            message=f"{self.overload}: of its calls at this line, {', '.join(counted)}.",
            site=self.site,
            modules=(self.module,),
            is_point=divergence is not None and divergence.line == self.line,
        )

    @property
    def line(self) -> tuple[str, str, str | None]:
        """Return what no two lines of a comparison share: the overload, the site, the module."""
        return self.overload, self.site, self.module


@dataclass(frozen=True)
class Divergence:
    """A call at which two runs differ.

    Args:
        kind: one of :data:`KINDS`.
        first: the call in the first run; ``None`` if that run did not make it.
        second: the call in the second run.
        differing: the tensors that differ: "input 0", "output 1", "mutated 0", "generator".
        generators: the generators whose states differed when the recordings began: "torch",
            "cuda:0", "python", "numpy"; none if they cannot be the cause.
        graph: the compiled graph that it is, or in which it is made, by name and index.
        step: the step in which it is made, counted from 0; ``None`` if no step ended in the run.
    """

    kind: str
    first: TraceCall | None
    second: TraceCall | None
    differing: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()
    graph: CallName | None = None
    step: int | None = None

    @property
    def call(self) -> TraceCall:
        """The call, as one of the runs made it."""
        call = self.first or self.second
        assert call is not None
        return call

    @property
    def line(self) -> tuple[str, str, str | None]:
        """The call's overload, site and module."""
        return self.call.overload, self.call.site, self.call.module

    @property
    def meaning(self) -> str:
        """A sentence on what the kind means for this call."""
        if self.kind != "calls" or None not in (self.first, self.second):
            return KINDS[self.kind]
        run = "second" if self.first is None else "first"
        return f"only the {run} run makes this call: an extra step, a missing operator"

    @property
    def place(self) -> str:
        """The line of the call, and the name under which users call the operator."""
        called = written_as(self.call.overload, source_of(self.call.site)) or self.call.overload
        return f"{shortened(self.call.site)}, {called}"


def _rule_for(call: TraceCall) -> str:
    if call.reads_uninitialized:
        return f"it reads uninitialized memory: {INITIALIZE}"
    rows = rows_for(call.overload)
    if not rows:
        return "no rule: detmode probe shows whether it varies by itself"
    return "; ".join(dict.fromkeys(f"{row.family}: {row.rule.because}" for row in rows))


def rows_for(overload: str) -> list[Row]:
    """Return the rows that say why calls of an overload vary."""
    func = resolve(overload)
    rows = default_rules().get(func) if func is not None else ()
    return [row for row in rows if not isinstance(row.rule.action, Allow)]


def described(divergence: Divergence, width: int | None = None) -> str:
    """Return a divergence as text, a line for each property."""
    call = divergence.call
    source = source_of(call.site)
    called = written_as(call.overload, source)
    numbers = ("-" if c is None else str(c.number) for c in _both(divergence))
    arguments = _arguments(divergence) if divergence.kind == "arguments" else None
    rows = [
        ("what", divergence.meaning),
        ("line", "  ".join(filter(None, (shortened(call.site), source)))),
        ("called", called or None),
        ("operator", call.overload),
        ("module", call.module or "-"),
        ("graph", divergence.graph),
        ("collective", call.collective),
        ("step", divergence.step),
        ("number", " and ".join(numbers)),
        ("differing", ", ".join(divergence.differing) or None),
        *((name, form) for name, form, _ in call.tensors() if not name.startswith("mutated")),
        ("arguments", arguments),
        *_advice(divergence),
    ]
    return listed([(name, str(value)) for name, value in rows if value is not None], width)


def _advice(divergence: Divergence) -> Iterator[tuple[str, str]]:
    if divergence.kind in ("graph", "fused"):
        yield "next", EAGERLY
    if divergence.kind in BY_ITSELF:
        yield "rule", _rule_for(divergence.call)
    if divergence.generators:
        names = ", ".join(divergence.generators)
        yield (
            "generators",
            f"{names}: different states when recording began; detmode.seed_everything(seed) seeds "
            "all",
        )


def _arguments(divergence: Divergence) -> str:
    """Return the arguments that are no tensors, of both runs."""
    return " and ".join(call.arguments for call in _both(divergence) if call is not None)


def _both(divergence: Divergence) -> tuple[TraceCall | None, TraceCall | None]:
    return divergence.first, divergence.second


def as_opened(title: str, divergence: Divergence) -> Opened:
    """Return a divergence with both of its sides, for a page."""
    first, second = ({} if call is None else _facts(call) for call in _both(divergence))
    absent, missing = ("-" if side else "no such call" for side in (first, second))
    facts = (
        (name, first.get(name, absent), second.get(name, missing)) for name in {**first, **second}
    )
    heads = {"rule": "Rule for this operator", "next": "Next", "generators": "Generators"}
    details = (f"{heads[name]}: {text}." for name, text in _advice(divergence))
    return Opened(title, tuple(facts), tuple(details))


def _facts(call: TraceCall) -> dict[str, str]:
    source = source_of(call.site)
    facts = {
        "line": call.site,
        "source": source or None,
        "called": written_as(call.overload, source) or None,
        "operator": call.overload,
        "module": call.module or "-",
        "call number": call.number,
        "collective": call.collective,
        "arguments": call.arguments or "-",
        "generator": call.generator and call.generator.hex(),
        **{name: f"{form}, digest {digest.hex()}" for name, form, digest in call.tensors()},
    }
    return {name: str(fact) for name, fact in facts.items() if fact is not None}


def as_data(divergence: Divergence | None) -> dict[str, Any] | None:
    """Return a divergence as JSON has it."""
    if divergence is None:
        return None
    call = divergence.call
    return {
        "kind": divergence.kind,
        "overload": call.overload,
        "site": call.site,
        "module": call.module,
        "first": divergence.first and divergence.first.number,
        "second": divergence.second and divergence.second.number,
        "differing": list(divergence.differing),
        "step": divergence.step,
        "generators": list(divergence.generators),
        "graph": divergence.graph and str(divergence.graph),
        "collective": call.collective and str(call.collective),
        "forms": [form for _, form, _ in call.tensors()],
        "rule": _rule_for(call),
    }
