"""Writing a trace, in batches and by a thread of its own."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import IO, Any, TypeAlias

from detmode.reports.page import shortened
from detmode.runs.collectives import Collective, GroupIdentity
from detmode.runs.trace_file import FORMAT, VERSION, TraceError
from detmode.runs.trace_lines import DIGEST_BYTES

Part: TypeAlias = tuple[str, tuple[list[int], ...], str, int]
"""What is digested under a name: the name, the numbers of texts that describe it, a plain text, and
the number of digests, which are the next ones."""
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
