"""Launchers of the backward of pooling over regions."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from torch import Tensor

from detmode.cuda import contiguous, ctype, new_empty, sum_to_zeros
from detmode.cuda.rows.extents import strides_of
from detmode.rules.roi_pools.gather import ALIGN, CHANNELS, POOL, check, check_mapped, gather

PooledPlanes = namedtuple("PooledPlanes", "images channels pixels bins")
"""The images, their channels, and of each the pixels in grad_input and the bins of a region."""


def roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """``torchvision::_roi_align_backward``, for float16, float32 and float64.

    ``grad`` is [K, channels, pooled_height, pooled_width], ``rois`` [K, 5] of the same dtype: the
    image, then x1, y1, x2, y2. The result is [batch_size, channels, height, width], contiguous.

    Raises:
        RuntimeError: shapes or dtypes do not fit.
        NotImplementedError: torchvision's CUDA kernel does not take the dtype.
    """
    shape = (batch_size, channels, height, width)
    check("roi_align_backward_kernel", grad, rois, (channels, pooled_height, pooled_width))
    entry = f"roi_align_backward<{ctype(grad.dtype)}, {CHANNELS}, false>"
    how = _sampled(grad, spatial_scale, sampling_ratio, aligned)
    return gather(ALIGN, entry, grad, rois, shape, CHANNELS, **how)


def ps_roi_align_backward(
    grad: Tensor,
    rois: Tensor,
    channel_mapping: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor:
    """``torchvision::_ps_roi_align_backward``; ``channel_mapping`` is the forward's, int32.

    Other arguments, and errors, are those of :func:`roi_align_backward`.
    """
    shape = (batch_size, channels, height, width)
    bins = (channels, pooled_height, pooled_width)
    check_mapped("ps_roi_align_backward_kernel", grad, rois, bins, channel_mapping)
    entry = f"roi_align_backward<{ctype(grad.dtype)}, 1, true>"
    how = _sampled(grad, spatial_scale, sampling_ratio, True)
    return gather(ALIGN, entry, grad, rois, shape, 1, **how)


def _sampled(
    grad: Tensor, spatial_scale: float, sampling_ratio: int, aligned: bool
) -> dict[str, Any]:
    """Return the arguments of ``roi_align_backward`` other than sizes."""
    return {
        "grad_stride": strides_of(grad.stride()),
        "spatial_scale": float(spatial_scale),
        "sampling_ratio": sampling_ratio,
        "aligned": aligned,
    }


def roi_pool_backward(
    grad: Tensor,
    rois: Tensor,
    argmax: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor:
    """``torchvision::_roi_pool_backward``; ``argmax`` is int32: a pixel, or -1 for none.

    Other arguments, and errors, are those of :func:`roi_align_backward`.
    """
    bins = (channels, pooled_height, pooled_width)
    check("roi_pool_backward_kernel", grad, rois, bins, argmax=argmax)
    grad_input = new_empty(grad, (batch_size, channels, height, width))
    pooled = pooled_height * pooled_width
    # Every bin may have chosen the same pixel of its image and channel.
    sum_to_zeros(
        POOL, f"roi_pool_scatter<{ctype(grad.dtype)}>", grad.numel(),
        result=grad_input, addends=rois.shape[0] * pooled, grad=contiguous(grad),
        rois=contiguous(rois), argmax=contiguous(argmax), n=grad.numel(),
        planes=PooledPlanes(batch_size, channels, height * width, pooled),
    )  # fmt: skip
    return grad_input


def ps_roi_pool_backward(
    grad: Tensor,
    rois: Tensor,
    channel_mapping: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor:
    """``torchvision::_ps_roi_pool_backward``; ``channel_mapping`` is the forward's, int32.

    Other arguments, and errors, are those of :func:`roi_align_backward`.
    """
    shape = (batch_size, channels, height, width)
    bins = (channels, pooled_height, pooled_width)
    check_mapped("ps_roi_pool_backward_kernel", grad, rois, bins, channel_mapping)
    entry = f"ps_roi_pool_backward<{ctype(grad.dtype)}>"
    return gather(POOL, entry, contiguous(grad), rois, shape, 1, spatial_scale=float(spatial_scale))
