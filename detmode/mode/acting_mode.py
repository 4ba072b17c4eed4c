"""The mode that acts in a thread, whichever way it receives the calls."""

from __future__ import annotations

from torch._guards import TracingContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from detmode.mode import listed
from detmode.mode.base_mode import BaseMode
from detmode.mode.levels import innermost_mode, open_levels


def acting_mode() -> BaseMode | None:
    """Return the innermost mode that acts in this thread, or in this autograd thread."""
    level = listed.acting()
    if level is None:
        entered, stack = open_levels(), _get_current_dispatch_mode_stack()
        level = next((entry for entry in reversed(stack) if entry in entered), None)
    return None if level is None else level.mode


def mode_of_python() -> BaseMode | None:
    """Return the mode that meets what PyTorch's Python code calls, now or when it is compiled."""
    # A compiler turns dispatch modes off while it traces.
    return innermost_mode() if TracingContext.try_get() is not None else acting_mode()
