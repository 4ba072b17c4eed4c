"""A recorded run on disk: its calls, and the digests of their inputs and outputs.

A trace is a folder. ``trace.json`` describes the run, ``calls.jsonl`` has a line for each call, and
``digests.bin`` has 16 bytes for each tensor. Lines and their digests are written in batches, so
that the trace of a killed run can be read up to its last batch. docs/trace-format.md documents the
format.
"""

from __future__ import annotations

import json
import os
import reprlib
from bisect import bisect_right
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from detmode.environment.lock import lock_file
from detmode.environment.lock.lock_file import Sections
from detmode.process.checked import checked
from detmode.process.files import FileError, open_file, parsed_json, read_file
from detmode.runs.collectives import Collective
from detmode.runs.step_range import steps_of
from detmode.runs.trace_lines import DIGEST_BYTES, CallLine, Shape, StepLine, line_parser, split

FORMAT = "detmode-trace"
VERSION = 2
UNDEFINED = bytes(DIGEST_BYTES)
"""Stands for uninitialized memory, which may hold anything and always compares equal."""
_MOST_BYTES_A_LINE = 1 << 20
_MOST_BYTES_OF_JSON = 1 << 24


_UNINITIALIZED = " partly uninitialized "


class TraceError(ValueError):
    """A trace that cannot be read or written: one line, naming the file and what to do.

    >>> try:
    ...     detmode.diff("absent", "too")
    ... except detmode.TraceError:
    ...     print("there is nothing to compare")
    there is nothing to compare
    """


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The tensors of one side of a call: the form and the digest of each."""

    forms: tuple[str, ...]
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call of a run.

    Args:
        number: counted from 0.
        overload: "aten::add.Tensor".
        site: "file:line" of the user's code; for a backward operator, of its forward call.
        module: the ``nn.Module`` path, if one is known.
        inputs: all tensor arguments, before the call.
        outputs: the results, after the call.
        mutated: the arguments that the call writes, after the call.
        arguments: the other arguments as text, with "_" in place of each tensor.
        generator: for a random operator, the digest of its generator's state before the call.
        graph: the compiled graph in which it is made, by the name of the graph's own call.
        collective: for a collective, its identity on all ranks that take part.
    """

    number: int
    overload: str
    site: str
    module: str | None
    inputs: _Tensors
    outputs: _Tensors
    mutated: _Tensors
    arguments: str
    generator: bytes | None
    graph: str | None = None
    collective: Collective | None = None

    @property
    def gives_value(self) -> bool:
        """True if it gives no tensor: a number of Python's, whatever it read."""
        return not self.outputs.forms and not self.mutated.forms

    @property
    def reads_uninitialized(self) -> bool:
        """True if it read memory that nobody had written, or that was written in part."""
        # A backward reads outputs of its forward, which may be partly unwritten.
        if "backward" in self.overload:
            return False
        n = len(self.mutated.forms)
        # What it overwrites it need not read.
        begin = n if self.inputs.forms[:n] == self.mutated.forms else 0
        return UNDEFINED in self.inputs.digests[begin:] or any(
            _UNINITIALIZED in form for form in self.inputs.forms
        )

    def tensors(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield the name ("input 0"), the form and the digest of each tensor."""
        sides = {"input": self.inputs, "output": self.outputs, "mutated": self.mutated}
        for name, side in sides.items():
            for position, (form, digest) in enumerate(zip(side.forms, side.digests)):
                yield f"{name} {position}", form, digest


class Reader:
    """Reads a trace, a call at a time.

    Args:
        path: the folder.

    Raises:
        TraceError: there is no trace, or its format or version is not supported.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        file = self.path / "trace.json"
        try:
            about = read_head(file, FORMAT, VERSION)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise TraceError(
                f"no trace at {self.path}; 'detmode record -o FOLDER SCRIPT' makes one"
            ) from error
        except OSError as error:
            raise TraceError(f"no trace at {self.path}: {file.name}: {error.strerror}") from error
        self.about = _known(about)
        try:
            self.steps_recorded = steps_of(self.about.get("steps"))
        except (TypeError, ValueError) as error:
            raise TraceError(f"{file}: {error}") from error
        """The fields of ``trace.json``; those of a wrong type are ignored."""
        # For each step that ended, the number of calls before; known once all calls are read.
        self._ends: list[int] = []
        self.complete = False
        """True if the run closed its trace; known once all calls are read."""
        self.unrecorded = 0
        """The number of calls that other threads made; known once all calls are read."""

    def lock(self) -> Sections | None:
        """Return the lock beside the trace, if it is there.

        Raises:
            TraceError: it cannot be read.
        """
        file = self.path / lock_file.NAME
        try:
            return lock_file.read(file) if file.exists() else None
        except FileError as error:
            raise TraceError(str(error)) from error

    def step_of(self, number: int) -> int | None:
        """Return the step of a call, if steps have ended in the run; once all calls are read."""
        if not self._ends:
            return None
        return self.steps_recorded.start + bisect_right(self._ends, number)

    def calls(self, wanted: Container[int] | None = None) -> Iterator[TraceCall]:
        """Yield the calls in order, up to the last complete one; or only those with wanted numbers.

        Raises:
            TraceError: a line is malformed.
        """
        for number, call in enumerate(self.scan()):
            if wanted is None or number in wanted:
                yield _record(number, *call)

    def scan(self) -> Iterator[CallLine]:
        """Yield for each call its shape, plain arguments, concatenated digests and collective.

        Raises:
            TraceError: a line is malformed.
        """
        ends, calls = [], 0
        for line in self._lines():
            if isinstance(line, dict):
                ends.append(calls)
            else:
                calls += 1
                yield line
        self._ends = ends

    def steps(self) -> Iterator[StepLine]:
        """Yield the steps that ended, in order.

        Raises:
            TraceError: a line is malformed.
        """
        return (line for line in self._lines() if isinstance(line, dict))

    def _lines(self) -> Iterator[CallLine | StepLine]:
        try:
            with (
                open_file(self.path / "calls.jsonl") as lines,
                open_file(self.path / "digests.bin") as digests,
            ):
                parse = line_parser(digests)
                for at in count(1):
                    line = lines.readline(_MOST_BYTES_A_LINE)
                    if not line.endswith(b"\n") and len(line) < _MOST_BYTES_A_LINE:
                        return  # the end, or an incomplete line
                    try:
                        if len(line) == _MOST_BYTES_A_LINE:
                            raise ValueError
                        fields = json.loads(line)
                        if "end" in fields:
                            self.complete = fields["end"] == "complete"
                            self.unrecorded = max(int(fields.get("unrecorded", 0)), 0)
                            return
                        parsed = parse(fields)
                        if parsed is not None:
                            yield parsed
                    except EOFError:
                        return
                    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                        raise TraceError(
                            f"{self.path / 'calls.jsonl'}:{at} is not a line of a trace"
                        ) from None
        except OSError as error:
            raise TraceError(f"cannot read the trace {self.path}: {error.strerror}") from error


def unrecorded_in(*runs: Reader) -> list[tuple[str, int]]:
    """Return the path of each run whose other threads made calls, and how many."""
    return [(str(run.path), run.unrecorded) for run in runs if run.unrecorded]


def read_head(file: Path, form: str, version: int) -> dict[Any, Any]:
    """Return the object in the head file of a trace or a dump.

    Args:
        file: the head file.
        form: the value of ``format`` that it must have.
        version: the version that can be read.

    Raises:
        OSError: there is no such file, or it cannot be read.
        TraceError: it is not JSON, or its format or version is not supported.
    """
    what = form.partition("-")[2]
    try:
        head = parsed_json(read_file(file, _MOST_BYTES_OF_JSON))
    except ValueError as error:
        raise TraceError(f"{file} is not JSON; is it a {what}?") from error
    if not isinstance(head, dict) or head.get("format") != form:
        raise TraceError(f"{file} is not a {what} of detmode")
    if head.get("version") != version:
        raise TraceError(
            f"{file} has version {reprlib.repr(head.get('version'))}, and this detmode reads "
            f"{version}: read it with the detmode that wrote it"
        )
    return head


def _known(about: dict[Any, Any]) -> dict[str, Any]:
    """Return the fields whose values have a type that a recording writes."""
    known: dict[str, Any] = {}
    for name, value in about.items():
        with suppress(TypeError):
            known[name] = checked(int | str | list[str] | dict[str, str], value)
    return known


def _record(
    number: int, shape: Shape, arguments: str, digests: bytes, collective: Collective | None
) -> TraceCall:
    in_order = split(digests)
    ins, outs, mutated = (
        _Tensors(side, tuple(islice(in_order, len(side)))) for side in shape.sides
    )
    place = (shape.overload, shape.site, shape.module)
    generator = next(in_order, None)
    sides = (ins, outs, mutated)
    return TraceCall(number, *place, *sides, arguments, generator, shape.graph, collective)


def partly_uninitialized(form: str) -> str:
    """Return the form of a tensor that is uninitialized in part."""
    what, _, device = form.rpartition(" ")
    return f"{what}{_UNINITIALIZED}{device}"
