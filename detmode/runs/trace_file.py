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
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from detmode.environment.lock import lock_file
from detmode.environment.lock.lock_file import LockError, LockFile
from detmode.process.files import open_file
from detmode.process.text import text_of
from detmode.runs.collectives import Collective, GroupIdentity
from detmode.runs.files import read_json
from detmode.runs.step_range import StepRange

FORMAT = "detmode-trace"
VERSION = 2
DIGEST_BYTES = 16
UNDEFINED = bytes(DIGEST_BYTES)
"""Stands for uninitialized memory, which may hold anything and always compares equal."""
_FIELDS = 10
"""The fields of a call; those at the end may be missing."""
_MOST_BYTES_A_LINE = 1 << 20
_MOST_TEXT_A_CALL = 1 << 23
"""Characters of the texts that a call names; one long text may be named by 100,000 tensors."""


_UNINITIALIZED = " partly uninitialized "


class TraceError(ValueError):
    """A trace that cannot be read or written: one line, naming the file and what to do."""


@dataclass(frozen=True, slots=True)
class Tensors:
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
    inputs: Tensors
    outputs: Tensors
    mutated: Tensors
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


@dataclass(frozen=True, slots=True)
class _Shape:
    """The common part of calls that differ only in digests and plain arguments.

    Args:
        overload: as in :class:`TraceCall`, and so ``site`` and ``module``.
        sides: the forms of inputs, outputs and mutated arguments.
        digests: the number of digests of each call.
        graph: as in :class:`TraceCall`.
    """

    overload: str
    site: str
    module: str | None
    sides: tuple[tuple[str, ...], ...]
    digests: int
    graph: str | None

    @property
    def in_place(self) -> bool:
        """True if the call writes its first inputs."""
        inputs, _, mutated = self.sides
        return bool(mutated) and inputs[: len(mutated)] == mutated

    @property
    def is_random(self) -> bool:
        """True if a generator's state was digested."""
        return self.digests > sum(map(len, self.sides))

    @classmethod
    def of(cls, numbers: tuple[Any, ...], texts: Sequence[str]) -> _Shape:
        """Parse the shape of a line.

        Raises:
            ValueError, TypeError, LookupError: the line is not a line of a trace.
        """
        overload, site, module, *sides, random, graph = numbers
        if len(sides) != 3 or type(random) is not int or random not in (0, 1):
            raise ValueError
        named = [overload, site, *chain(*sides)]
        named += [number for number in (module, graph) if number is not None]
        if any(type(number) is not int or number < 0 for number in named):
            raise ValueError
        if sum(len(texts[number]) for number in named) > _MOST_TEXT_A_CALL:
            raise ValueError
        forms = tuple(tuple(texts[number] for number in side) for side in sides)
        names = [None if number is None else texts[number] for number in (module, graph)]
        n_digests = sum(map(len, forms)) + random
        return cls(texts[overload], texts[site], names[0], forms, n_digests, names[1])


class _TraceStep(NamedTuple):
    """The end of a step.

    Args:
        calls: the number of calls that the trace has before it.
        digests: for each module, or part of the state, the digest of its step; empty if the calls
            are in the trace.
    """

    calls: int
    digests: dict[str, bytes]


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
            self.steps_recorded = StepRange.of(self.about.get("steps"))
        except (TypeError, ValueError) as error:
            raise TraceError(f"{file}: {error}") from error
        """The fields of ``trace.json``; those of a wrong type are ignored."""
        # For each step that ended, the number of calls before; known once all calls are read.
        self._ends: list[int] = []
        self.complete = False
        """True if the run closed its trace; known once all calls are read."""
        self.unrecorded = 0
        """The number of calls that other threads made; known once all calls are read."""

    def lock(self) -> LockFile | None:
        """Return the lock beside the trace, if it is there.

        Raises:
            TraceError: it cannot be read.
        """
        file = self.path / lock_file.NAME
        try:
            return LockFile.read(file) if file.exists() else None
        except LockError as error:
            raise TraceError(str(error)) from error

    def step_of(self, number: int) -> int | None:
        """Return the step of a call, if steps have ended in the run; once all calls are read."""
        if not self._ends:
            return None
        return self.steps_recorded.begin + bisect_right(self._ends, number)

    def calls(self, wanted: Container[int] | None = None) -> Iterator[TraceCall]:
        """Yield the calls in order, up to the last complete one; or only those with wanted numbers.

        Raises:
            TraceError: a line is malformed.
        """
        for number, call in enumerate(self.scan()):
            if wanted is None or number in wanted:
                yield _record(number, *call)

    def scan(self) -> Iterator[tuple[_Shape, str, bytes, Collective | None]]:
        """Yield for each call its shape, plain arguments, concatenated digests and collective.

        Raises:
            TraceError: a line is malformed.
        """
        ends = []
        for each in self._lines():
            if isinstance(each, _TraceStep):
                ends.append(each.calls)
            else:
                yield each
        self._ends = ends

    def steps(self) -> Iterator[_TraceStep]:
        """Yield the steps that ended, in order.

        Raises:
            TraceError: a line is malformed.
        """
        return (each for each in self._lines() if isinstance(each, _TraceStep))

    def _lines(self) -> Iterator[_TraceStep | tuple[_Shape, str, bytes, Collective | None]]:
        """Yield calls and ends of steps."""
        texts: list[str] = []
        shapes: dict[Any, _Shape] = {}
        groups: list[GroupIdentity] = []
        calls = 0
        try:
            with (
                open_file(self.path / "calls.jsonl") as lines,
                open_file(self.path / "digests.bin") as digests,
            ):
                for at in count(1):
                    line = lines.readline(_MOST_BYTES_A_LINE)
                    if not line.endswith(b"\n") and len(line) < _MOST_BYTES_A_LINE:
                        return  # the end, or an incomplete line
                    try:
                        if len(line) == _MOST_BYTES_A_LINE:
                            raise ValueError
                        parsed = json.loads(line)
                        value = parsed.get("call")
                        if value is not None:
                            fields = [*value, *[None] * (_FIELDS - len(value))]
                            *numbers, arguments, graph, identity = fields
                            key = _frozen([*numbers, graph])
                            shape = shapes.get(key)
                            if shape is None:
                                shape = shapes[key] = _Shape.of(key, texts)
                            arguments = text_of(arguments)
                            collective = _collective(identity, groups)
                            wanted = shape.digests * DIGEST_BYTES
                            read = digests.read(wanted)
                            if len(read) < wanted:
                                return
                        elif "end" in parsed:
                            self.complete = parsed["end"] == "complete"
                            self.unrecorded = max(int(parsed.get("unrecorded", 0)), 0)
                            return
                        elif "step" in parsed:
                            names = [texts[number] for number in parsed["step"]]
                            read = digests.read(len(names) * DIGEST_BYTES)
                            if len(read) < len(names) * DIGEST_BYTES:
                                return
                            yield _TraceStep(calls, dict(zip(names, split(read))))
                            continue
                        elif "group" in parsed:
                            groups.append(_group(*parsed["group"]))
                            continue
                        else:
                            texts.append(text_of(parsed["text"]))
                            continue
                    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                        raise TraceError(
                            f"{self.path / 'calls.jsonl'}:{at} is not a line of a trace"
                        ) from None
                    calls += 1
                    yield shape, arguments, read, collective
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
        head = read_json(file)
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
        if type(value) is int:
            known[name] = value
        elif isinstance(value, str):
            known[name] = text_of(value)
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            known[name] = list(map(text_of, value))
        elif isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
            known[name] = {text_of(key): text_of(each) for key, each in value.items()}
    return known


def _group(name: Any, description: Any, backend: Any, ranks: Any) -> GroupIdentity:
    if not isinstance(ranks, list) or any(type(rank) is not int or rank < 0 for rank in ranks):
        raise ValueError
    return GroupIdentity(text_of(name), text_of(description), text_of(backend), tuple(ranks))


def _collective(identity: Any, groups: Sequence[GroupIdentity]) -> Collective | None:
    if identity is None:
        return None
    if any(type(each) is not int for each in identity):
        raise ValueError
    group, number, *peers = identity
    if group < 0 or number < 0 or len(peers) not in (0, 3):
        raise ValueError
    return Collective(groups[group], number, tuple(peers))


def _record(
    number: int, shape: _Shape, arguments: str, digests: bytes, collective: Collective | None
) -> TraceCall:
    each = split(digests)
    ins, outs, mutated = (Tensors(side, tuple(islice(each, len(side)))) for side in shape.sides)
    place = (shape.overload, shape.site, shape.module)
    generator = next(each, None)
    sides = (ins, outs, mutated)
    return TraceCall(number, *place, *sides, arguments, generator, shape.graph, collective)


def _frozen(numbers: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(each) if isinstance(each, list) else each for each in numbers)


def partly_uninitialized(form: str) -> str:
    """Return the form of a tensor that is uninitialized in part."""
    what, _, device = form.rpartition(" ")
    return f"{what}{_UNINITIALIZED}{device}"


def split(digests: bytes) -> Iterator[bytes]:
    """Yield the concatenated digests one by one."""
    for begin in range(0, len(digests), DIGEST_BYTES):
        yield digests[begin : begin + DIGEST_BYTES]
