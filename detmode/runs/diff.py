"""Comparing two recorded runs: where they part first, and in what way."""

from __future__ import annotations

import os
import shlex
from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from detmode.reports.progress import progress
from detmode.reports.timeline import Timeline, TimelineBuilder
from detmode.runs.align import align
from detmode.runs.comparison import (
    DIFFERENT,
    GROUPS,
    ONLY_FIRST,
    ONLY_SECOND,
    SAME,
    Comparison,
    Line,
    Parting,
)
from detmode.runs.dump_diff import compare_dumps, pairs
from detmode.runs.dump_file import CallName, dumps_of
from detmode.runs.trace_file import (
    DIGEST_BYTES,
    UNDEFINED,
    Reader,
    Tensors,
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
"""Collectives that give all ranks of their group the same."""
_SEEDED_BY_THE_PROGRAM = frozenset({"python", "numpy"})
_MOST_NAMED = 1 << 26
"""Characters of all lines of a run, which stand in its reports."""
_OWN_GENERATOR = "generator=Generator"
"""In the arguments of a call that does not draw from the global generator."""


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
        # Of each global generator the first call that drew from it.
        self.first_draws: dict[str, int] = {}
        # Of the collectives that give all ranks the same, their results.
        self.shared: dict[int, int] = {}
        # Of a rank's calls in place, what they write over and what they write.
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
                            f"{self.reader.path} names its operators, sites and modules with more "
                            f"than {_MOST_NAMED >> 20} MiB; is it a trace?"
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
            elif (
                is_rank
                and shape.sides[2]
                and shape.sides[0][: len(shape.sides[2])] == shape.sides[2]
            ):
                n = len(shape.sides[2]) * DIGEST_BYTES
                if UNDEFINED not in split(digests[:n]):
                    self.updates[len(self.kinds)] = hash(digests[:n]), hash(digests[end - n : end])
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

    def calls_at(self, numbers: set[int]) -> dict[int, TraceCall]:
        """Some of the calls, read again."""
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
    drift: tuple[int, int] | None = None
    ranks = _ranks(one.reader, other.reader)
    tally = _Tally(one, other)
    for i, j in progress(_aligned(one, other), "comparing", "calls"):
        if i is None or j is None:
            group = ONLY_SECOND if i is None else ONLY_FIRST
        else:
            group = SAME if one.whole[i] == other.whole[j] else DIFFERENT
            if i in dumped_numbers:
                aligned[i] = j
        tally.add(i, j, group.name)
        if i is None or j is None:
            parting = parting or (i, j)
        elif group is DIFFERENT:
            same_inputs = one.inputs[i] == other.inputs[j]
            # Ranks have data of their own; what a collective gives all of them is the same.
            if ranks is None or same_inputs or one.shared.get(i) != other.shared.get(j):
                parting = parting or (i, j)
            if same_inputs:
                outputs = outputs or (i, j)
            elif ranks is not None and _drifts(one.updates.get(i), other.updates.get(j)):
                drift = drift or (i, j)
    different, only_first, only_second, same = (tally.totals[name] for name in _SEVEREST_FIRST)
    wanted = [pair for pair in (parting, outputs, drift) if pair is not None]
    calls = one.calls_at({i for i, _ in wanted if i is not None})
    others = other.calls_at({j for _, j in wanted if j is not None})
    # Ranks are seeded differently.
    reseeded = () if ranks else _reseeded(one.reader, other.reader)

    def parted(pair: tuple[int | None, int | None] | None) -> Parting | None:
        if pair is None:
            return None
        i, j = pair
        # A call before this one has drawn the same from it: the program has seeded it by then.
        suspects = tuple(
            name for name in reseeded if i is None or one.first_draws.get(name, i) >= i
        )
        found = _parting(
            None if i is None else calls[i], None if j is None else others[j], suspects, ranks
        )
        if not ranks and found.kind in ("inputs", "arguments") and only_first + only_second:
            # A step more is a step on other data first.
            return replace(found, kind="calls")
        return found

    named = parted(parting), parted(outputs), parted(drift)
    dumped = list(pairs(*dumps, aligned))
    known = {(mine.number, theirs.number) for mine, theirs in dumped}
    unseen = [
        (one.name_of(i), other.name_of(j))
        for i, j in dict.fromkeys(_with_other_tensors(*named[:2]))
        if (i, j) not in known
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
        tally.timeline(),
        ranks,
        tuple(compare_dumps(*pair) for pair in dumped),
        (tuple(mine for mine, _ in unseen), tuple(theirs for _, theirs in unseen)),
        _started(one.reader, other.reader),
    )


def _with_other_tensors(*partings: Parting | None) -> Iterator[tuple[int, int]]:
    """The calls, by their numbers, whose tensors tell more than other arguments or seeds do."""
    for parting in partings:
        if parting is not None and parting.kind not in ("seed", "generator", "arguments", "calls"):
            assert parting.first is not None
            assert parting.second is not None
            yield parting.first.number, parting.second.number


def _aligned(one: _Run, other: _Run) -> Iterator[tuple[int | None, int | None]]:
    return align((one.kinds, other.kinds), (one.whole, other.whole), (one.anchors, other.anchors))


def _reseeded(one: Reader, other: Reader) -> tuple[str, ...]:
    """The generators that were in other states when the recordings began."""
    first, second = (run.about.get("generators") for run in (one, other))
    if not isinstance(first, dict) or not isinstance(second, dict):
        return ()
    return tuple(name for name in sorted(first) if name in second and first[name] != second[name])


def _started(one: Reader, other: Reader) -> tuple[tuple[str, str, str], ...]:
    """In what the runs were started differently."""
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
    """Whether a call makes something differ that was the same."""
    return one is not None and other is not None and one[0] == other[0] and one[1] != other[1]


def _ranks(one: Reader, other: Reader) -> tuple[str, str] | None:
    """The ranks of two recordings, where they are two of one run."""
    first, second = (run.about.get("rank") for run in (one, other))
    if isinstance(first, str) and isinstance(second, str) and first != second:
        return first, second
    return None


def _parting(
    first: TraceCall | None,
    second: TraceCall | None,
    reseeded: tuple[str, ...],
    ranks: tuple[str, str] | None,
) -> Parting:
    if first is None or second is None:
        return Parting("calls", first, second)
    results = _differing("output", first.outputs, second.outputs)
    results += _differing("mutated", first.mutated, second.mutated)
    if ranks is not None and first.overload in _SHARING:
        return Parting("replica", first, second, results)
    # Python's and NumPy's generators are in another state in each process that does not seed them.
    seeded = not _SEEDED_BY_THE_PROGRAM.issuperset(reseeded)
    inputs = _differing("input", first.inputs, second.inputs)
    if inputs and ranks is not None:
        return Parting("drift", first, second, inputs + results)
    if inputs:
        return Parting("seed" if seeded else "inputs", first, second, inputs, reseeded)
    if first.generator != second.generator:
        if _OWN_GENERATOR in first.arguments:
            return Parting("generator", first, second, ("generator",))
        kind = "seed" if seeded else "generator"
        return Parting(kind, first, second, ("generator",), reseeded)
    if first.arguments != second.arguments:
        differing = (f"({first.arguments})", f"({second.arguments})")
        return Parting("arguments", first, second, differing, reseeded)
    return Parting("outputs", first, second, results)


def _differing(name: str, one: Tensors, other: Tensors) -> tuple[str, ...]:
    pairs = zip(one.digests, other.digests)
    return tuple(f"{name} {position}" for position, (a, b) in enumerate(pairs) if a != b)
