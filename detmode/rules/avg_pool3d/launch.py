"""Launches the backward kernel of 3-D average pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat

import torch
from torch import Tensor

from detmode.cuda import Launch, Source, UnsizedLaunch, contiguous, new_empty, planned
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
from detmode.cuda.rows.chosen_windows import entries, pooled_shape, unsized
from detmode.cuda.rows.pooling import Sizes, Windows, pooled_size, triple, window_of
from detmode.cuda.rows.shares import Share, choose_share
from detmode.table.conditions import FLOATING

QUICK = 2**20
"""The largest divisor of all windows that divides by its reciprocal, to the bits of a division."""

KERNEL = "avg_pool3d_backward"
SOURCE = Source(__file__, "kernels.cu", entries=entries(KERNEL))


@raises_like_aten
def avg_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """The gradient of ``avg_pool3d`` with respect to its input.

    Args:
        grad_output: (N, C, T_out, H_out, W_out) or (C, T_out, H_out, W_out), floating point.
        self: (N, C, T, H, W) or (C, T, H, W); its shape and dtype are read.
        kernel_size: one size for all axes, or three.
        stride: one for all axes, or three; empty means ``kernel_size``.
        padding: one for all axes, or three.
        ceil_mode: already in the shape of ``grad_output``.
        count_include_pad: whether padding counts in a window's divisor.
        divisor_override: the divisor of all windows.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        RuntimeError: shapes, dtypes, devices or arguments that do not go together.
        NotImplementedError: a dtype that is not floating point.
    """
    launch = plan(
        grad_output.shape, self.shape, grad_output.dtype, self.dtype,
        tuple(kernel_size), tuple(stride), tuple(padding),
        ceil_mode, count_include_pad, divisor_override,
    )  # fmt: skip
    grad_input = new_empty(self, self.shape)
    launch(grad_output=contiguous(grad_output), grad_input=grad_input)
    return grad_input


@planned
def plan(
    out_shape: tuple[int, ...],
    shape: tuple[int, ...],
    out_dtype: torch.dtype,
    dtype: torch.dtype,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    share: Share | None = None,
) -> Launch:
    """The launch that still needs its tensors."""
    windows, kernel, strides, pads, inside, most = _windows(
        kernel_size, stride, padding, divisor_override
    )
    # A plain tuple is cut quicker than a torch.Size.
    shape, out_shape = tuple(shape), tuple(out_shape)
    _check_shapes(out_shape, shape)
    volume, out_volume = shape[-3:], out_shape[-3:]
    pooled = tuple(map(pooled_size, volume, kernel, strides, pads, repeat(ceil_mode)))
    if pooled != out_volume or 0 in shape[-4:]:
        raise RuntimeError(
            f"avg_pool3d_backward(): windows of {kernel}, {strides} apart, with padding {pads} "
            f"do not make {list(out_shape)} of {list(shape)}"
        )
    # Windows that are all inside what counts have the same divisor; ceil_mode lets the last reach
    # beyond the padding.
    alike = count_include_pad or not any(pads)
    if alike and ceil_mode:
        alike = all(
            (out - 1) * step + window <= size + 2 * pad
            for size, out, window, step, pad in zip(volume, out_volume, kernel, strides, pads)
        )
    divisor = divisor_override or (inside if alike else 0)
    t, h, w = volume
    planes, positions = math.prod(shape[:-3]), t * h * w
    numel = planes * positions
    share = share or choose_share(planes, numel, math.prod(out_shape), most)
    threads = -(-planes // share.per_thread) * positions
    launch = _unsized(dtype, out_dtype, share, windows, count_include_pad, divisor)
    return launch.of_threads(threads, pooled_shape(threads, planes, 1, volume, out_volume, 1))


@planned
def _unsized(
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    share: Share,
    windows: Windows,
    count_include_pad: bool,
    divisor: int,
) -> UnsizedLaunch:
    """The launch without its shape; raise for dtypes that ATen's kernel does not take."""
    check_scalar_type(dtype, out_dtype)
    check_implemented("avg_pool3d_backward_out_frame", dtype, FLOATING)
    return unsized(
        SOURCE, KERNEL, dtype, share, ("shape",), windows,
        count_include_pad=count_include_pad, shared_divisor=divisor,
        reciprocal=1 / divisor if 0 < abs(divisor) <= QUICK else 0.0,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _windows(
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    divisor_override: int | None,
) -> tuple[Windows, Sizes, Sizes, Sizes, int, int]:
    """The windows of three axes; their kernel size, stride and padding; what a window holds at
    most; and the largest number that the kernel works out of all these.
    """
    kernel = triple("avg_pool3d", "kernel_size", kernel_size)
    strides = triple("avg_pool3d", "stride", stride) if len(stride) else kernel
    pads = triple("avg_pool3d", "padding", padding)
    if divisor_override == 0:
        raise RuntimeError("divisor must be not zero")
    if min(*kernel, *strides) <= 0 or min(pads) < 0:
        raise RuntimeError(
            "avg_pool3d_backward(): kernel size and stride should be greater than zero, and "
            f"padding not negative, but got {kernel}, {strides} and {pads}"
        )
    windows, inside = Windows(map(window_of, kernel, strides, pads)), math.prod(kernel)
    return windows, kernel, strides, pads, inside, max(inside, *strides, *pads)


def _check_shapes(out_shape: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if len(shape) not in (4, 5):
        raise RuntimeError("non-empty 4D or 5D (batch mode) tensor expected for input")
    if len(out_shape) != len(shape) or out_shape[:-3] != shape[:-3]:
        raise RuntimeError(
            "avg_pool3d_backward(): Expected grad_output to have the batch and channel sizes of "
            f"self, {list(shape)}, but got {list(out_shape)}"
        )
