"""Launches the backward kernel of adaptive max pooling."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Source
from detmode.cuda.checks import check_scalar_type, raises_like_aten
from detmode.cuda.rows.chosen_windows import (
    check_shapes,
    entries,
    entry_of,
    few_entries,
    gather_chosen,
    pooled_of,
    write_chosen,
)
from detmode.cuda.rows.pooling import check_adaptive_dtypes, check_adaptive_sizes
from detmode.cuda.rows.shares import PER_THREAD, Share

KERNEL = "adaptive_max_pool_backward"
FEW = "adaptive_max_pool_few"
SOURCE = Source(__file__, "kernels.cu", entries=(*entries(KERNEL), *few_entries(FEW)))


@raises_like_aten
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
    memory_format = torch.channels_last if last else torch.contiguous_format
    return gather(grad_output, self, indices, 2, memory_format)


@raises_like_aten
def adaptive_max_pool3d_backward(grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """The gradient of ``adaptive_max_pool3d`` with respect to its input, contiguous.

    As :func:`adaptive_max_pool2d_backward`, with (T, H, W) in the place of (H, W).
    """
    _check("adaptive_max_pool3d_backward", grad_output, self, indices, 3)
    return gather(grad_output, self, indices, 3, torch.contiguous_format)


def gather(
    grad_output: Tensor,
    self: Tensor,
    indices: Tensor,
    spatial: int,
    memory_format: torch.memory_format,
    share: Share | None = None,
) -> Tensor:
    """The gradient in so many dimensions; ``share``: of a thread, None for what sizes choose."""
    pooled = pooled_of(self.shape, grad_output.shape, spatial, memory_format)
    tensors, most = (grad_output, self, indices), pooled.most_adaptive
    if share is None and pooled.choose_few():
        return write_chosen(SOURCE, FEW, pooled, most, *tensors, memory_format)
    share = share or pooled.share(most, 4 * PER_THREAD)
    entry = entry_of(KERNEL, self.dtype, share)
    return gather_chosen(SOURCE, entry, pooled.laid_out(share), *tensors, memory_format)


def _check(name: str, grad_output: Tensor, self: Tensor, indices: Tensor, spatial: int) -> None:
    check_adaptive_sizes(name, grad_output.shape)
    check_shapes(name, grad_output.shape, self.shape, indices.shape, spatial)
    check_scalar_type(torch.int64, indices.dtype)
    check_adaptive_dtypes(name, grad_output, self)
