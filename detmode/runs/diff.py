"""Comparing the traces of two processes: where they diverge first, and how."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

from detmode.bits.effects import AROUND
from detmode.reports.progress import progress
from detmode.reports.timeline import TimelineBuilder
from detmode.runs.align import Effort, align
from detmode.runs.collectives import Collective
from detmode.runs.comparison import (
    DIFFERENT,
    GROUPS,
    ONLY_FIRST,
    ONLY_SECOND,
    SAME,
    Comparison,
    Divergence,
    Line,
)
from detmode.runs.compiled_graphs import GRAPH
from detmode.runs.dump_diff import compare_dumps, pairs
from detmode.runs.dump_file import dumps_of
from detmode.runs.started import (
    origins_of,
    other_groups,
    reseeded_generators,
    started_differently,
    two_ranks,
)
from detmode.runs.trace_file import TraceCall, unrecorded_in
from detmode.runs.trace_index import OWN_GENERATOR, SHARING, TraceIndex

_SEVEREST_FIRST = tuple(group.name for group in GROUPS)
_NOT_BY_TENSORS = ("seed", "generator", "arguments", "calls")
_SEEDED_BY_THE_PROGRAM = frozenset({"python", "numpy"})


class TakenPart(NamedTuple):
    """The part that a rank took in a collective in two runs.

    Args:
        collective: its identity.
        place: the position of the call among all aligned ones.
        same_inputs: whether both runs called it, with the same inputs.
        whole_inputs: false if the digest of an input is missing.
        whole_results: false if the digest of a result is missing.
    """

    collective: Collective
    place: int
    same_inputs: bool
    whole_inputs: bool
    whole_results: bool


class TraceDiff(NamedTuple):
    """The result of comparing the traces of two processes, and what joins it to other ranks'.

    Args:
        comparison: the result.
        place: the position of the divergence among all aligned calls; ``None`` without one.
        parts: for each collective that one of them called, by its key, the part in it.
    """

    comparison: Comparison
    place: int | None
    parts: dict[tuple[Any, ...], TakenPart]


class _Tally:
    """The counts of an alignment, by line and by module.

    Args:
        one: the first run.
        other: the second.
    """

    def __init__(self, one: TraceIndex, other: TraceIndex) -> None:
        self._one, self._other = one, other
        self.timeline = TimelineBuilder(max(len(one.kinds), len(other.kinds)), _SEVEREST_FIRST)
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
        self.timeline.add(self._place, line[2], group)
        self._lines[line][group] += 1
        return self._place

    def lines(self) -> tuple[Line, ...]:
        """Return the lines whose calls are not all the same, in the order of their first call."""
        return tuple(
            Line(*line, tuple(counts[name] for name in _SEVEREST_FIRST))
            for line, counts in self._lines.items()
            if counts.keys() != {SAME.name}
        )


def diff_traces(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> TraceDiff:
    """Compare the traces of two processes.

    Args:
        first: the folder of one trace.
        second: the folder of the other.

    Raises:
        TraceError: one of them cannot be read.
    """
    kinds: dict[Any, int] = {}
    one, other = TraceIndex(first, kinds), TraceIndex(second, kinds)
    dumps = dumps_of(one.reader.path), dumps_of(other.reader.path)
    dumped_numbers = {dump.number for dump in dumps[0]}
    aligned: dict[int, int] = {}
    # For each of a comparison's divergences, the first pair of calls.
    firsts: dict[str, tuple[int | None, int | None]] = {}
    # For each of those, the next graph: the line of a graph follows those of the calls in it.
    ends: dict[str, tuple[int, int]] = {}
    ranks = two_ranks(one.reader, other.reader)
    tally = _Tally(one, other)
    parts: dict[tuple[Any, ...], TakenPart] = {}
    # Of the divergence: its position among all aligned calls, and that in the first run.
    places: dict[str, tuple[int, int]] = {}
    anchors = (one.anchors, other.anchors)
    effort = Effort()
    pairs_of_calls = align((one.kinds, other.kinds), (one.whole, other.whole), anchors, effort)
    for place, (i, j) in enumerate(progress(pairs_of_calls, "comparing", "calls")):
        parts.update(_parts(one, other, i, j, place))
        if i is None or j is None:
            group = ONLY_SECOND if i is None else ONLY_FIRST
        else:
            group = SAME if one.whole[i] == other.whole[j] else DIFFERENT
            if i in dumped_numbers:
                aligned[i] = j
        drawn = tally.add(i, j, group.name)
        if i is None or j is None:
            firsts.setdefault("divergence", (i, j))
            places.setdefault("divergence", (place, drawn))
            continue
        if len(ends) < len(firsts) and one.is_graph(i):
            ends = {**dict.fromkeys(firsts, (i, j)), **ends}
        if group is DIFFERENT:
            same_inputs = one.inputs[i] == other.inputs[j]
            if ranks is not None and _is_collective(one, i, other, j):
                # What it gives a rank depends on the inputs of others.
                same_inputs = False
            # Ranks have their own data; the results of such collectives must be the same.
            if ranks is None or same_inputs or _shared_differ(one, i, other, j):
                firsts.setdefault("divergence", (i, j))
                places.setdefault("divergence", (place, drawn))
            if same_inputs and not _is_collective(one, i, other, j):
                firsts.setdefault("outputs", (i, j))
            elif ranks is not None and _drifts(one.updates.get(i), other.updates.get(j)):
                firsts.setdefault("drift", (i, j))
    different, only_first, only_second, same = (tally.totals[name] for name in _SEVEREST_FIRST)
    shown = [*firsts.values(), *ends.values()]
    calls = one.calls_at({i for i, _ in shown if i is not None})
    others = other.calls_at({j for _, j in shown if j is not None})
    # Ranks are seeded differently.
    reseeded = () if ranks else reseeded_generators(one.reader, other.reader)

    def divergence_of(name: str) -> Divergence | None:
        if name not in firsts:
            return None
        i, j = firsts[name]
        mine, theirs = (None if i is None else calls[i]), (None if j is None else others[j])
        graph = i if i is not None and one.is_graph(i) else None
        call = mine or theirs
        if name in ends and call and call.graph == calls[ends[name][0]].overload:
            graph, other_graph = ends[name]
            differ = i is None or j is None or one.inputs[i] != other.inputs[j]
            if name == "divergence" and differ and one.inputs[graph] != other.inputs[other_graph]:
                # They differed already when the graph was called.
                i, mine, theirs = graph, calls[graph], others[other_graph]
        # An earlier call drew the same numbers from it: the program had seeded it by then.
        suspects = tuple(
            name for name in reseeded if i is None or one.first_draws.get(name, i) >= i
        )
        found = _divergence(mine, theirs, suspects, ranks)
        number = found.call.number
        step = (one if found.first is not None else other).reader.step_of(number)
        found = replace(found, step=step, graph=None if graph is None else one.name_of(graph))
        if not ranks and found.kind in ("inputs", "arguments") and only_first + only_second:
            # An extra step shows first as different data.
            return replace(found, kind="calls")
        return found

    named = divergence_of("divergence"), divergence_of("outputs"), divergence_of("drift")
    dumped = list(pairs(*dumps, aligned))
    known = {(mine.number, theirs.number) for mine, theirs in dumped}
    # The calls whose tensors explain the divergence better than seeds do.
    explaining = (each for each in named[:2] if each and each.kind not in _NOT_BY_TENSORS)
    unseen = [
        (one.name_of(mine.number), other.name_of(theirs.number))
        for mine, theirs in dict.fromkeys((each.first, each.second) for each in explaining)
        if mine and theirs and (mine.number, theirs.number) not in known
        if not one.is_graph(mine.number)
    ]
    cut = [str(run.reader.path) for run in (one, other) if not run.reader.complete]
    at, point = places.get("divergence", (None, None))
    comparison = Comparison(
        *named,
        same,
        different,
        only_first,
        only_second,
        tuple(cut),
        tally.lines(),
        tally.timeline.timeline("calls, at their positions in the first run", point),
        ranks,
        tuple(compare_dumps(*pair) for pair in dumped),
        (tuple(mine for mine, _ in unseen), tuple(theirs for _, theirs in unseen)),
        # Two ranks of one run may have groups of their own.
        started_differently(one.reader, other.reader) + (() if ranks else other_groups(one, other)),
        str(one.reader.steps_recorded),
        origins_of(one.reader, other.reader),
        tuple(unrecorded_in(one.reader, other.reader)),
        effort.coarse_from,
        one.unsaid,
    )
    return TraceDiff(comparison, at, parts)


def _parts(
    one: TraceIndex, other: TraceIndex, i: int | None, j: int | None, place: int
) -> dict[tuple[Any, ...], TakenPart]:
    """Return the part that is taken in the collective that two aligned calls are."""
    mine = None if i is None else one.collectives.get(i)
    theirs = None if j is None else other.collectives.get(j)
    if mine == theirs is None:
        return {}
    known = [each for each in (mine, theirs) if each is not None]
    keys = {collective.key for collective, _, _ in known}
    # A call that only one run makes has no inputs in the other one.
    same = len(known) == 2 and len(keys) == 1
    if same and i is not None and j is not None:
        same = one.inputs[i] == other.inputs[j]
    whole = (all(inputs for _, inputs, _ in known), all(results for _, _, results in known))
    return {each[0].key: TakenPart(each[0], place, same, *whole) for each in known}


def _is_collective(one: TraceIndex, i: int, other: TraceIndex, j: int) -> bool:
    return i in one.collectives or j in other.collectives


def _shared_differ(one: TraceIndex, i: int, other: TraceIndex, j: int) -> bool:
    """Return whether a collective gave two ranks different results that they should share."""
    if one.shared.get(i) == other.shared.get(j):
        return False
    mine, theirs = one.collectives.get(i), other.collectives.get(j)
    # A trace of version 1 does not know the groups.
    return mine is None or theirs is None or mine[0].group.members == theirs[0].group.members


def _drifts(one: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    """Return whether a call makes tensors differ that were the same before."""
    return one is not None and other is not None and one[0] == other[0] and one[1] != other[1]


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
