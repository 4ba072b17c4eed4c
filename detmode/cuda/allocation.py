"""New tensors for kernels to write."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor


def empty(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """`torch.empty`, on the CPU filled with what a kernel would not write.

    Floating-point and complex elements are NaN, integers have the bytes 0xA5, bools are True, so an
    element that a kernel forgets shows. On CUDA it is `torch.empty`.
    """
    # PyTorch reads sizes one by one in two thirds of the time that it takes for a sequence.
    sizes = shape or ((),)
    return _poison(torch.empty(*sizes, dtype=dtype, device=device, memory_format=memory_format))


def new_empty(input: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """`input.new_empty(shape, dtype=dtype)`, on the CPU filled as by `empty`. Quicker than it."""
    sizes = shape or ((),)
    if dtype is None:
        return _poison(input.new_empty(*sizes))
    return _poison(input.new_empty(*sizes, dtype=dtype))


def empty_like(
    input: Tensor,
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """`torch.empty_like`, on the CPU filled as by `empty`."""
    return _poison(torch.empty_like(input, dtype=dtype, memory_format=memory_format))


def _poison(tensor: Tensor) -> Tensor:
    if tensor.is_cpu and type(tensor) is Tensor and tensor.numel() > 0:
        # By address: a dispatch mode that the caller works under must not see a fill.
        if tensor.is_floating_point() or tensor.is_complex():
            byte = 0xFF
        elif tensor.dtype is torch.bool:
            byte = 0x01
        else:
            byte = 0xA5
        storage = tensor.untyped_storage()
        ctypes.memset(storage.data_ptr(), byte, storage.nbytes())
    return tensor
