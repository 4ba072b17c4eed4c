"""Launches the backward kernel of 3-D max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Launch, Source, planned
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
from detmode.cuda.rows.chosen_windows import check_shapes, entries, gather_chosen, plan_chosen
from detmode.cuda.rows.pooling import Windows, triple, window_of
from detmode.cuda.rows.shares import Share
from detmode.table.conditions import FLOATING

KERNEL = "max_pool3d_backward"
SOURCE = Source(__file__, "kernels.cu", entries=entries(KERNEL))


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
    name = "max_pool3d_with_indices_backward"
    last = self.dim() == 5 and suggest_memory_format(self) is torch.channels_last_3d
    launch = plan(
        name, self.dtype, grad_output.dtype, indices.dtype,
        self.shape, grad_output.shape, indices.shape, last,
        tuple(kernel_size), tuple(stride), tuple(padding), tuple(dilation),
    )  # fmt: skip
    memory_format = torch.channels_last_3d if last else torch.contiguous_format
    return gather_chosen(launch, grad_output, self, indices, memory_format)


@planned
def plan(
    name: str,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    indices_dtype: torch.dtype,
    shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    indices_shape: tuple[int, ...],
    last: bool,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    share: Share | None = None,
) -> Launch:
    """The launch that still needs its tensors."""
    _check_dtypes(name, dtype, out_dtype, indices_dtype)
    # A plain tuple is cut quicker than a torch.Size.
    shape, out_shape = tuple(shape), tuple(out_shape)
    check_shapes(name, out_shape, shape, indices_shape, 3)
    sizes, out_sizes = shape[-3:], out_shape[-3:]
    if 0 in shape[-4:] or 0 in out_sizes:
        raise RuntimeError(
            f"{name}(): Expected no size of 0 behind the batch, but got {list(shape)} and "
            f"{list(out_shape)}"
        )
    windows, most = _windows(name, kernel_size, stride, padding, dilation)
    pooled = shape[:-3], sizes, out_sizes, not last, most
    return plan_chosen(SOURCE, KERNEL, dtype, *pooled, windows, share)


@lru_cache(maxsize=64)
def _check_dtypes(
    name: str, dtype: torch.dtype, out_dtype: torch.dtype, indices_dtype: torch.dtype
) -> None:
    check_scalar_type(dtype, out_dtype)
    check_scalar_type(torch.int64, indices_dtype)
    check_implemented(f"{name}_out_frame", dtype, FLOATING)


@lru_cache(maxsize=4096)
def _windows(
    name: str,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[Windows, int]:
    """The windows of three axes, and the largest number that the kernel works out of them."""
    kernel = triple("max_pool3d", "kernel_size", kernel_size)
    strides = triple("max_pool3d", "stride", stride) if len(stride) else kernel
    pads = triple("max_pool3d", "padding", padding)
    dilations = triple("max_pool3d", "dilation", dilation)
    if any(2 * pad > size for pad, size in zip(pads, kernel)):
        raise RuntimeError(f"{name}(): padding {pads} is more than half of the kernel, {kernel}")
    if min(*kernel, *strides, *dilations) <= 0 or min(pads) < 0:
        raise RuntimeError(
            f"{name}(): kernel size, stride and dilation should be "
            "greater than zero, and padding not negative, but got "
            f"{kernel}, {strides}, {dilations} and {pads}"
        )
    most = max(*strides, *pads, *map(mul, kernel, dilations))
    return Windows(map(window_of, kernel, strides, pads, dilations)), most
