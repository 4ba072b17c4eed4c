"""New tensors for kernels to write, and copies for them to read, in memory that is not filled.

Under its flag PyTorch fills all new memory that an operator allocates
(``torch.utils.deterministic.fill_uninitialized_memory``). Kernels write all of theirs, so it comes
from the functions by which compiled code allocates, which fill nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from detmode.cuda.recording import thread

# Called with a tuple of sizes, one of strides, and the dtype; a GPU is the current one.
_of_compiled_code: Any = torch._C._dynamo.guards
_on_cpu: Callable[..., Tensor] = _of_compiled_code._empty_strided_cpu
on_cuda: Callable[..., Tensor] = _of_compiled_code._empty_strided_cuda
reinterpret: Callable[..., Tensor] = _of_compiled_code._reinterpret_tensor
_ROW_MAJOR = torch.contiguous_format
_PRESERVED = torch.preserve_format


def new_empty(
    input: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = _ROW_MAJOR,
) -> Tensor:
    """`torch.empty` on the device of `input`, and of its dtype if none is given.

    On the CPU it holds what a kernel would not write: floating-point and complex elements are NaN,
    integers have the bytes 0xA5, bools are True, so an element that a kernel forgets shows.
    """
    sizes = tuple(shape)
    return _new(input, sizes, _strides(sizes, memory_format), dtype or input.dtype)


def empty(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    memory_format: torch.memory_format = _ROW_MAJOR,
) -> Tensor:
    """`torch.empty`, filled on the CPU as `new_empty`, which is quicker where a tensor is there."""
    return new_empty(torch.empty(0, device=device), shape, dtype, memory_format)


def empty_like(
    input: Tensor,
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = _PRESERVED,
) -> Tensor:
    """`torch.empty_like`, filled on the CPU as `new_empty`."""
    sizes = tuple(input.shape)
    if memory_format is not _PRESERVED:
        strides = _strides(sizes, memory_format)
    elif input.is_contiguous():
        strides = input.stride()
    else:
        # PyTorch knows which it preserves.
        strides = torch.empty_like(input, device="meta").stride()
    return _new(input, sizes, strides, dtype or input.dtype)


def new_zeros(input: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """`input.new_zeros(shape, dtype=dtype)`."""
    return new_empty(input, shape, dtype).zero_()


def new_full(
    input: Tensor, shape: Sequence[int], value: complex, dtype: torch.dtype | None = None
) -> Tensor:
    """`input.new_full(shape, value, dtype=dtype)`."""
    return new_empty(input, shape, dtype).fill_(value)


def stretch(memory: Tensor, start: int, size: int) -> Tensor:
    """`memory[start : start + size]` of a contiguous vector: a view that autograd does not see."""
    return reinterpret(memory, (size,), (1,), start)


def new_arange(input: Tensor, end: int) -> Tensor:
    """`torch.arange(end)` on the device of `input`: int64."""
    return torch.arange(end, out=new_empty(input, (end,), torch.int64), device=input.device)


def clone(input: Tensor, *, memory_format: torch.memory_format = _PRESERVED) -> Tensor:
    """`input.clone(memory_format=memory_format)`."""
    return empty_like(input, memory_format=memory_format).copy_(input)


def contiguous(
    input: Tensor,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = _ROW_MAJOR,
) -> Tensor:
    """`input.to(dtype).contiguous(memory_format=memory_format)`, in one step."""
    is_formed = input.is_contiguous(memory_format=memory_format)
    if is_formed and (dtype is None or input.dtype is dtype):
        return input
    return empty_like(input, dtype=dtype, memory_format=memory_format).copy_(input)


def _strides(sizes: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    if memory_format is not _ROW_MAJOR:
        # channels_last, or channels_last_3d: the channels are behind all others.
        batch, channels, *others = sizes
        first, *between, last = _packed((batch, *others, channels), 0)
        return first, last, *between
    # A size of 0 counts as 1, as in PyTorch, only here.
    return _packed(sizes, 1)


def _packed(sizes: tuple[int, ...], least: int) -> tuple[int, ...]:
    strides, step = [1], 1
    for size in sizes[:0:-1]:
        step *= size or least
        strides.append(step)
    return tuple(strides[::-1]) if sizes else ()


def _new(
    input: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    if input.is_cpu:
        tensor = on_cpu(sizes, strides, dtype)
    elif not input.is_cuda:
        tensor = torch.empty_strided(sizes, strides, dtype=dtype, device=input.device)
    elif input.get_device() == torch._C._cuda_getDevice():
        tensor = on_cuda(sizes, strides, dtype)
    else:
        with torch.cuda.device_of(input):
            tensor = on_cuda(sizes, strides, dtype)
    if thread.recorder is not None:
        thread.recorder.allocated(tensor)
    return tensor


def on_cpu(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate on the CPU, filled as `new_empty` fills."""
    return _poison(_on_cpu(sizes, strides, dtype))


def _poison(tensor: Tensor) -> Tensor:
    if tensor.numel() > 0:
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
