"""Progress of long work: on a terminal only."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakSet

import wrapt

if TYPE_CHECKING:
    _Proxy = wrapt.ObjectProxy[Any]
else:
    _Proxy = wrapt.ObjectProxy  # generic from version 2 on

T = TypeVar("T")
_SECONDS = 0.5
"""The time between two looks at a count."""


def progress(items: Iterable[T], what: str, unit: str) -> Iterable[T]:
    """The items, counted on stderr where that is a terminal and they take more than a second.

    Args:
        items: values that are worked on, one after the other.
        what: the work's name.
        unit: the name of one item.
    """
    from tqdm import tqdm  # imported with the first long work

    # None: only on a terminal.
    return tqdm(items, what, unit=f" {unit}", disable=None, leave=False, delay=1)


@contextmanager
def counted(what: str, extent: Callable[[], tuple[int, str]]) -> Iterator[None]:
    """Show a count that a block raises, on stderr where that is a terminal.

    The block may print: its lines are above the count, which is not shown in a line that it has
    begun, such as a progress bar of its own.

    Args:
        what: the work's name.
        extent: gives the count, and the name of one of what is counted.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from tqdm import tqdm

    class _Count(tqdm):  # type: ignore[type-arg]  # not generic when it runs
        # Bars of the program do not make room for it.
        _instances: ClassVar[WeakSet[Any]] = WeakSet()
        monitor_interval = 0

    bar = _Count(desc=what, unit=f" {extent()[1]}s", file=sys.stderr, leave=False, delay=_SECONDS)
    cursor, ended = _Cursor(bar.clear), threading.Event()

    def watch() -> None:
        while not ended.wait(_SECONDS):
            count = extent()[0]
            with cursor.lock:
                # Where nothing was counted, a debugger may wait for its user.
                if count > bar.n and cursor.begins_line:
                    cursor.shows = True
                    bar.n = count
                    bar.refresh()

    thread = threading.Thread(target=watch, name="detmode-progress", daemon=True)
    plain = sys.stdout, sys.stderr
    above = tuple(
        _Above(plain_stream, cursor) if _is_terminal(plain_stream) else plain_stream
        for plain_stream in plain
    )
    sys.stdout, sys.stderr = above
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for name, stream, replacement in zip(("stdout", "stderr"), plain, above):
            if getattr(sys, name) is replacement:
                setattr(sys, name, stream)
        with cursor.lock:
            cursor.leave()
        bar.disable = True  # its own last line would be printed wherever the cursor is


class _Cursor:
    """The terminal's cursor, as far as Python's streams have moved it."""

    def __init__(self, clear: Callable[[], object]) -> None:
        self.lock = threading.RLock()  # a signal may strike in a write
        self.process = os.getpid()
        self.begins_line = True
        self.shows = False
        """True if the count stands in its line."""
        self._clear = clear

    def leave(self) -> None:
        """Take the count away, so that something else can be written."""
        if self.shows:
            self._clear()
            self.shows = False


class _Above(_Proxy):
    """A stream of a terminal that takes the count away before it writes."""

    def __init__(self, stream: Any, cursor: _Cursor) -> None:
        super().__init__(stream)
        self._self_cursor = cursor

    def write(self, text: str) -> int:
        cursor = self._self_cursor
        written: int
        if cursor.process != os.getpid():  # forked, maybe while the lock was held
            written = self.__wrapped__.write(text)
            return written
        with cursor.lock:
            cursor.leave()
            written = self.__wrapped__.write(text)
            if text:
                cursor.begins_line = text.endswith("\n")
        return written


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
