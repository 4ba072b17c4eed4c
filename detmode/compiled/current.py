"""The mode for which the current thread compiles graphs."""

from __future__ import annotations

import torch

from detmode.mode.deterministic_mode import DeterministicMode

_MODE = "detmode.compiled"


class _Thread:
    """The purpose for which the current thread compiles graphs.

    PyTorch carries it to the autograd threads of the thread's backward, where activation
    checkpointing calls compiled functions again.
    """

    @property
    def mode(self) -> DeterministicMode | None:
        """The innermost mode."""
        return torch._C._get_obj_in_tls(_MODE) if torch._C._is_key_in_tls(_MODE) else None

    @property
    def key(self) -> str | None:
        """Dynamo guards on it."""
        mode = self.mode
        return None if mode is None else mode.compiles_for

    def compile_for(self, mode: DeterministicMode | None) -> None:
        """Compile the thread's graphs for ``mode`` from now on; for none if ``None``."""
        torch._C._stash_obj_in_tls(_MODE, mode)


thread = _Thread()
