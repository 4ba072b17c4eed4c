"""Calls that DTensor makes for itself, and not for the program."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

_PROPAGATION = "torch.distributed.tensor._sharding_prop"
_FILE = os.path.join(os.path.dirname(torch.__file__), *_PROPAGATION.split(".")[1:]) + ".py"
_WRAPPER = "_c10d_functional::_wrap_tensor_autograd"
_get_mode = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE


def is_propagation() -> bool:
    """Return whether DTensor makes the current call on fake tensors, to learn a result's form.

    It remembers what it has learned, so a later run of the same program makes fewer such calls.
    """
    if _get_mode(_FAKE) is None or _PROPAGATION not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _FILE:
            return True
        frame = frame.f_back
    return False


def is_wrapper(func: torch._ops.OpOverload) -> bool:
    """Return whether an operator only wraps the unfinished result of a functional collective."""
    return func._schema.name == _WRAPPER
