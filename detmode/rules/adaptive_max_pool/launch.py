"""Launches the backward kernel of adaptive max pooling."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.conditions import FLOATING
from detmode.cuda import Source, ctype, empty, launch

PER_THREAD = 4
"""Planes (or channels) that one thread serves where there are many."""
MANY = 2**18
"""Elements from which a thread serves several planes: with fewer, more threads are worth more."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=tuple(
        f"adaptive_max_pool_backward<{ctype(dtype)}, {per_thread}>"
        for dtype in FLOATING
        for per_thread in (1, PER_THREAD)
    ),
)


def adaptive_max_pool2d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """The gradient of ``adaptive_max_pool2d`` with respect to its input.

    Args:
        grad_output: (N, C, H_out, W_out) or (C, H_out, W_out), floating point.
        self: (N, C, H, W) or (C, H, W); its shape, dtype and memory format are read.
        indices: int64, like ``grad_output``: for each window the position in (H, W) it chose.

    Returns:
        A tensor like ``self``: channels last where it is and has a batch, contiguous otherwise.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not go together.
        NotImplementedError: a dtype that is not floating point.
    """
    _check("adaptive_max_pool2d_backward", grad_output, self, indices, 2)
    last = self.dim() == 4 and suggest_memory_format(self) is torch.channels_last
    return _gather(grad_output, self, indices, 2, last)


def adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """The gradient of ``adaptive_max_pool3d`` with respect to its input.

    Args:
        grad_output: (N, C, T_out, H_out, W_out) or (C, T_out, H_out, W_out), floating point.
        self: (N, C, T, H, W) or (C, T, H, W); its shape and dtype are read.
        indices: int64, like ``grad_output``: for each window the position in (T, H, W) it chose.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not go together.
        NotImplementedError: a dtype that is not floating point.
    """
    _check("adaptive_max_pool3d_backward", grad_output, self, indices, 3)
    return _gather(grad_output, self, indices, 3, last=False)


def _gather(grad_output: Tensor, self: Tensor, indices: Tensor, spatial: int, last: bool) -> Tensor:
    memory_format = torch.channels_last if last else torch.contiguous_format
    grad_input = empty(self.shape, self.dtype, self.device, memory_format)
    outer, inner = self.shape[:-spatial].numel(), 1
    if last:
        outer, inner = self.shape[0], self.shape[1]
    shared = inner if inner > 1 else outer
    many = shared >= 4 * PER_THREAD and grad_input.numel() >= MANY
    per_thread = PER_THREAD if many else 1
    missing = (1,) * (3 - spatial)
    launch(
        SOURCE,
        f"adaptive_max_pool_backward<{ctype(self.dtype)}, {per_thread}>",
        grad_input.numel() // max(shared, 1) * -(-shared // per_thread),
        grad_output.contiguous(memory_format=memory_format),
        indices.contiguous(memory_format=memory_format),
        grad_input,
        outer,
        inner,
        *missing,
        *self.shape[-spatial:],
        *missing,
        *grad_output.shape[-spatial:],
    )
    return grad_input


def _check(name: str, grad_output: Tensor, self: Tensor, indices: Tensor, spatial: int) -> None:
    if 0 in grad_output.shape[1:]:
        raise RuntimeError(
            f"{name}(): Expected grad_output to have non-zero size for non-batch dimensions, but "
            f"grad_output has sizes {list(grad_output.shape)}"
        )
    if self.dim() not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"{name}(): Expected {spatial + 1}D or {spatial + 2}D tensor, but got "
            f"{list(self.shape)}"
        )
    if grad_output.dim() != self.dim() or grad_output.shape[:-spatial] != self.shape[:-spatial]:
        raise RuntimeError(
            f"{name}(): Expected grad_output to have the batch and channel sizes of self, "
            f"{list(self.shape)}, but got {list(grad_output.shape)}"
        )
    if indices.shape != grad_output.shape:
        raise RuntimeError(
            f"{name}(): Expected indices to have the shape of grad_output, "
            f"{list(grad_output.shape)}, but got {list(indices.shape)}"
        )
    if grad_output.dtype != self.dtype:
        raise RuntimeError(
            f"{name}(): Expected dtype {self.dtype} for `grad_output` but got dtype "
            f"{grad_output.dtype}"
        )
    if indices.dtype != torch.int64:
        raise RuntimeError(f"expected scalar type {torch.int64} but found {indices.dtype}")
    if not grad_output.device == indices.device == self.device:
        raise RuntimeError(
            f"{name}(): Expected all tensors to be on the same device, but got "
            f"{grad_output.device}, {self.device} and {indices.device}"
        )
    if self.dtype not in FLOATING:
        raise NotImplementedError(f'"{name}_cuda" not implemented for {self.dtype}')
