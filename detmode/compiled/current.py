"""The mode for which the current thread compiles graphs."""

from __future__ import annotations

from detmode.mode.deterministic_mode import DeterministicMode
from detmode.mode.levels import innermost


class _Thread:
    """The purpose for which the current thread compiles graphs.

    In the autograd threads of its backward activation checkpointing calls compiled functions again.
    """

    @property
    def mode(self) -> DeterministicMode | None:
        """The innermost mode."""
        return innermost()

    @property
    def key(self) -> str | None:
        """Dynamo guards on it."""
        mode = self.mode
        return None if mode is None else mode.compiles_for


thread = _Thread()
