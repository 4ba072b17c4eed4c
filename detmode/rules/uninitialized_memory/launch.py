"""New memory that PyTorch does not fill: ATen's own operators, without alert, and the filling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.process.torch_settings import deterministic_flag

_INTEGERS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


def fill(tensor: Tensor, begin: int = 0) -> None:
    """Give the bytes of a tensor's storage from ``begin`` on the largest integer of its dtype."""
    # Of bit dtypes and those of less than a byte, all bits are set.
    integer = _INTEGERS.get(tensor.dtype, torch.uint8)
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    storage.set_(tensor.untyped_storage())
    storage[begin:].view(integer).fill_(torch.iinfo(integer).max)


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
    fill(target, held)
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
