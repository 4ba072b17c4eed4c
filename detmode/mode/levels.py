"""The levels of modes: one for each time that a mode is entered and not yet left."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from detmode.process.dispatch import carried, carry

if TYPE_CHECKING:
    from detmode.mode.deterministic_mode import DeterministicMode

_LEVELS = "detmode.levels"
_is_kept, _get = torch._C._is_key_in_tls, torch._C._get_obj_in_tls

_local = threading.local()


def levels_here() -> list[DeterministicMode]:
    """Return the levels that the current thread has entered, which its blocks change.

    PyTorch carries the list on to the autograd threads of this thread's backward.
    """
    levels: list[DeterministicMode] | None = getattr(_local, "levels", None)
    if levels is None:
        levels = _local.levels = []
    carry(_LEVELS, levels)
    return levels


def open_levels() -> list[DeterministicMode]:
    """Return the levels of the current thread, or of the one whose backward this is."""
    levels: list[DeterministicMode] | None = carried(_LEVELS)
    return levels or []


def innermost() -> DeterministicMode | None:
    """Return the innermost level of the current thread, or of the one whose backward this is."""
    # As open_levels does, without its calls: each listed call asks.
    levels: list[DeterministicMode] = _get(_LEVELS) if _is_kept(_LEVELS) else []
    return levels[-1] if levels else None
