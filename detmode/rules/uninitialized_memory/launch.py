"""Resizing a quantized tensor: ATen's own operator, without the alert."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.environment.settings import deterministic_flag

_INTEGERS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


def resize_filled(
    self: Tensor,
    size: Sequence[int],
    memory_format: torch.memory_format | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::resize`` of a quantized tensor; memory that it did not have gets the largest integer.

    Raises:
        RuntimeError: as ATen, for a scheme that is not per tensor, or shared memory.
    """
    target = self.clone() if out is None else out
    held = target.untyped_storage().nbytes()
    resize_unfilled(target, size, memory_format, out=target)
    # Packed 2- and 4-bit dtypes are bytes here, all bits of which are set.
    integer = _INTEGERS.get(target.dtype, torch.uint8)
    storage = torch.empty(0, dtype=torch.uint8, device=target.device).set_(target.untyped_storage())
    storage[held:].view(integer).fill_(torch.iinfo(integer).max)
    return target


def resize_unfilled(
    self: Tensor,
    size: Sequence[int],
    memory_format: torch.memory_format | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The same with new memory as it was found."""
    target = self.clone() if out is None else out
    with deterministic_flag(False):
        return target.resize_(size, memory_format=memory_format)
