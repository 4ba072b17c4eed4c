"""A trace as numbers for each of its calls, which are compared instead of the calls."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from detmode.reports.progress import progress
from detmode.runs.collectives import Collective
from detmode.runs.dump_file import CallName
from detmode.runs.graphs import GRAPH
from detmode.runs.trace_file import (
    DIGEST_BYTES,
    UNDEFINED,
    Reader,
    TraceCall,
    TraceError,
    split,
)
from detmode.table.overload_info import OverloadInfo
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
    facts = OverloadInfo(func)
    looks_only = facts.aliases or facts.rebinds or facts.reads_no_data or facts.asynchronous
    return not looks_only and not facts.undefined


_MOST_NAMED = 1 << 26
"""Characters of all lines of a run, since reports contain them."""


class TraceIndex:
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
        # For each collective, its identity, and whether all its inputs and results are digested.
        self.collectives: dict[int, tuple[Collective, bool, bool]] = {}
        # For a rank's in-place calls, the bytes before and after.
        self.updates: dict[int, tuple[int, int]] = {}
        # The calls whose results are not recorded, as they read uninitialized memory.
        self.unsaid = 0
        is_rank = self.reader.about.get("rank") is not None
        positions: dict[tuple[str, str, str | None], int] = {}
        named = 0
        made_here = {UNDEFINED}
        known: dict[int, tuple[int, int, int, int]] = {}
        computes: dict[int, bool] = {}
        calls = progress(self.reader.scan(), f"reading {path}", "calls")
        for shape, arguments, digests, collective in calls:
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
                computes[kind] = _computes(shape.overload)
            kind, inputs_end, end, position = found
            if computes[kind] and UNDEFINED in digests:
                sides = (digests[:inputs_end], digests[inputs_end:end])
                self.unsaid += all(UNDEFINED in split(side) for side in sides)
            inputs = hash((kind, arguments, digests[:inputs_end], digests[end:]))
            whole = hash((inputs, digests[inputs_end:end]))
            from_outside = not made_here.issuperset(split(digests[:inputs_end]))
            if not from_outside:
                made_here.update(split(digests[inputs_end:end]))
            if shape.is_random and OWN_GENERATOR not in arguments:
                form = next(chain.from_iterable(shape.sides), "cpu")
                device = form.rpartition(" ")[2]
                name = "torch" if device == "cpu" else device
                self.first_draws.setdefault(name, len(self.kinds))
            if collective is not None:
                results = digests[inputs_end:end]
                self.collectives[len(self.kinds)] = (
                    collective,
                    UNDEFINED not in split(digests[:inputs_end]),
                    UNDEFINED not in split(results),
                )
            if shape.overload in SHARING:
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

    def calls_at(self, numbers: Iterable[int | None]) -> dict[int | None, TraceCall]:
        """Read some of the calls again."""
        wanted = {number for number in numbers if number is not None}
        calls = islice(self.reader.calls(wanted), len(wanted))
        return {call.number: call for call in calls}
