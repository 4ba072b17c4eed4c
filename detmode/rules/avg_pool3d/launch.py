"""Launches the backward kernel of 3-D average pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from detmode.cuda import Source, contiguous, launch, new_empty
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
from detmode.cuda.rows.chosen_windows import Pooled, entries, entry_of, pooled_of
from detmode.cuda.rows.pooling import Window, pooled_size, triple, window_of
from detmode.cuda.rows.shares import Share
from detmode.table.conditions import FLOATING

QUICK = 2**20
"""The largest divisor of all windows that divides by its reciprocal, to the bits of a division."""

Windows: TypeAlias = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]
"""Of three axes their sizes, strides and padding."""

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
    window = kernel_size, stride, padding
    return gather(grad_output, self, window, ceil_mode, count_include_pad, divisor_override)


def gather(
    grad_output: Tensor,
    self: Tensor,
    window: tuple[Sequence[int], Sequence[int], Sequence[int]],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    share: Share | None = None,
) -> Tensor:
    """The gradient of the three arguments of windows; ``share``: None for what sizes choose."""
    windows, axes = _windows(*window, divisor_override)
    shape, out_shape = tuple(self.shape), tuple(grad_output.shape)
    _check_shapes(out_shape, shape, windows, ceil_mode)
    check_scalar_type(self.dtype, grad_output.dtype)
    check_implemented("avg_pool3d_backward_out_frame", self.dtype, FLOATING)
    pooled = pooled_of(shape, out_shape, 3)
    divisor = divisor_override or _shared_divisor(pooled, windows, ceil_mode, count_include_pad)
    kernel, strides, pads = windows
    share = share or pooled.share(max(math.prod(kernel), *strides, *pads))
    layout = pooled.laid_out(share)
    grad_input = new_empty(self, shape)
    launch(
        SOURCE, entry_of(KERNEL, self.dtype, share), layout.threads,
        grad_output=contiguous(grad_output), grad_input=grad_input, shape=layout, **axes,
        count_include_pad=count_include_pad, shared_divisor=divisor,
        reciprocal=1 / divisor if 0 < abs(divisor) <= QUICK else 0.0,
    )  # fmt: skip
    return grad_input


def _windows(
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    divisor_override: int | None,
) -> tuple[Windows, dict[str, Window]]:
    """The windows of three axes: their sizes, strides and padding; and as the kernel takes them."""
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
    windows = kernel, strides, pads
    return windows, dict(zip("thw", map(window_of, *windows)))


def _shared_divisor(
    pooled: Pooled, windows: Windows, ceil_mode: bool, count_include_pad: bool
) -> int:
    """The divisor of windows that are all inside what counts; 0 where they differ.

    ``ceil_mode`` lets the last ones reach beyond the padding.
    """
    kernel, _, pads = windows
    if not count_include_pad and any(pads):
        return 0
    if ceil_mode:
        for size, out, length, step, pad in zip(pooled.sizes, pooled.out_sizes, *windows):
            if (out - 1) * step + length > size + 2 * pad:
                return 0
    return math.prod(kernel)


def _check_shapes(
    out_shape: tuple[int, ...], shape: tuple[int, ...], windows: Windows, ceil_mode: bool
) -> None:
    if len(shape) not in (4, 5):
        raise RuntimeError("non-empty 4D or 5D (batch mode) tensor expected for input")
    if len(out_shape) != len(shape) or out_shape[:-3] != shape[:-3]:
        raise RuntimeError(
            "avg_pool3d_backward(): Expected grad_output to have the batch and channel sizes of "
            f"self, {list(shape)}, but got {list(out_shape)}"
        )
    is_empty = 0 in shape[-4:]
    for size, out, length, step, pad in zip(shape[-3:], out_shape[-3:], *windows):
        if is_empty or pooled_size(size, length, step, pad, ceil_mode) != out:
            kernel, strides, pads = windows
            raise RuntimeError(
                f"avg_pool3d_backward(): windows of {kernel}, {strides} apart, with padding {pads} "
                f"do not make {list(out_shape)} of {list(shape)}"
            )
