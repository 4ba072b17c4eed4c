"""A trace as numbers for each of its calls, which are compared instead of the calls."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, TypeAlias

from detmode.bits.effects import effects_of
from detmode.reports.progress import progress
from detmode.runs.collectives import Collective
from detmode.runs.compiled_graphs import GRAPH
from detmode.runs.dump_file import CallName
from detmode.runs.trace_file import UNDEFINED, Reader, TraceCall, TraceError
from detmode.runs.trace_lines import DIGEST_BYTES, Shape, split
from detmode.table.rule_table import resolve

OWN_GENERATOR = "generator=Generator"
"""Marks, in the arguments, a call that does not draw from the global generator."""


SHARING = frozenset(
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


def _computes(overload: str) -> bool:
    """Return whether an operator computes its results from the data of its inputs."""
    func = resolve(overload)
    if func is None:
        return False
    of = effects_of(func)
    looks_only = of.aliases or of.rebinds or of.reads_no_data or of.asynchronous
    return not looks_only and not of.undefined


_MOST_NAMED = 1 << 26
"""Characters of all lines of a run, since reports contain them."""


_Fixed: TypeAlias = tuple[int, int, int, int, bool]
"""The numbers of all calls of one shape: the kind, the bytes of digests up to the end of its inputs
and of its tensors, the line, and whether the results come from the data of the inputs."""


class TraceIndex:
    """A trace, with numbers for each call: its kind, its inputs, the whole call, and its anchor.

    The anchor is 0 for calls whose inputs all come from the run itself (masks of dropout, counters
    of steps). They continue unchanged when a step is skipped, so they cannot anchor an alignment.

    Args:
        path: the folder of the trace.
        kinds: the numbers of kinds, which both runs share; it grows.

    Raises:
        TraceError: the trace cannot be read, or names more than any run does.
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
        # For each collective, its identity, and whether all its inputs and results are digested.
        self.collectives: dict[int, tuple[Collective, bool, bool]] = {}
        # For a rank's in-place calls, the bytes before and after.
        self.updates: dict[int, tuple[int, int]] = {}
        # The calls whose results are not recorded, as they read uninitialized memory.
        self.unsaid = 0
        self._is_rank = self.reader.about.get("rank") is not None
        self._positions: dict[tuple[str, str, str | None], int] = {}
        self._named = 0
        self._made_here = {UNDEFINED}
        fixed: dict[int, _Fixed] = {}
        for shape, arguments, digests, collective in progress(
            self.reader.scan(), f"reading {path}", "calls"
        ):
            numbers = fixed.get(id(shape))
            if numbers is None:
                numbers = fixed[id(shape)] = self._fixed(shape, kinds)
            self._add(shape, numbers, arguments, digests)
            if collective is not None:
                _, inputs_end, end, *_ = numbers
                before, after = digests[:inputs_end], digests[inputs_end:end]
                whole = UNDEFINED not in split(before), UNDEFINED not in split(after)
                self.collectives[len(self.kinds) - 1] = (collective, *whole)
        self.lines = list(self._positions)

    def _fixed(self, shape: Shape, kinds: dict[Any, int]) -> _Fixed:
        # Without the site: a line that moved between two runs is the same call.
        kind = kinds.setdefault((shape.overload, shape.sides), len(kinds))
        n_inputs, n_outputs, n_mutated = (len(side) for side in shape.sides)
        end = n_inputs + n_outputs + n_mutated
        line = (shape.overload, shape.site, shape.module)
        if line not in self._positions:
            self._positions[line] = len(self._positions)
            self._named += sum(map(len, filter(None, line)))
            if self._named > _MOST_NAMED:
                raise TraceError(
                    f"{self.reader.path} has more than {_MOST_NAMED >> 20} MiB of operator, site "
                    "and module names; is it a trace?"
                )
        ends = n_inputs * DIGEST_BYTES, end * DIGEST_BYTES
        return kind, *ends, self._positions[line], _computes(shape.overload)

    def _add(self, shape: Shape, numbers: _Fixed, arguments: str, digests: bytes) -> None:
        kind, inputs_end, end, line, computes = numbers
        before, after = digests[:inputs_end], digests[inputs_end:end]
        if computes and UNDEFINED in digests:
            self.unsaid += all(UNDEFINED in split(side) for side in (before, after))
        inputs = hash((kind, arguments, before, digests[end:]))
        whole = hash((inputs, after))
        from_outside = not self._made_here.issuperset(split(before))
        if not from_outside:
            self._made_here.update(split(after))
        if shape.is_random and OWN_GENERATOR not in arguments:
            form = next(chain.from_iterable(shape.sides), "cpu")
            device = form.rpartition(" ")[2]
            name = "torch" if device == "cpu" else device
            self.first_draws.setdefault(name, len(self.kinds))
        if shape.overload in SHARING:
            self.shared[len(self.kinds)] = hash(after)
        elif self._is_rank and shape.in_place and not shape.overload.startswith(GRAPH):
            n = len(shape.sides[2]) * DIGEST_BYTES
            if UNDEFINED not in split(before[:n]):
                self.updates[len(self.kinds)] = hash(before[:n]), hash(after[-n:])
        self.kinds.append(kind)
        self.inputs.append(inputs)
        self.whole.append(whole)
        self.anchors.append(whole if from_outside else 0)
        self.line_of.append(line)

    def is_graph(self, number: int) -> bool:
        """Return whether a call is that of a compiled graph."""
        return self.lines[self.line_of[number]][0].startswith(GRAPH)

    def name_of(self, number: int) -> CallName:
        """Return the name of a call: its overload, and its index among that overload's calls."""
        overload = self.lines[self.line_of[number]][0]
        alike = {place for place, line in enumerate(self.lines) if line[0] == overload}
        return CallName(overload, sum(place in alike for place in self.line_of[:number]))

    def calls_at(self, numbers: Iterable[int | None]) -> dict[int | None, TraceCall]:
        """Read some of the calls again."""
        wanted = {number for number in numbers if number is not None}
        calls = islice(self.reader.calls(wanted), len(wanted))
        return {call.number: call for call in calls}
