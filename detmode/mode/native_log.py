"""The log of the calls that the player in C++ has made: its numbers' meanings, and the counting.

The player writes the number of an entry for each call that it makes. By the same numbers it notes
forward calls for their backward.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import weakref
from typing import NamedTuple

from detmode.cuda import native
from detmode.mode.row_counter import ModuleCalls, RowCounter
from detmode.process.bounded import Bounded
from detmode.process.undo import Lock
from detmode.sites.native_memory import process
from detmode.table.call_site import Note

ENTRIES = 1 << 15
"""The most entries that the player is taught for one mode; then it forgets everything."""
_LOG = 1 << 13


class LogEntry(NamedTuple):
    """The meaning of one of the log's numbers.

    Args:
        counter: counts the calls, if its mode is still there.
        calls: those of a row and module; ``None`` of a note without calls.
        note: for the backward of the calls.
    """

    counter: weakref.ref[RowCounter] | None
    calls: ModuleCalls | None
    note: Note


numbers = itertools.count(1)
"""Of entries and tables: no number is given twice."""
entries: Bounded[int, LogEntry] = Bounded(8 * ENTRIES)
_lock = Lock()
_taken = (ctypes.c_uint32 * _LOG)()


def number_for(entry: LogEntry) -> int:
    """Return a new number, which means an entry."""
    number = next(numbers)
    entries.keep(number, entry)
    return number


_noted: Bounded[Note, int] = Bounded(ENTRIES)


def number_of_note(note: Note) -> int:
    """Return the number of a note without calls that are counted."""
    number = _noted.get(note)
    return number or _noted.keep(note, number_for(LogEntry(None, None, note)))


def count_calls() -> None:
    """Count the calls that the player has made since."""
    if process.native_memory is not None and process.native_memory.has_calls.value:
        process.native_memory.count_calls()


def _count(player: native.Player) -> None:
    calls = [entries[number] for number in _taken[: player.dm_take(_taken)]]
    for reference, group in itertools.groupby(calls, _counter_of):
        counter = None if reference is None else reference()
        if counter is not None:
            counter.count_in_order([entry.calls for entry in group if entry.calls is not None])


_counter_of = operator.attrgetter("counter")


class NativeMemory:
    """The player, as a thread's memory of forward calls knows it."""

    def __init__(self, player: native.Player) -> None:
        self.player = player
        self.has_calls = player.dm_n_logged().contents

    def note(self, number: int, note: Note) -> bool:
        """Take over the note of a call that was made in Python; false if another made the node."""
        return bool(self.player.dm_note(number, number_of_note(note)))

    def noted(self) -> list[Note]:
        """Return the note of the forward call whose backward runs here, if there is one."""
        entry = entries.get(self.player.dm_noted())
        return [] if entry is None else [entry.note]

    def follow_marks(self) -> None:
        """Let Python make all calls while an allow region is open, or a thread repeats calls."""
        _lock.run(self._follow_marks)

    def _follow_marks(self) -> None:
        self.player.dm_marks(len(process.regions), len(process.repetitions))

    def count_calls(self) -> None:
        """Count the calls that the player has made since."""
        _lock.run(_count, self.player)
