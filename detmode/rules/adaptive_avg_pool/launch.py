"""Launches the backward kernels of adaptive average pooling."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Source, ctype, empty, index_ctype, launch, magic_numbers
from detmode.cuda.checks import check_devices, check_implemented
from detmode.table.conditions import FLOATING

PER_THREAD = 8
"""Planes (or channels) that one thread serves where there are many."""
MANY = 2**18
"""Elements from which a thread serves several planes; with fewer, more threads are better."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=tuple(
        f"{kernel}<{ctype(dtype)}, {per_thread}, {index}>"
        for kernel in ("adaptive_avg_pool_backward", "adaptive_avg_pool_backward_channels_last")
        for dtype in FLOATING
        for per_thread in (1, PER_THREAD)
        for index in ("int32_t", "int64_t")
    ),
)


AxisSizes = namedtuple("AxisSizes", "size magic out out_magic")
"""The inputs and the outputs of one axis, each with its magic number."""


def adaptive_avg_pool2d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """The gradient of ``_adaptive_avg_pool2d`` with respect to its input.

    Args:
        grad_output: (N, C, H_out, W_out) or (C, H_out, W_out), floating point.
        self: (N, C, H, W) or (C, H, W); its shape, dtype and memory format are read.

    Returns:
        A tensor like ``self``: channels last where ATen gives that, contiguous otherwise.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not go together.
        NotImplementedError: a dtype that is not floating point.
    """
    _check("adaptive_avg_pool2d_backward", grad_output, self, 2)
    if not _channels_last(self):
        return _contiguous(grad_output, self, 2)
    channels = self.shape[1]
    grad_input = empty(self.shape, self.dtype, self.device, torch.channels_last)
    many = channels >= 8 * PER_THREAD and grad_input.numel() >= MANY
    per_thread = PER_THREAD if many else 1
    index = _index_ctype(grad_output, self, 2)
    lanes = -(-channels // per_thread)
    threads = grad_input.numel() // channels * lanes
    (lanes_magic,) = magic_numbers(lanes)
    axes = _axes(grad_output, self, 2)
    one_magic = axes.pop("t").magic
    launch(
        SOURCE,
        f"adaptive_avg_pool_backward_channels_last<{ctype(self.dtype)}, {per_thread}, {index}>",
        threads,
        grad_output=grad_output.contiguous(memory_format=torch.channels_last),
        grad_input=grad_input, n=threads, channels=channels, **axes,
        one_magic=one_magic, lane_count=lanes, lanes_magic=lanes_magic,
    )  # fmt: skip
    return grad_input


def adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """The gradient of ``_adaptive_avg_pool3d`` with respect to its input.

    Args:
        grad_output: (N, C, T_out, H_out, W_out) or (C, T_out, H_out, W_out), floating point.
        self: (N, C, T, H, W) or (C, T, H, W); its shape and dtype are read.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not go together.
        NotImplementedError: a dtype that is not floating point.
    """
    _check("adaptive_avg_pool3d_backward", grad_output, self, 3)
    return _contiguous(grad_output, self, 3)


def _contiguous(grad_output: Tensor, self: Tensor, spatial: int) -> Tensor:
    grad_input = empty(self.shape, self.dtype, self.device)
    planes = self.shape[:-spatial].numel()
    many = planes >= PER_THREAD and grad_input.numel() >= MANY
    per_thread = PER_THREAD if many else 1
    index = _index_ctype(grad_output, self, spatial)
    threads = -(-planes // per_thread) * self.shape[-spatial:].numel()
    launch(
        SOURCE, f"adaptive_avg_pool_backward<{ctype(self.dtype)}, {per_thread}, {index}>", threads,
        grad_output=grad_output.contiguous(), grad_input=grad_input, n=threads, planes=planes,
        **_axes(grad_output, self, spatial),
    )  # fmt: skip
    return grad_input


def _axes(grad_output: Tensor, self: Tensor, spatial: int) -> dict[str, Any]:
    """The kernels' arguments that describe their axes; a missing one has the sizes 1."""
    missing = (1,) * (3 - spatial)
    sizes = (*missing, *self.shape[-spatial:]), (*missing, *grad_output.shape[-spatial:])
    ins, outs = (zip(along, magic_numbers(*along)) for along in sizes)
    t, h, w = (AxisSizes(*size_in, *size_out) for size_in, size_out in zip(ins, outs))
    (positions_magic,) = magic_numbers(self.shape[-spatial:].numel())
    return {"t": t, "h": h, "w": w, "positions_magic": positions_magic}


def _index_ctype(grad_output: Tensor, self: Tensor, spatial: int) -> str:
    """The kernels multiply a position of one tensor by the other's size, of each axis."""
    axes = zip(self.shape[-spatial:], grad_output.shape[-spatial:])
    products = ((size_in + 1) * (size_out + 1) for size_in, size_out in axes)
    return index_ctype(grad_output.numel(), self.numel(), *products)


def _channels_last(self: Tensor) -> bool:
    """Return whether ATen's CUDA kernel makes a channels-last ``grad_input``, and that differs."""
    if self.is_contiguous() or suggest_memory_format(self) is not torch.channels_last:
        return False
    return self.shape[1] > 1 and self.shape[2] * self.shape[3] > 1


def _check(name: str, grad_output: Tensor, self: Tensor, spatial: int) -> None:
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
    if grad_output.dim() != self.dim():
        raise RuntimeError(
            f"{name}(): Expected dimensions {self.dim()} for `grad_output` but got dimensions "
            f"{grad_output.dim()}"
        )
    if grad_output.shape[:-spatial] != self.shape[:-spatial]:
        raise RuntimeError(
            f"{name}(): Expected grad_output to have the batch and channel sizes of self, "
            f"{list(self.shape)}, but got {list(grad_output.shape)}"
        )
    if grad_output.dtype != self.dtype:
        raise RuntimeError(
            f"{name}(): Expected dtype {self.dtype} for `grad_output` but got dtype "
            f"{grad_output.dtype}"
        )
    check_devices(name, grad_output, self)
    check_implemented(f"{name}_cuda", self, FLOATING)
