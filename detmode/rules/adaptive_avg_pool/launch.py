"""Launches the backward kernels of adaptive average pooling."""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Source, contiguous, launch, magic_number, new_empty
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.chosen_windows import entries, entry_of, pooled_of
from detmode.cuda.rows.pooling import check_adaptive_dtypes, check_adaptive_sizes
from detmode.cuda.rows.shares import PER_THREAD, Share

KERNEL = "adaptive_avg_pool_backward"
SOURCE = Source(__file__, "kernels.cu", entries=entries(KERNEL))

OutMagics = namedtuple("OutMagics", "t h w")
"""The struct of ``kernels.cu``: the magic numbers of the numbers of windows."""


@raises_like_aten
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
    name = "adaptive_avg_pool2d_backward"
    check_adaptive_dtypes(name, grad_output, self)
    last = torch.channels_last if _channels_last(self) else torch.contiguous_format
    return gather(name, grad_output, self, 2, last)


@raises_like_aten
def adaptive_avg_pool3d_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """The gradient of ``_adaptive_avg_pool3d`` with respect to its input, contiguous.

    As :func:`adaptive_avg_pool2d_backward`, with (T, H, W) in the place of (H, W).
    """
    name = "adaptive_avg_pool3d_backward"
    check_adaptive_dtypes(name, grad_output, self)
    return gather(name, grad_output, self, 3, torch.contiguous_format)


def gather(
    name: str,
    grad_output: Tensor,
    self: Tensor,
    spatial: int,
    memory_format: torch.memory_format,
    share: Share | None = None,
) -> Tensor:
    """The gradient in so many dimensions; ``share``: of a thread, None for what sizes choose."""
    _check_shapes(name, grad_output.shape, self.shape, spatial)
    pooled = pooled_of(self.shape, grad_output.shape, spatial, memory_format)
    least = PER_THREAD if pooled.flat else 8 * PER_THREAD
    share = share or pooled.share(pooled.most_adaptive, least)
    shape = pooled.laid_out(share)
    grad_input = new_empty(self, self.shape, memory_format=memory_format)
    launch(
        SOURCE, entry_of(KERNEL, self.dtype, share), shape.threads,
        grad_output=contiguous(grad_output, memory_format=memory_format), grad_input=grad_input,
        shape=shape, magics=OutMagics(*map(magic_number, pooled.out_sizes)),
    )  # fmt: skip
    return grad_input


def _channels_last(self: Tensor) -> bool:
    """Return whether ATen's CUDA kernel makes a channels-last ``grad_input``, and that differs."""
    if self.is_contiguous() or suggest_memory_format(self) is not torch.channels_last:
        return False
    return self.shape[1] > 1 and self.shape[2] * self.shape[3] > 1


def _check_shapes(
    name: str, out_shape: tuple[int, ...], shape: tuple[int, ...], spatial: int
) -> None:
    check_adaptive_sizes(name, out_shape)
    if len(shape) not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"{name}(): Expected {spatial + 1}D or {spatial + 2}D tensor, but got {list(shape)}"
        )
    if len(out_shape) != len(shape):
        raise RuntimeError(
            f"{name}(): Expected dimensions {len(shape)} for `grad_output` but got dimensions "
            f"{len(out_shape)}"
        )
    if out_shape[:-spatial] != shape[:-spatial]:
        raise RuntimeError(
            f"{name}(): Expected grad_output to have the batch and channel sizes of self, "
            f"{list(shape)}, but got {list(out_shape)}"
        )
