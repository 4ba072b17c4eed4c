"""Writing a trace by a thread of its own, in batches: each call, or a digest a step and name."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import IO, Any, Final, Literal, TypeAlias

from detmode.reports.page import shortened
from detmode.reports.timeline import NO_MODULE
from detmode.runs.collectives import Collective, GroupIdentity
from detmode.runs.trace_file import FORMAT, VERSION, TraceError
from detmode.runs.trace_lines import DIGEST_BYTES

Detail: TypeAlias = Literal["call", "module", "step"]
CALL: Final = "call"
MODULE: Final = "module"
STEP: Final = "step"
LEVELS: tuple[Detail, ...] = (CALL, MODULE, STEP)
"""The detail of a recording: digests of each tensor of each call; for each step, of the calls of
each module; or for each step, of the state that it left."""
Part: TypeAlias = tuple[str, tuple[list[int], ...], str, int]
"""A part of what is digested under one name: the name, the numbers of texts that describe it, a
plain text, and the number of digests, which are the next ones."""
_WAITING = 4
"""The most batches that wait to be written."""


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
                name = shortened(str(self.path))
                raise TraceError(f"{name} is not empty; name a folder that does not exist yet")
            head = {"format": FORMAT, "version": VERSION, **about}
            with (self.path / "trace.json").open("x", encoding="utf-8") as file:
                file.write(json.dumps(head, indent=1) + "\n")
            self._calls: IO[str] = (self.path / "calls.jsonl").open("w", encoding="utf-8")
            self._digests: IO[bytes] = (self.path / "digests.bin").open("wb")
        except OSError as error:
            raise TraceError(f"cannot write a trace to {self.path}: {error.strerror}") from error
        self.unrecorded = 0
        """The number of calls of other threads, once the run has ended."""
        self._numbers: dict[str, int] = {}
        self._groups: dict[GroupIdentity, int] = {}
        self._lines: list[str] = []
        # The digests before each end of a step since the last batch, and those of whole steps.
        self._ends: list[int] = []
        self._content = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._of_steps = self._content.digest()
        self._batches: Queue[tuple[bytes, str] | None] = Queue(_WAITING)
        self._thread = threading.Thread(target=self._write, name="detmode-record", daemon=True)
        self._error: Exception | None = None
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

    def end_step(self, digests: int, parts: Iterable[Part] = ()) -> None:
        """Add the end of a step, which has that many digests since the last batch before it.

        Args:
            digests: their number.
            parts: of the state that the step left; none where calls are recorded.
        """
        self._ends.append(digests)
        self._lines.append('{"step":[]}')

    @property
    def digest_of_steps(self) -> bytes:
        """The digest of all digests up to the end of the last step whose batch was flushed."""
        return self._of_steps

    def flush(self, digests: bytes) -> None:
        """Hand over the lines so far, and their digests, to the thread that writes them.

        It waits while several batches are still to be written, so that memory is bounded.

        Raises:
            OSError: an earlier batch could not be written. Nothing more is written afterwards,
                because digests are identified by their position.
        """
        begin = 0
        for end in self._ends:
            self._content.update(digests[begin * DIGEST_BYTES : end * DIGEST_BYTES])
            self._of_steps = self._content.digest()
            begin = end
        self._content.update(digests[begin * DIGEST_BYTES :])
        self._ends.clear()
        lines = "".join(f"{line}\n" for line in self._lines)
        self._lines.clear()
        self._raise()
        if not self._failed:
            if not self._thread.is_alive():
                self._thread.start()
            self._batches.put((digests, lines))

    def _write(self) -> None:
        """Write batches until there are no more, digests before the lines that they belong to."""
        while (batch := self._batches.get()) is not None:
            if self._error is not None:
                continue  # one cannot be written, and the program may be waiting to add another
            digests, lines = batch
            try:
                self._digests.write(digests)
                self._digests.flush()
                self._calls.write(lines)
                self._calls.flush()
            except Exception as error:  # raised where the program goes on
                self._error = error

    def _raise(self) -> None:
        """Raise the error of the other thread, once."""
        if self._error is not None and not self._failed:
            self._failed = True
            raise self._error

    def close(self, ended: bool) -> None:
        """Wait until all is written, write how the run ended, and close the files.

        Raises:
            OSError: something could not be written.
        """
        with ExitStack() as files:
            files.callback(self._digests.close)
            files.callback(self._calls.close)
            if self._thread.is_alive():
                self._batches.put(None)
                self._thread.join()
            self._raise()
            if not self._failed:
                end = {"end": "complete" if ended else "error"}
                left_out = {"unrecorded": self.unrecorded} if self.unrecorded else {}
                self._calls.write(json.dumps({**end, **left_out}) + "\n")


class _RollUpWriter(Writer):
    """Writes one digest for each step and name, of all that was added under this name in the step.

    A name is that of a module or of a part of the state.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._texts: list[str] = []
        self._known: dict[str, int] = {}
        self._keys: dict[tuple[Any, ...], bytes] = {}
        # Since the last batch: a name, what is digested besides tensors, and the number of digests
        # of tensors; None is the end of a step.
        self._added: list[tuple[str, bytes, int] | None] = []
        self._open: dict[str, hashlib.blake2b] = {}

    def number(self, text: str) -> int:
        """Return the number that stands for a text, which is not written."""
        number = self._known.get(text)
        if number is None:
            number = self._known[text] = len(self._texts)
            self._texts.append(text)
        return number

    def identity(self, collective: Any) -> list[int]:
        """Return nothing: a collective counts among the calls of its module."""
        return []

    def call(self, fields: list[Any]) -> None:
        """Add a call to its module's digest. See :meth:`Writer.call`."""
        overload, _, module, *sides, random, arguments = fields[:8]
        name = NO_MODULE if module is None else self._texts[module]
        count = sum(map(len, sides)) + random
        self._add(name, ([overload], *sides), arguments, count)

    def _add(self, name: str, texts: tuple[list[int], ...], arguments: str, digests: int) -> None:
        """Add so many of the next digests to a name's digest, and the texts that describe them."""
        numbers = tuple(map(tuple, texts))
        key = self._keys.get(numbers)
        if key is None:
            lines = (
                " ".join(self._texts[number] for number in numbers_of_one)
                for numbers_of_one in numbers
            )
            key = self._keys[numbers] = "\n".join(lines).encode(errors="surrogatepass")
        whole = key + b"\n" + arguments.encode(errors="surrogatepass")
        self._added.append((name, whole, digests))

    def end_step(self, digests: int, parts: Iterable[Part] = ()) -> None:
        """Add the parts of the state, and the end of a step."""
        for part in parts:
            self._add(*part)
        self._added.append(None)

    def flush(self, digests: bytes) -> None:
        """Hand over the digests of the steps that have ended. See :meth:`Writer.flush`."""
        at, content = 0, bytearray()
        for entry in self._added:
            if entry is None:
                content += self._end(len(content))
                continue
            name, key, count = entry
            end = at + count * DIGEST_BYTES
            opened = self._open.get(name)
            if opened is None:
                opened = self._open[name] = hashlib.blake2b(digest_size=DIGEST_BYTES)
            opened.update(len(key).to_bytes(8, "little") + key + digests[at:end])
            at = end
        self._added.clear()
        super().flush(bytes(content))

    def _end(self, begin: int) -> bytes:
        """End a step; return its digests, in the order in which its names came first."""
        numbers = [super(_RollUpWriter, self).number(name) for name in self._open]
        digests = b"".join(opened.digest() for opened in self._open.values())
        self._open.clear()
        self._lines.append(f'{{"step":[{",".join(map(str, numbers))}]}}')
        self._ends.append((begin + len(digests)) // DIGEST_BYTES)
        return digests

    def close(self, ended: bool) -> None:
        """Write what came after the last step as a step too, and close."""
        if self._open:
            super().flush(self._end(0))
        super().close(ended)


def writer_of(level: Detail) -> type[Writer]:
    """Return the class that writes recordings of a level."""
    return Writer if level == CALL else _RollUpWriter
