"""Comparing two recorded runs: where they diverge first, and how."""

from __future__ import annotations

import os
import shlex
from array import array
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import chain
from typing import Any

from detmode.reports.progress import progress
from detmode.reports.timeline import TimelineBuilder
from detmode.runs.align import align
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
from detmode.runs.dump_diff import compare_dumps, pairs
from detmode.runs.dump_file import CallName, dumps_of
from detmode.runs.graphs import GRAPH
from detmode.runs.trace_file import (
    DIGEST_BYTES,
    UNDEFINED,
    Reader,
    TraceCall,
    TraceError,
    split,
)

_SEVEREST_FIRST = tuple(group.name for group in GROUPS)
_SHARING = frozenset(
    (
        *("c10d::allreduce_.default", "c10d::allreduce_coalesced_.default"),
        *("c10d::broadcast_.default", "c10d::allgather_.default", "c10d::_allgather_base_.default"),
        *("c10d::allgather_coalesced_.default", "c10d::allgather_into_tensor_coalesced_.default"),
        *("_c10d_functional::all_reduce.default", "_c10d_functional::all_reduce_.default"),
        *("_c10d_functional::broadcast.default", "_c10d_functional::broadcast_.default"),
        "_c10d_functional::all_reduce_coalesced.default",
        "_c10d_functional::all_reduce_coalesced_.default",
        "_c10d_functional::all_gather_into_tensor.default",
        "_c10d_functional::all_gather_into_tensor_out.default",
        "_c10d_functional::all_gather_into_tensor_coalesced.default",
    )
)
"""Collectives that give all ranks of their group the same result."""
_NOT_BY_TENSORS = ("seed", "generator", "arguments", "calls")
_SEEDED_BY_THE_PROGRAM = frozenset({"python", "numpy"})
_MOST_NAMED = 1 << 26
"""Characters of all lines of a run, since reports contain them."""
_OWN_GENERATOR = "generator=Generator"
"""Marks, in the arguments, a call that does not draw from the global generator."""


class _Tally:
    """The counts of an alignment, by line and by module.

    Args:
        one: the first run.
        other: the second.
    """

    def __init__(self, one: _Run, other: _Run) -> None:
        self._one, self._other = one, other
        self.timeline = TimelineBuilder(max(len(one.kinds), len(other.kinds)), _SEVEREST_FIRST)
        self._lines: defaultdict[tuple[str, str, str | None], Counter[str]] = defaultdict(Counter)
        self._place = 0
        self.totals: Counter[str] = Counter()

    def add(self, i: int | None, j: int | None, group: str) -> None:
        """Count a call of both runs, or of one."""
        if i is not None:
            self._place = i
            line = self._one.lines[self._one.line_of[i]]
        else:
            assert j is not None
            line = self._other.lines[self._other.line_of[j]]
        self.totals[group] += 1
        self.timeline.add(self._place, line[2], group)
        self._lines[line][group] += 1

    def lines(self) -> tuple[Line, ...]:
        """Return the lines whose calls are not all the same, in the order of their first call."""
        return tuple(
            Line(*line, tuple(counts[name] for name in _SEVEREST_FIRST))
            for line, counts in self._lines.items()
            if counts.keys() != {SAME.name}
        )


class _Run:
    """A trace, with numbers for each call: its kind, its inputs, the whole call, and its anchor.

    The anchor is 0 for calls whose inputs all come from the run itself (masks of dropout, counters
    of steps). They continue unchanged when a step is skipped, so they cannot anchor an alignment.
    """

    def __init__(self, path: str | os.PathLike[str], kinds: dict[Any, int]) -> None:
        self.reader = Reader(path)
        self.kinds, self.inputs = array("q"), array("q")
        self.whole, self.anchors = array("q"), array("q")
        # For each call, the position of its line (overload, site and module).
        self.line_of = array("q")
        # For each global generator, the first call that drew from it.
        self.first_draws: dict[str, int] = {}
        # The results of the collectives that give all ranks the same result.
        self.shared: dict[int, int] = {}
        # For a rank's in-place calls, the bytes before and after.
        self.updates: dict[int, tuple[int, int]] = {}
        is_rank = self.reader.about.get("rank") is not None
        positions: dict[tuple[str, str, str | None], int] = {}
        named = 0
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
                position = positions.get(line, len(positions))
                if position == len(positions):
                    positions[line] = position
                    named += sum(map(len, filter(None, line)))
                    if named > _MOST_NAMED:
                        raise TraceError(
                            f"{self.reader.path} has more than {_MOST_NAMED >> 20} MiB of "
                            "operator, site and module names; is it a trace?"
                        )
                found = (kind, ends[0] * DIGEST_BYTES, ends[1] * DIGEST_BYTES, position)
                known[id(shape)] = found
            kind, inputs_end, end, position = found
            inputs = hash((kind, arguments, digests[:inputs_end], digests[end:]))
            whole = hash((inputs, digests[inputs_end:end]))
            from_outside = not made_here.issuperset(split(digests[:inputs_end]))
            if not from_outside:
                made_here.update(split(digests[inputs_end:end]))
            if shape.is_random and _OWN_GENERATOR not in arguments:
                form = next(chain.from_iterable(shape.sides), "cpu")
                device = form.rpartition(" ")[2]
                name = "torch" if device == "cpu" else device
                self.first_draws.setdefault(name, len(self.kinds))
            if shape.overload in _SHARING:
                self.shared[len(self.kinds)] = hash(digests[inputs_end:end])
            elif is_rank and shape.in_place and not shape.overload.startswith(GRAPH):
                n = len(shape.sides[2]) * DIGEST_BYTES
                if UNDEFINED not in split(digests[:n]):
                    self.updates[len(self.kinds)] = hash(digests[:n]), hash(digests[end - n : end])
            self.kinds.append(kind)
            self.inputs.append(inputs)
            self.whole.append(whole)
            self.anchors.append(whole if from_outside else 0)
            self.line_of.append(position)
        self.lines = list(positions)

    def is_graph(self, number: int) -> bool:
        """Return whether a call is that of a compiled graph."""
        return self.lines[self.line_of[number]][0].startswith(GRAPH)

    def name_of(self, number: int) -> CallName:
        """Return the name of a call: its overload, and its index among that overload's calls."""
        overload = self.lines[self.line_of[number]][0]
        alike = {place for place, line in enumerate(self.lines) if line[0] == overload}
        return CallName(overload, sum(place in alike for place in self.line_of[:number]))

    def calls_at(self, numbers: set[int]) -> dict[int, TraceCall]:
        """Read some of the calls again."""
        found: dict[int, TraceCall] = {}
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
        second: the folder of the other.

    Raises:
        TraceError: one of them cannot be read.
    """
    kinds: dict[Any, int] = {}
    one, other = _Run(first, kinds), _Run(second, kinds)
    dumps = dumps_of(one.reader.path), dumps_of(other.reader.path)
    dumped_numbers = {dump.number for dump in dumps[0]}
    aligned: dict[int, int] = {}
    # For each of a comparison's divergences, the first pair of calls.
    firsts: dict[str, tuple[int | None, int | None]] = {}
    # For each of those, the next graph: the line of a graph follows those of the calls in it.
    ends: dict[str, tuple[int, int]] = {}
    ranks = _ranks(one.reader, other.reader)
    tally = _Tally(one, other)
    anchors = (one.anchors, other.anchors)
    pairs_of_calls = align((one.kinds, other.kinds), (one.whole, other.whole), anchors)
    for i, j in progress(pairs_of_calls, "comparing", "calls"):
        if i is None or j is None:
            group = ONLY_SECOND if i is None else ONLY_FIRST
        else:
            group = SAME if one.whole[i] == other.whole[j] else DIFFERENT
            if i in dumped_numbers:
                aligned[i] = j
        tally.add(i, j, group.name)
        if i is None or j is None:
            firsts.setdefault("divergence", (i, j))
            continue
        if len(ends) < len(firsts) and one.is_graph(i):
            ends = {**dict.fromkeys(firsts, (i, j)), **ends}
        if group is DIFFERENT:
            same_inputs = one.inputs[i] == other.inputs[j]
            # Ranks have their own data; the results of such collectives must be the same.
            if ranks is None or same_inputs or one.shared.get(i) != other.shared.get(j):
                firsts.setdefault("divergence", (i, j))
            if same_inputs:
                firsts.setdefault("outputs", (i, j))
            elif ranks is not None and _drifts(one.updates.get(i), other.updates.get(j)):
                firsts.setdefault("drift", (i, j))
    different, only_first, only_second, same = (tally.totals[name] for name in _SEVEREST_FIRST)
    shown = [*firsts.values(), *ends.values()]
    calls = one.calls_at({i for i, _ in shown if i is not None})
    others = other.calls_at({j for _, j in shown if j is not None})
    # Ranks are seeded differently.
    reseeded = () if ranks else _reseeded(one.reader, other.reader)

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
        if graph is not None:
            found = replace(found, graph=one.name_of(graph))
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
    return Comparison(
        *named,
        same,
        different,
        only_first,
        only_second,
        tuple(cut),
        tally.lines(),
        tally.timeline.timeline("calls, at their positions in the first run"),
        ranks,
        tuple(compare_dumps(*pair) for pair in dumped),
        (tuple(mine for mine, _ in unseen), tuple(theirs for _, theirs in unseen)),
        _started(one.reader, other.reader),
    )


def _reseeded(one: Reader, other: Reader) -> tuple[str, ...]:
    """Return the generators whose states differed when the recordings began."""
    first, second = (run.about.get("generators") for run in (one, other))
    if not isinstance(first, dict) or not isinstance(second, dict):
        return ()
    return tuple(name for name in sorted(first) if name in second and first[name] != second[name])


def _started(one: Reader, other: Reader) -> tuple[tuple[str, str, str], ...]:
    """Return how the runs were started differently."""
    names = {"torch": "PyTorch", "threads": "CPU threads", "arguments": "arguments"}
    found = []
    for key, name in names.items():
        first, second = (run.about.get(key) for run in (one, other))
        if first != second and first is not None and second is not None:
            found.append((name, _text(first), _text(second)))
    return tuple(found)


def _text(value: object) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


def _drifts(one: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    """Return whether a call makes tensors differ that were the same before."""
    return one is not None and other is not None and one[0] == other[0] and one[1] != other[1]


def _ranks(one: Reader, other: Reader) -> tuple[str, str] | None:
    """Return the ranks of two recordings, if they are two different ones."""
    first, second = (run.about.get("rank") for run in (one, other))
    if isinstance(first, str) and isinstance(second, str) and first != second:
        return first, second
    return None


def _divergence(
    first: TraceCall | None,
    second: TraceCall | None,
    reseeded: tuple[str, ...],
    ranks: tuple[str, str] | None,
) -> Divergence:
    if first is None or second is None:
        return Divergence("calls", first, second)
    differing = [
        name
        for (name, _, mine), (_, _, theirs) in zip(first.tensors(), second.tensors())
        if mine != theirs
    ]
    inputs = tuple(name for name in differing if name.startswith("input"))
    results = tuple(differing[len(inputs) :])
    if ranks is not None and first.overload in _SHARING:
        return Divergence("replica", first, second, results)
    # Unless a process seeds them, Python's and NumPy's generators start in a different state.
    seeded = not _SEEDED_BY_THE_PROGRAM.issuperset(reseeded)
    if inputs and ranks is not None:
        return Divergence("drift", first, second, inputs + results)
    if inputs and first.graph is not None:
        return Divergence("fused", first, second, inputs)
    if inputs:
        return Divergence("seed" if seeded else "inputs", first, second, inputs, reseeded)
    if first.generator != second.generator:
        if _OWN_GENERATOR in first.arguments:
            return Divergence("generator", first, second, ("generator",))
        kind = "seed" if seeded else "generator"
        return Divergence(kind, first, second, ("generator",), reseeded)
    if first.arguments != second.arguments:
        both = (f"({first.arguments})", f"({second.arguments})")
        return Divergence("arguments", first, second, both, reseeded)
    kind = "graph" if first.overload.startswith(GRAPH) else "outputs"
    return Divergence(kind, first, second, results)
