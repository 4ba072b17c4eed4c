"""Comparing the traces of two processes: where they diverge first, and how."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from detmode.bits.effects import AROUND
from detmode.reports.progress import progress
from detmode.reports.timeline import Cells, bin_of, timeline_of_cells
from detmode.runs.align import align
from detmode.runs.collectives import Collective
from detmode.runs.comparison import Comparison
from detmode.runs.compiled_graphs import GRAPH
from detmode.runs.divergence import (
    DIFFERENT,
    GROUPS,
    ONLY_FIRST,
    ONLY_SECOND,
    SAME,
    Divergence,
    Line,
)
from detmode.runs.dump_diff import compare_dumps, pairs
from detmode.runs.dump_file import CallName, dumps_of
from detmode.runs.started import (
    origins_of,
    other_groups,
    reseeded_generators,
    started_differently,
    two_ranks,
)
from detmode.runs.step_range import as_text
from detmode.runs.trace_file import TraceCall, unrecorded_in
from detmode.runs.trace_index import OWN_GENERATOR, SHARING, TraceIndex

_SEVEREST_FIRST = tuple(group.name for group in GROUPS)
_NOT_BY_TENSORS = ("seed", "generator", "arguments", "calls")
_SEEDED_BY_THE_PROGRAM = frozenset({"python", "numpy"})


class _TakenPart(NamedTuple):
    """The part that a rank took in a collective in two runs.

    Args:
        collective: its identity.
        place: the number of aligned calls from the runs' divergence, or else their end, to the
            call; negative before it.
        same_inputs: whether both runs called it, with the same inputs.
        whole_inputs: false if the digest of an input is missing.
        whole_results: false if the digest of a result is missing.
    """

    collective: Collective
    place: int
    same_inputs: bool
    whole_inputs: bool
    whole_results: bool

    @property
    def gave_the_same(self) -> bool:
        """True if the rank gave the collective the same inputs in both runs."""
        return self.same_inputs and (self.whole_inputs or self.place <= 0)


Parts: TypeAlias = dict[tuple[Any, ...], _TakenPart]
"""For each collective that a rank called in one of two runs, by its key, the part in it."""


class _Tally:
    """The counts of an alignment, by line and by module."""

    def __init__(self, one: TraceIndex, other: TraceIndex) -> None:
        self._one, self._other = one, other
        self.length = max(len(one.kinds), len(other.kinds), 1)
        self.cells: Cells = Counter()
        self._lines: defaultdict[tuple[str, str, str | None], Counter[str]] = defaultdict(Counter)
        self._place = 0
        self.totals: Counter[str] = Counter()

    def add(self, i: int | None, j: int | None, group: str) -> int:
        """Count a call of both runs, or of one; return its position in the first run."""
        if i is not None:
            self._place = i
            line = self._one.lines[self._one.line_of[i]]
        else:
            assert j is not None
            line = self._other.lines[self._other.line_of[j]]
        self.totals[group] += 1
        self.cells[line[2], bin_of(self._place, self.length), group] += 1
        self._lines[line][group] += 1
        return self._place

    def counts(self) -> tuple[int, ...]:
        return tuple(self.totals[name] for name in _SEVEREST_FIRST)

    def lines(self) -> tuple[Line, ...]:
        """Return the lines whose calls are not all the same, in the order of their first call."""
        return tuple(
            Line(*line, tuple(counts[name] for name in _SEVEREST_FIRST))
            for line, counts in self._lines.items()
            if counts.keys() != {SAME.name}
        )


class _First(NamedTuple):
    """The first pair of aligned calls that differ in one way."""

    calls: tuple[int | None, int | None]
    place: int
    """The position among all aligned pairs."""
    point: int
    """The position in the first run."""


class _Diff:
    """Two traces, compared step by step."""

    def __init__(self, first: TraceIndex, second: TraceIndex) -> None:
        self._first, self._second = first, second
        self._readers = first.reader, second.reader
        self._ranks = two_ranks(*self._readers)
        self._dumps = dumps_of(first.reader.path), dumps_of(second.reader.path)
        self._dumped = {dump.number for dump in self._dumps[0]}
        self._aligned: dict[int, int] = {}
        # By the names of a comparison's divergences.
        self._firsts: dict[str, _First] = {}
        # For each of those, the next graph: the line of a graph follows those of the calls in it.
        self._graphs: dict[str, tuple[int, int]] = {}
        self._parts: Parts = {}
        self._tally = _Tally(first, second)
        self._coarse_from: list[int] = []

    def result(self) -> tuple[Comparison, Parts]:
        """Align the calls and compare the pairs."""
        self._align()
        numbers = [*(first.calls for first in self._firsts.values()), *self._graphs.values()]
        ours, theirs = ({pair[run] for pair in numbers} for run in (0, 1))
        self._calls = self._first.calls_at(ours), self._second.calls_at(theirs)
        divergence = self._firsts.get("divergence")
        begin = divergence.place if divergence else self._tally.totals.total()
        parts = {k: part._replace(place=part.place - begin) for k, part in self._parts.items()}
        return self._comparison(divergence.point if divergence else None), parts

    def _align(self) -> None:
        first, second = self._first, self._second
        kinds, whole = (first.kinds, second.kinds), (first.whole, second.whole)
        aligned = align(kinds, whole, (first.anchors, second.anchors), self._coarse_from.append)
        for place, (i, j) in enumerate(progress(aligned, "comparing", "calls")):
            self._parts.update(_parts(first, second, i, j, place))
            if i is None or j is None:
                point = self._tally.add(i, j, (ONLY_SECOND if i is None else ONLY_FIRST).name)
                self._firsts.setdefault("divergence", _First((i, j), place, point))
                continue
            if i in self._dumped:
                self._aligned[i] = j
            if len(self._graphs) < len(self._firsts) and first.is_graph(i):
                self._graphs = {**dict.fromkeys(self._firsts, (i, j)), **self._graphs}
            if first.whole[i] == second.whole[j]:
                self._tally.add(i, j, SAME.name)
            else:
                point = self._tally.add(i, j, DIFFERENT.name)
                for name in self._differences(i, j):
                    self._firsts.setdefault(name, _First((i, j), place, point))

    def _differences(self, i: int, j: int) -> Iterator[str]:
        """Yield the names of the divergences that two calls with different bytes may be."""
        first, second = self._first, self._second
        is_collective = i in first.collectives or j in second.collectives
        same_inputs = first.inputs[i] == second.inputs[j]
        # What a collective gives a rank depends on the inputs of others.
        by_itself = same_inputs and not is_collective
        # Ranks have their own data; the results of such collectives must be the same.
        if self._ranks is None or by_itself or _shared_differ(first, i, second, j):
            yield "divergence"
        if by_itself:
            yield "outputs"
        elif self._ranks is not None and _drifts(first.updates.get(i), second.updates.get(j)):
            yield "drift"

    def _comparison(self, point: int | None) -> Comparison:
        divergence, outputs, drift = map(self._divergence, ("divergence", "outputs", "drift"))
        dumped = list(pairs(*self._dumps, self._aligned))
        known = {(mine.number, theirs.number) for mine, theirs in dumped}
        different, only_first, only_second, same = self._tally.counts()
        # Two ranks of one run may have groups of their own.
        groups = () if self._ranks else other_groups(self._first, self._second)
        return Comparison(
            divergence,
            outputs,
            drift,
            same,
            different,
            only_first,
            only_second,
            incomplete=tuple(str(run.path) for run in self._readers if not run.complete),
            lines=self._tally.lines(),
            timeline=timeline_of_cells(
                self._tally.cells,
                self._tally.length,
                _SEVEREST_FIRST,
                "calls, at their positions in the first run",
                point,
            ),
            ranks=self._ranks,
            dumped=tuple(compare_dumps(*pair) for pair in dumped),
            to_dump=self._to_dump((divergence, outputs), known),
            started=started_differently(*self._readers) + groups,
            steps=as_text(self._first.reader.steps_recorded),
            origin=origins_of(*self._readers),
            unrecorded=tuple(unrecorded_in(*self._readers)),
            coarse_from=next(iter(self._coarse_from), None),
            unsaid=self._first.unsaid,
        )

    def _divergence(self, name: str) -> Divergence | None:
        if name not in self._firsts:
            return None
        (i, j), graph = self._with_its_graph(name)
        mine, theirs = self._calls[0].get(i), self._calls[1].get(j)
        divergence = _divergence(mine, theirs, self._suspects(i), self._ranks)
        run = self._first if mine is not None else self._second
        divergence = replace(
            divergence,
            step=run.reader.step_of(divergence.call.number),
            graph=None if graph is None else self._first.name_of(graph),
        )
        _, only_first, only_second, _ = self._tally.counts()
        if not self._ranks and divergence.kind in ("inputs", "arguments"):
            # An extra step shows first as different data.
            kind = "calls" if only_first + only_second else divergence.kind
            return replace(divergence, kind=kind)
        return divergence

    def _with_its_graph(self, name: str) -> tuple[tuple[int | None, int | None], int | None]:
        """Return the numbers of the calls to show for a divergence, and of the graph around them.

        They are those of the graph's own call if its inputs differed already.
        """
        first, second = self._first, self._second
        i, j = self._firsts[name].calls
        call = self._calls[0].get(i) or self._calls[1].get(j)
        around = self._graphs.get(name)
        if not (call and around) or call.graph != self._calls[0][around[0]].overload:
            return (i, j), i if i is not None and first.is_graph(i) else None
        differ = i is None or j is None or first.inputs[i] != second.inputs[j]
        if name == "divergence" and differ and first.inputs[around[0]] != second.inputs[around[1]]:
            return around, around[0]
        return (i, j), around[0]

    def _suspects(self, i: int | None) -> tuple[str, ...]:
        """Return the generators that may be the cause of a difference at a call of the first run.

        A generator is not from which an earlier call drew the same numbers: the program had seeded
        it by then. Ranks are seeded differently.
        """
        draws = self._first.first_draws
        names = () if self._ranks else reseeded_generators(*self._readers)
        return tuple(name for name in names if i is None or draws.get(name, i) >= i)

    def _to_dump(
        self, divergences: Iterable[Divergence | None], dumped: Container[tuple[int, int]]
    ) -> tuple[tuple[CallName, ...], tuple[CallName, ...]]:
        """Return for each run the calls to dump, whose tensors explain more than seeds do."""
        explaining = dict.fromkeys(
            (divergence.first, divergence.second)
            for divergence in divergences
            if divergence and divergence.kind not in _NOT_BY_TENSORS
        )
        unseen = [
            (self._first.name_of(mine.number), self._second.name_of(theirs.number))
            for mine, theirs in explaining
            if mine and theirs and (mine.number, theirs.number) not in dumped
            if not self._first.is_graph(mine.number)
        ]
        return tuple(mine for mine, _ in unseen), tuple(theirs for _, theirs in unseen)


def diff_traces(
    first: str | os.PathLike[str], second: str | os.PathLike[str]
) -> tuple[Comparison, Parts]:
    """Compare the traces of two processes; return the result, and what joins it to other ranks'.

    Args:
        first: the folder of one trace.
        second: the folder of the other.

    Raises:
        TraceError: one of them cannot be read.
    """
    kinds: dict[Any, int] = {}
    return _Diff(TraceIndex(first, kinds), TraceIndex(second, kinds)).result()


def _parts(
    first: TraceIndex, second: TraceIndex, i: int | None, j: int | None, place: int
) -> Parts:
    """Return the part that is taken in the collective that two aligned calls are."""
    mine = None if i is None else first.collectives.get(i)
    theirs = None if j is None else second.collectives.get(j)
    if mine == theirs is None:
        return {}
    known = [part for part in (mine, theirs) if part is not None]
    keys = {collective.key for collective, _, _ in known}
    # A call that only one run makes has no inputs in the other one.
    same = len(known) == 2 and len(keys) == 1
    if same and i is not None and j is not None:
        same = first.inputs[i] == second.inputs[j]
    whole = (all(inputs for _, inputs, _ in known), all(results for _, _, results in known))
    return {part[0].key: _TakenPart(part[0], place, same, *whole) for part in known}


def _shared_differ(first: TraceIndex, i: int, second: TraceIndex, j: int) -> bool:
    """Return whether a collective gave two ranks different results that they should share."""
    if first.shared.get(i) == second.shared.get(j):
        return False
    mine, theirs = first.collectives.get(i), second.collectives.get(j)
    return mine is None or theirs is None or mine[0].group.members == theirs[0].group.members


def _drifts(first: tuple[int, int] | None, second: tuple[int, int] | None) -> bool:
    """Return whether a call makes tensors differ that were the same before."""
    return (
        first is not None and second is not None and first[0] == second[0] and first[1] != second[1]
    )


def _divergence(
    first: TraceCall | None,
    second: TraceCall | None,
    reseeded: tuple[str, ...],
    ranks: tuple[str, str] | None,
) -> Divergence:
    if first is None or second is None:
        return Divergence("calls", first, second, generators=reseeded)
    differing = [
        name
        for (name, _, mine), (_, _, theirs) in zip(first.tensors(), second.tensors())
        if mine != theirs
    ]
    inputs = tuple(name for name in differing if name.startswith("input"))
    results = tuple(differing[len(inputs) :])
    if ranks is not None and first.overload in SHARING:
        return Divergence("replica", first, second, results)
    # Unless a process seeds them, Python's and NumPy's generators start in a different state.
    seeded = not _SEEDED_BY_THE_PROGRAM.issuperset(reseeded)
    if inputs and ranks is not None:
        return Divergence("drift", first, second, inputs + results)
    if inputs and first.gives_value and first.reads_uninitialized:
        return Divergence("uninitialized", first, second, inputs)
    if inputs and first.graph is not None:
        return Divergence("fused", first, second, inputs)
    if inputs:
        return Divergence("seed" if seeded else "inputs", first, second, inputs, reseeded)
    if first.generator != second.generator:
        if OWN_GENERATOR in first.arguments:
            return Divergence("generator", first, second, ("generator",))
        kind = "seed" if seeded else "generator"
        return Divergence(kind, first, second, ("generator",), reseeded)
    if first.arguments != second.arguments:
        both = (f"({first.arguments})", f"({second.arguments})")
        return Divergence("arguments", first, second, both, reseeded)
    if first.collective is not None:
        return Divergence("received", first, second, results)
    return Divergence(_kind_of_results(first), first, second, results)


def _kind_of_results(call: TraceCall) -> str:
    """Return how a call comes to give two results of the same inputs."""
    if call.reads_uninitialized:
        return "uninitialized"
    if call.overload.startswith(AROUND):
        return "inputs"
    return "graph" if call.overload.startswith(GRAPH) else "outputs"
