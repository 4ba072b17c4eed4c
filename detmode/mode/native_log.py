"""The log of the calls that the player in C++ has made: its numbers' meanings, and the counting.

The player writes the number of an entry for each call that it makes. By the same numbers it notes
forward calls for their backward.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

from detmode.cuda import native
from detmode.cuda.native import host_steps
from detmode.mode.row_counter import ModuleCalls, RowCounter
from detmode.process.memo import keep_bounded
from detmode.process.setting import all_settings, outside_python
from detmode.process.undo import Lock
from detmode.sites.native_memory import process
from detmode.table.call_site import Note

ENTRIES = 1 << 15
"""The most entries that the player is taught for one mode; then it forgets everything."""
_LOG = 1 << 13
_MOST_NOTES = 8 * ENTRIES
numbers: Iterator[int] = itertools.count(1)
"""Of entries and tables: no number is given twice."""


@dataclass(frozen=True, eq=False)
class _LogEntry:
    """The meaning of a number of the log: calls of a row and module, if any, and their note."""

    counter: RowCounter | None
    calls: ModuleCalls | None
    note: Note
    number: int = field(default_factory=lambda: next(numbers))

    def __post_init__(self) -> None:
        _entries[self.number] = self
        keep_bounded(_notes, self.number, self.note, _MOST_NOTES)


_entries: weakref.WeakValueDictionary[int, _LogEntry] = weakref.WeakValueDictionary()
_notes: dict[int, Note] = {}
"""Those of entries whose mode is gone, too: the backward of its calls may be yet to come."""
_noted: dict[Note, _LogEntry] = {}
_lock = Lock()
_taken = (ctypes.c_uint32 * _LOG)()


def _entry_of_note(note: Note) -> _LogEntry:
    # One for all: the player knows a backward by the number of its forward's note.
    return _noted.get(note) or keep_bounded(_noted, note, _LogEntry(None, None, note), ENTRIES)


Entries = dict[tuple[ModuleCalls | None, Note], _LogEntry]
"""Entries by their meaning, which live as long as the dict."""


def number_of(entries: Entries, counter: RowCounter, calls: ModuleCalls | None, note: Note) -> int:
    """Return the number of the entry of a meaning, for which a new one is made if there is none."""
    entry = entries.get((calls, note))
    if entry is None:
        entry = _LogEntry(counter, calls, note) if calls is not None else _entry_of_note(note)
        entries[calls, note] = entry
    return entry.number


def note_of(number: int) -> Note | None:
    """Return the note of the entry with a number; ``None`` if there is none."""
    entry = _entries.get(number)
    return _notes.get(number) if entry is None else entry.note


def count_calls() -> None:
    """Count the calls that the player has made since."""
    if process.native_memory is not None and process.native_memory.has_calls.value:
        process.native_memory.count_calls()


def _count(player: native.Player) -> None:
    # The entries that no mode has are of modes that are gone.
    entries = filter(None, map(_entries.get, _taken[: player.dm_take(_taken)]))
    for counter, group in itertools.groupby(entries, _counter_of):
        if counter is not None:
            counter.count_in_order([entry.calls for entry in group if entry.calls is not None])


_counter_of = operator.attrgetter("counter")


class _NativeMemory:
    """The player, as a thread's memory of forward calls knows it."""

    def __init__(self, player: native.Player) -> None:
        self.player = player
        self.has_calls = player.dm_n_logged().contents

    def note(self, number: int, note: Note) -> bool:
        return bool(self.player.dm_note(number, _entry_of_note(note).number))

    def noted(self) -> list[Note]:
        note = note_of(self.player.dm_noted())
        return [] if note is None else [note]

    def follow_marks(self) -> None:
        _lock.run(self._follow_marks)

    def _follow_marks(self) -> None:
        self.player.dm_marks(len(process.regions), len(process.repetitions))

    def count_calls(self) -> None:
        _lock.run(_count, self.player)


def attach(player: native.Player) -> None:
    """Connect the player with this process, once."""
    if process.native_memory is not None:
        return
    process.native_memory = _NativeMemory(player)
    if process.had_regions:
        player.dm_marks(1, 0)  # so that it does not take their forwards for what is not allowed
    process.native_memory.follow_marks()
    player.dm_host_step(host_steps.make)
    player.dm_register_for_modes()
    holds = [ctypes.pointer(setting.holds) for setting in all_settings]
    player.dm_holds((ctypes.POINTER(ctypes.c_int) * len(holds))(*holds), len(holds))
    outside_python.here = player.dm_native_here
    outside_python.elsewhere = player.dm_native_elsewhere
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=count_calls, after_in_child=player.dm_after_fork)
