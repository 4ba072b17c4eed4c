"""Comparing two recorded runs: where they part first, and in what way."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from tabulate import tabulate

from detmode.rule import Allow
from detmode.rules import default_rules
from detmode.runs.align import align
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
class Comparison:
    """What comparing two runs gave.

    Args:
        parting: where they differ first; ``None`` where they are the same.
        outputs: the first call whose inputs agree and whose outputs differ, where there is one.
        same: how many calls are the same to the byte.
        different: how many are made by both and differ.
        only_first: how many only the first run made.
        only_second: how many only the second run made.
        incomplete: the runs that were cut off, by their paths.
    """

    parting: Parting | None
    outputs: Parting | None
    same: int
    different: int
    only_first: int
    only_second: int
    incomplete: tuple[str, ...]

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
        return "\n".join(lines)


class _Run:
    """A trace, with numbers for each call: its kind, its inputs, all of it, and as an anchor.

    What comes from the run itself alone (masks of dropout, counters of steps) goes on alike when a
    step is passed over; such calls are no anchors, and have 0.
    """

    def __init__(self, path: str | os.PathLike[str], kinds: dict[Any, int]) -> None:
        self.reader = Reader(path)
        self.kinds, self.inputs = array("q"), array("q")
        self.whole, self.anchors = array("q"), array("q")
        made_here = {UNDEFINED}
        known: dict[int, tuple[int, int, int]] = {}
        for shape, arguments, digests in self.reader.scan():
            found = known.get(id(shape))
            if found is None:
                # Without the site: a line that moved between two runs is the same call.
                kind = kinds.setdefault((shape.overload, shape.sides), len(kinds))
                n_inputs, n_outputs, n_mutated = (len(side) for side in shape.sides)
                ends = (n_inputs, n_inputs + n_outputs + n_mutated)
                found = (kind, ends[0] * DIGEST_BYTES, ends[1] * DIGEST_BYTES)
                known[id(shape)] = found
            kind, inputs_end, end = found
            inputs = hash((kind, arguments, digests[:inputs_end], digests[end:]))
            whole = hash((inputs, digests[inputs_end:end]))
            from_outside = not made_here.issuperset(split(digests[:inputs_end]))
            if not from_outside:
                made_here.update(split(digests[inputs_end:end]))
            self.kinds.append(kind)
            self.inputs.append(inputs)
            self.whole.append(whole)
            self.anchors.append(whole if from_outside else 0)

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
    counts = {"same": 0, "different": 0, "only_first": 0, "only_second": 0}
    parting: tuple[int | None, int | None] | None = None
    outputs: tuple[int, int] | None = None
    for i, j in _aligned(one, other):
        if i is None or j is None:
            counts["only_second" if i is None else "only_first"] += 1
        elif one.whole[i] == other.whole[j]:
            counts["same"] += 1
            continue
        else:
            counts["different"] += 1
            if outputs is None and one.inputs[i] == other.inputs[j]:
                outputs = (i, j)
        if parting is None:
            parting = (i, j)
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
        if found.kind in ("inputs", "arguments") and counts["only_first"] + counts["only_second"]:
            # A step more is a step on other data first.
            return replace(found, kind="calls")
        return found

    cut = [str(run.reader.path) for run in (one, other) if not run.reader.complete]
    return Comparison(parted(parting), parted(outputs), **counts, incomplete=tuple(cut))


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
