"""The player in C++, as the memories of forward calls know it."""

from __future__ import annotations

from typing import Protocol

from detmode.table.call_site import Note


class _NativeMemory(Protocol):
    """The memory of a player in C++, which makes calls and notes them for their backward."""

    def note(self, number: int, note: Note) -> bool:
        """Take over the note of a call that was made in Python; false if another made the node.

        Args:
            number: of its autograd node.
            note: the facts.
        """

    def noted(self) -> list[Note]:
        """Return the note of the forward call whose backward runs here, if there is one."""

    def region_opened(self) -> None:
        """Let Python make all calls, which looks at the regions."""

    def count_calls(self) -> None:
        """Count the calls that the player has made since."""


class _Process:
    """The state of all threads.

    Attributes:
        native_memory: that of the player in C++; ``None`` if there is none.
        had_regions: true once any thread has entered an allow region.
    """

    native_memory: _NativeMemory | None = None
    had_regions = False


process = _Process()
