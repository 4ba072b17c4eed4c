"""PyTorch's stack of dispatch modes, of which the topmost receives a call first."""

from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from detmode.process.undo import Undo


def take_off(mode: TorchDispatchMode, before: list[TorchDispatchMode]) -> None:
    """Remove a mode from the stack, of which PyTorch only pops the topmost one.

    An outer block may end before an inner one, in a generator or a task.

    Args:
        mode: need not be on it: entering may have failed.
        before: empty at first, then the stack as it was, so that a second try knows it.
    """
    before[:] = before or _get_current_dispatch_mode_stack()
    if mode in before:
        while mode in _get_current_dispatch_mode_stack():
            torch._C._pop_torch_dispatch_stack(None)
        for above in before[1 + len(_get_current_dispatch_mode_stack()) :]:
            torch._C._push_on_torch_dispatch_stack(above)


def acting(mode: TorchDispatchMode) -> Undo:
    """Make a mode act in this thread: again, inside a call that it handles, or in another thread.

    Entering the mode itself would also write what the whole process remembers of modes.
    """
    undo = Undo(lambda _: torch._C._push_on_torch_dispatch_stack(mode))
    undo.note(functools.partial(take_off, mode, []))
    return undo
