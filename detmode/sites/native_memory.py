"""The player in C++, as the memories of forward calls know it."""

from __future__ import annotations

import ctypes
from typing import Protocol

from detmode.table.call_site import Note


class _NativeMemory(Protocol):
    """The memory of a player in C++, which makes calls and notes them for their backward.

    Attributes:
        has_calls: the number of the calls that are to be counted.
    """

    has_calls: ctypes.c_uint32

    def note(self, number: int, note: Note) -> bool:
        """Take over the note of a call that was made in Python; false if another made the node."""

    def noted(self) -> list[Note]:
        """Return the note of the forward call whose backward runs here, if there is one."""

    def follow_marks(self) -> None:
        """Let Python make all calls while an allow region is open, or a thread repeats calls."""

    def count_calls(self) -> None:
        """Count the calls that the player has made since."""


class _Process:
    """The state of all threads.

    Attributes:
        native_memory: that of the player in C++; ``None`` if there is none.
        regions: the open allow regions.
        had_regions: true once any thread has entered an allow region.
        repetitions: the blocks whose calls repeat the program's.
    """

    native_memory: _NativeMemory | None = None
    had_regions = False

    def __init__(self) -> None:
        self.regions: set[object] = set()
        self.repetitions: set[object] = set()

    def mark(self, marks: set[object], mark: object, is_open: bool) -> None:
        """Add a mark to the regions or the repetitions, or remove it."""
        (marks.add if is_open else marks.discard)(mark)
        if self.native_memory is not None:
            self.native_memory.follow_marks()


process = _Process()
