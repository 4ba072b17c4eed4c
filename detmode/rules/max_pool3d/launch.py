"""Launches the backward kernel of 3-D max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import mul

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Source
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
from detmode.cuda.rows.chosen_windows import (
    Pooled,
    check_shapes,
    entries,
    entry_of,
    few_entries,
    gather_chosen,
    pooled_of,
    write_chosen,
)
from detmode.cuda.rows.pooling import Window, triple, window_of
from detmode.cuda.rows.shares import PER_THREAD, Share
from detmode.table.conditions import FLOATING

NAME = "max_pool3d_with_indices_backward"
KERNEL = "max_pool3d_backward"
FEW = "max_pool3d_few"
SOURCE = Source(__file__, "kernels.cu", entries=(*entries(KERNEL), *few_entries(FEW)))
HOLDING, FEW_OF_HOLDING = 8, 8
"""Windows that hold an element, and elements for each window, from which both on those that windows
choose are few: a gather would look at each element as often."""


@raises_like_aten
def max_pool3d_with_indices_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """The gradient of ``max_pool3d_with_indices`` with respect to its input.

    Args:
        grad_output: (N, C, T_out, H_out, W_out) or (C, T_out, H_out, W_out), floating point.
        self: (N, C, T, H, W) or (C, T, H, W); its shape, dtype and memory format are read.
        kernel_size: one size for all axes, or three.
        stride: one for all axes, or three; empty means ``kernel_size``.
        padding: one for all axes, or three.
        dilation: one for all axes, or three.
        ceil_mode: already in the shape of ``grad_output``.
        indices: int64, like ``grad_output``: for each window the position in (T, H, W) it chose.

    Returns:
        A tensor like ``self``: channels last where it is and has a batch, contiguous otherwise.

    Raises:
        RuntimeError: shapes, dtypes, devices or arguments that do not go together.
        NotImplementedError: a dtype that is not floating point.
    """
    last = self.dim() == 5 and suggest_memory_format(self) is torch.channels_last_3d
    memory_format = torch.channels_last_3d if last else torch.contiguous_format
    window = kernel_size, stride, padding, dilation
    return gather(grad_output, self, indices, window, memory_format)


def gather(
    grad_output: Tensor,
    self: Tensor,
    indices: Tensor,
    window: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
    memory_format: torch.memory_format,
    share: Share | None = None,
) -> Tensor:
    """The gradient of the four arguments of windows; ``share``: None for what sizes choose."""
    _check(grad_output, self, indices)
    windows, most = _windows(*window)
    pooled = pooled_of(self.shape, grad_output.shape, 3, memory_format)
    if share is None and _choose_few(pooled, windows):
        return write_chosen(
            SOURCE, FEW, pooled, most, grad_output, self, indices, memory_format, **windows
        )
    share = share or pooled.share(most, 4 * PER_THREAD)
    return gather_chosen(
        SOURCE, entry_of(KERNEL, self.dtype, share), pooled.laid_out(share),
        grad_output, self, indices, memory_format, **windows,
    )  # fmt: skip


def _choose_few(pooled: Pooled, windows: dict[str, Window]) -> bool:
    holding = prod(window.holding for window in windows.values())
    return holding >= HOLDING and pooled.choose_few(FEW_OF_HOLDING)


def _check(grad_output: Tensor, self: Tensor, indices: Tensor) -> None:
    check_scalar_type(self.dtype, grad_output.dtype)
    check_scalar_type(torch.int64, indices.dtype)
    check_implemented(f"{NAME}_out_frame", self.dtype, FLOATING)
    check_shapes(NAME, grad_output.shape, self.shape, indices.shape, 3)
    if 0 in self.shape[-4:] or 0 in grad_output.shape[-3:]:
        raise RuntimeError(
            f"{NAME}(): Expected no size of 0 behind the batch, but got {list(self.shape)} and "
            f"{list(grad_output.shape)}"
        )


def _windows(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[dict[str, Window], int]:
    """The windows of three axes, and the largest number that the kernel works out of them."""
    kernel = triple("max_pool3d", "kernel_size", kernel_size)
    strides = triple("max_pool3d", "stride", stride) if len(stride) else kernel
    pads = triple("max_pool3d", "padding", padding)
    dilations = triple("max_pool3d", "dilation", dilation)
    if any(2 * pad > size for pad, size in zip(pads, kernel)):
        raise RuntimeError(f"{NAME}(): padding {pads} is more than half of the kernel, {kernel}")
    if min(*kernel, *strides, *dilations) <= 0 or min(pads) < 0:
        raise RuntimeError(
            f"{NAME}(): kernel size, stride and dilation should be "
            "greater than zero, and padding not negative, but got "
            f"{kernel}, {strides}, {dilations} and {pads}"
        )
    most = max(*strides, *pads, *map(mul, kernel, dilations))
    return dict(zip("thw", map(window_of, kernel, strides, pads, dilations))), most
