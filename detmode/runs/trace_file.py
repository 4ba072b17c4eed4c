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
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any

from detmode.runs.collectives import Collective, RankGroup
from detmode.runs.files import open_file, read_json, text_of

FORMAT = "detmode-trace"
VERSION = 2
READABLE = (1, 2)
"""The versions that are read. Version 1 does not say to which group a collective belongs."""
DIGEST_BYTES = 16
UNDEFINED = bytes(DIGEST_BYTES)
"""Stands for uninitialized memory, which may hold anything and always compares equal."""
_FIELDS = 10
"""The fields of a call; those at the end may be missing."""
_MOST_BYTES_A_LINE = 1 << 20
_MOST_TEXT_A_CALL = 1 << 23
"""Characters of the texts that a call names; one long text may be named by 100,000 tensors."""


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

    def tensors(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield the name ("input 0"), the form and the digest of each tensor."""
        sides = {"input": self.inputs, "output": self.outputs, "mutated": self.mutated}
        for name, side in sides.items():
            for position, (form, digest) in enumerate(zip(side.forms, side.digests)):
                yield f"{name} {position}", form, digest


@dataclass(frozen=True, slots=True)
class Shape:
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
    def of(cls, numbers: tuple[Any, ...], texts: Sequence[str]) -> Shape:
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


class Writer:
    """Writes a trace.

    Args:
        path: a folder that does not exist, or is empty.
        about: the fields of ``trace.json`` besides format and version.

    Raises:
        TraceError: the folder cannot be created, or has files in it.
    """

    def __init__(self, path: str | os.PathLike[str], about: dict[str, Any]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise TraceError(f"{self.path} is not empty; name a folder that does not exist yet")
            head = {"format": FORMAT, "version": VERSION, **about}
            with (self.path / "trace.json").open("x", encoding="utf-8") as file:
                file.write(json.dumps(head, indent=1) + "\n")
            self._calls: IO[str] = (self.path / "calls.jsonl").open("w", encoding="utf-8")
            self._digests: IO[bytes] = (self.path / "digests.bin").open("wb")
        except OSError as error:
            raise TraceError(f"cannot write a trace to {self.path}: {error.strerror}") from error
        self._numbers: dict[str, int] = {}
        self._groups: dict[RankGroup, int] = {}
        self._lines: list[str] = []
        self._failed = False

    def number(self, text: str) -> int:
        """Return the number that stands for a text in later lines."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._numbers)
            self._lines.append(json.dumps({"text": text}))
        return number

    def identity(self, collective: Collective) -> list[int]:
        """Return the numbers that stand for a collective's identity."""
        number = self._groups.get(collective.group)
        if number is None:
            number = self._groups[collective.group] = len(self._groups)
            self._lines.append(json.dumps({"group": collective.group}))
        return [number, collective.number, *collective.peers]

    def call(self, fields: list[Any]) -> None:
        """Add a line: ``[overload, site, module, inputs, outputs, mutated, random, arguments]``.

        Texts are given as numbers; ``inputs``, ``outputs`` and ``mutated`` are lists of the numbers
        of the forms. A call in a compiled graph has the graph's name as a ninth field; a collective
        has that or None there, and its identity as a tenth.
        """
        self._lines.append('{"call":' + json.dumps(fields, separators=(",", ":")) + "}")

    def flush(self, digests: bytes) -> None:
        """Write the lines so far, after their digests.

        Raises:
            OSError: they cannot be written. Nothing more is written afterwards, because digests are
                identified by their position.
        """
        if self._failed:
            return
        self._failed = True
        self._digests.write(digests)
        self._digests.flush()
        if self._lines:
            self._calls.write("\n".join(self._lines) + "\n")
            self._calls.flush()
            self._lines.clear()
        self._failed = False

    def close(self, ended: bool) -> None:
        """Write how the run ended, and close the files."""
        with ExitStack() as files:
            files.callback(self._digests.close)
            files.callback(self._calls.close)
            if not self._failed:
                self._calls.write(json.dumps({"end": "complete" if ended else "error"}) + "\n")


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
            about = read_head(file, FORMAT, READABLE)
        except OSError as error:
            raise TraceError(f"no trace at {self.path}: {file.name}: {error.strerror}") from error
        self.about = _known(about)
        """The fields of ``trace.json``; those of a wrong type are ignored."""
        self.complete = False
        """True if the run closed its trace; known once all calls are read."""

    def calls(self, wanted: Container[int] | None = None) -> Iterator[TraceCall]:
        """Yield the calls in order, up to the last complete one; or only those with wanted numbers.

        Raises:
            TraceError: a line is malformed.
        """
        for number, call in enumerate(self.scan()):
            if wanted is None or number in wanted:
                yield _record(number, *call)

    def scan(self) -> Iterator[tuple[Shape, str, bytes, Collective | None]]:
        """Yield for each call its shape, plain arguments, concatenated digests and collective.

        Raises:
            TraceError: a line is malformed.
        """
        texts: list[str] = []
        shapes: dict[Any, Shape] = {}
        groups: list[RankGroup] = []
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
                                shape = shapes[key] = Shape.of(key, texts)
                            arguments = text_of(arguments)
                            collective = _collective(identity, groups)
                            wanted = shape.digests * DIGEST_BYTES
                            read = digests.read(wanted)
                            if len(read) < wanted:
                                return
                        elif "end" in parsed:
                            self.complete = parsed["end"] == "complete"
                            return
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
                    yield shape, arguments, read, collective
        except OSError as error:
            raise TraceError(f"cannot read the trace {self.path}: {error.strerror}") from error


def read_head(file: Path, form: str, versions: Sequence[int]) -> dict[Any, Any]:
    """Return the object in the head file of a trace or a dump.

    Args:
        file: the head file.
        form: the value of ``format`` that it must have.
        versions: the versions that can be read.

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
    if head.get("version") not in versions:
        found, known = reprlib.repr(head.get("version")), " and ".join(map(str, versions))
        raise TraceError(
            f"{file} has version {found}, and this detmode reads {known}: read it with the "
            "detmode that wrote it"
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
            known[name] = {text_of(key): each for key, each in value.items()}
    return known


def _group(name: Any, description: Any, backend: Any, ranks: Any) -> RankGroup:
    if not isinstance(ranks, list) or any(type(rank) is not int or rank < 0 for rank in ranks):
        raise ValueError
    return RankGroup(text_of(name), text_of(description), text_of(backend), tuple(ranks))


def _collective(identity: Any, groups: Sequence[RankGroup]) -> Collective | None:
    if identity is None:
        return None
    if any(type(each) is not int for each in identity):
        raise ValueError
    group, number, *peers = identity
    if group < 0 or number < 0 or len(peers) not in (0, 3):
        raise ValueError
    return Collective(groups[group], number, tuple(peers))


def _record(
    number: int, shape: Shape, arguments: str, digests: bytes, collective: Collective | None
) -> TraceCall:
    each = split(digests)
    ins, outs, mutated = (Tensors(side, tuple(islice(each, len(side)))) for side in shape.sides)
    place = (shape.overload, shape.site, shape.module)
    generator = next(each, None)
    sides = (ins, outs, mutated)
    return TraceCall(number, *place, *sides, arguments, generator, shape.graph, collective)


def _frozen(numbers: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(each) if isinstance(each, list) else each for each in numbers)


def split(digests: bytes) -> Iterator[bytes]:
    """Yield the concatenated digests one by one."""
    for begin in range(0, len(digests), DIGEST_BYTES):
        yield digests[begin : begin + DIGEST_BYTES]
