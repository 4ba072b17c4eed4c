"""The mode for which the current thread compiles graphs."""

from __future__ import annotations

import ctypes

import torch

from detmode.mode.deterministic_mode import DeterministicMode
from detmode.table.rule_table import TORCH_VERSION

_MODES = "detmode.compiled"

_TAKES_OVER = TORCH_VERSION < (2, 12)
"""Up to PyTorch 2.11 the thread's storage gives back a reference that it has not taken."""


class _Thread:
    """The purpose for which the current thread compiles graphs.

    PyTorch carries the list of the thread's modes to the autograd threads of its backward, where
    activation checkpointing calls compiled functions again.
    """

    @property
    def mode(self) -> DeterministicMode | None:
        """The innermost mode."""
        if not torch._C._is_key_in_tls(_MODES):
            return None
        modes: list[DeterministicMode] = torch._C._get_obj_in_tls(_MODES)
        return modes[-1] if modes else None

    @property
    def key(self) -> str | None:
        """Dynamo guards on it."""
        mode = self.mode
        return None if mode is None else mode.compiles_for

    def follow(self, modes: list[DeterministicMode]) -> None:
        """Compile the thread's graphs for the last of ``modes``, which changes with its blocks."""
        if _TAKES_OVER:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(modes))
        torch._C._stash_obj_in_tls(_MODES, modes)


thread = _Thread()
