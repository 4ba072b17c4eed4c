"""The part shared by the launchers: checks, and the launch with a tile of grad_input per block."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, launch_blocks, new_empty, new_zeros
from detmode.cuda.checks import check_implemented
from detmode.cuda.rows.extents import sizes_of

DTYPES = (torch.float16, torch.float32, torch.float64)
"""Dtypes that torchvision's CUDA kernels take."""
CHANNELS = 16
"""Channels that a thread of roi_align owns: they share a bin's weights."""

_NAMES = tuple(map(ctype, DTYPES))
_ON_POOLS = ("roi_pool_scatter", "finish_sums", "ps_roi_pool_backward")

ALIGN = Source(
    __file__,
    "align.cu",
    entries=tuple(
        f"roi_align_backward<{name}, {kind}>"
        for name in _NAMES
        for kind in (f"{CHANNELS}, false", "1, true")
    ),
)
POOL = Source(
    __file__,
    "pool.cu",
    entries=("ps_check_mapping", *(f"{kernel}<{name}>" for kernel in _ON_POOLS for name in _NAMES)),
)
TILE = (8, 32)
"""Rows and columns of a block's tile, a thread for each pixel; regions.cuh says the same."""
MAX_GRID = 65536


def check(name: str, grad: Tensor, rois: Tensor, bins: Sequence[int], **like_grad: Tensor) -> None:
    """Check what torchvision checks, and that nothing is read out of bounds.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        NotImplementedError: torchvision's CUDA kernel does not take the dtype.
    """
    if rois.dim() != 2 or rois.shape[1] != 5:
        raise RuntimeError(f"{name}: rois should have shape [K, 5], but got {list(rois.shape)}")
    if grad.dtype != rois.dtype:
        raise RuntimeError(
            f"{name}: grad should have the same type as rois, but got {grad.dtype} and {rois.dtype}"
        )
    if grad.shape != (rois.shape[0], *bins):
        raise RuntimeError(
            f"{name}: grad should have shape {[rois.shape[0], *bins]}, but got {list(grad.shape)}"
        )
    for argument, tensor in like_grad.items():
        if tensor.shape != grad.shape or tensor.dtype != torch.int32:
            raise RuntimeError(
                f"{name}: {argument} should be int32 of the shape of grad, "
                f"{list(grad.shape)}, but got {tensor.dtype} {list(tensor.shape)}"
            )
    if any(tensor.device != grad.device for tensor in (rois, *like_grad.values())):
        raise RuntimeError(f"{name}: all tensors should be on the same device")
    check_implemented(name, grad.dtype, DTYPES)


def check_mapped(
    name: str, grad: Tensor, rois: Tensor, bins: tuple[int, int, int], channel_mapping: Tensor
) -> None:
    """Check an operator for which a channel of the input belongs to one bin, and that it does.

    On a GPU the second check traps.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        NotImplementedError: torchvision's CUDA kernel does not take the dtype.
    """
    channels, *pooled = bins
    share = channels // prod(pooled) if prod(pooled) else 0
    check(name, grad, rois, (share, *pooled), channel_mapping=channel_mapping)
    n = channel_mapping.numel()
    if n:
        mapping, size = contiguous(channel_mapping), channel_mapping[0].numel()
        launch(POOL, "ps_check_mapping", n, channel_mapping=mapping, n=n, bins=size)


def gather(
    source: Source,
    entry: str,
    grad: Tensor,
    rois: Tensor,
    shape: tuple[int, int, int, int],
    per_thread: int,
    **how: Any,
) -> Tensor:
    """grad_input of ``shape``; a thread owns a pixel in ``per_thread`` channels."""
    if grad.numel() == 0:
        return new_zeros(grad, shape)
    images, channels, height, width = shape
    grad_input = new_empty(grad, shape)
    tiles = -(-height // TILE[0]) * -(-width // TILE[1])
    blocks = min(images * -(-channels // per_thread) * tiles, MAX_GRID)
    launch_blocks(
        source, entry, blocks, TILE[0] * TILE[1],
        grad=grad, rois=contiguous(rois), grad_input=grad_input,
        bins=sizes_of(grad.shape), shape=sizes_of(shape), **how,
    )  # fmt: skip
    return grad_input
