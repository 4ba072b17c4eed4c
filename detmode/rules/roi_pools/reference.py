"""The backward of pooling over regions, written plainly in torch: what tests take for true.

Each function takes its operator's arguments and computes in the dtype it is given.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    channel_mapping: Tensor | None = None,
) -> Tensor:
    """Each sample's share of its bin's gradient, put on the four pixels around it."""
    grad_input = grad.new_zeros(batch_size, channels, height, width)
    offset = 0.5 if aligned else 0.0
    for n, roi in enumerate(rois if grad.numel() and grad_input.numel() else ()):
        x1, y1, x2, y2 = (
            roi[1:] * torch.tensor(spatial_scale, dtype=roi.dtype, device="cpu") - offset
        ).unbind()
        p, y, along_y, rows = _taps(y1, y2, pooled_height, height, sampling_ratio, aligned)
        q, x, along_x, columns = _taps(x1, x2, pooled_width, width, sampling_ratio, aligned)
        weights = along_y[:, None] * along_x
        shares = grad[n][:, p][:, :, q] * weights / (rows * columns)
        if channel_mapping is None:
            c = torch.arange(channels, device="cpu")[:, None, None]
        else:
            c = channel_mapping[n].long()[:, p][:, :, q]
        grad_input[int(roi[0])].index_put_((c, y[:, None], x), shares, accumulate=True)
    return grad_input


def _taps(
    begin: Tensor, end: Tensor, pooled: int, size: int, sampling_ratio: int, aligned: bool
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Bin, pixel and weight of each tap of one axis, and the samples of a bin."""
    p, at, _, grid = samples(begin, end, pooled, sampling_ratio, aligned)
    inside = (at >= -1) & (at <= size)
    p, at = p[inside], at[inside].clamp(min=0)
    low = at.long()
    last = low >= size - 1
    low = torch.where(last, size - 1, low)
    fraction = torch.where(last, 0, at - low)
    high = torch.where(last, low, low + 1)
    return torch.cat([p, p]), torch.cat([low, high]), torch.cat([1 - fraction, fraction]), grid


def samples(
    begin: Tensor, end: Tensor, pooled: int, sampling_ratio: int, aligned: bool
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Bin and position of each sample of one axis; the size of a bin, and its samples."""
    length = end - begin
    if not aligned:
        length = length.clamp(min=1)
    bin_size = length / pooled
    grid = sampling_ratio if sampling_ratio > 0 else max(int(bin_size.ceil()), 0)
    p = torch.arange(pooled, device="cpu").repeat_interleave(grid)
    i = torch.arange(grid, device="cpu").repeat(pooled).to(begin.dtype)
    return p, begin + p.to(begin.dtype) * bin_size + (i + 0.5) * bin_size / grid, bin_size, grid


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
    """As roi_align_backward, aligned, into the channel that each bin has."""
    pooled, shape = (pooled_height, pooled_width), (batch_size, channels, height, width)
    return roi_align_backward(
        grad, rois, spatial_scale, *pooled, *shape, sampling_ratio, True, channel_mapping
    )


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
    """Each gradient, added to the pixel that was the largest."""
    grad_input = grad.new_zeros(batch_size, channels, height * width)
    for n, roi in enumerate(rois):
        pixels, values = argmax[n].long().flatten(1), grad[n].flatten(1)
        for c in range(channels):
            chosen = pixels[c] >= 0
            grad_input[int(roi[0]), c].index_add_(0, pixels[c][chosen], values[c][chosen])
    return grad_input.view(batch_size, channels, height, width)


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
    """Each bin's gradient, shared equally by its pixels, in the channel that the bin has."""
    grad_input = grad.new_zeros(batch_size, channels, height, width)
    for n, roi in enumerate(rois):
        scaled = (
            (roi[1:] * torch.tensor(spatial_scale, dtype=roi.dtype, device="cpu")).float().double()
        )
        # Halves go away from zero, where torch.round takes the even one.
        x1, y1, x2, y2 = (scaled.abs() + 0.5).floor().copysign(scaled).long().tolist()
        rows = _windows(y1, y2, pooled_height, height, grad.dtype)
        columns = _windows(x1, x2, pooled_width, width, grad.dtype)
        for p, (top, bottom) in enumerate(rows):
            for q, (left, right) in enumerate(columns):
                if top >= bottom or left >= right:
                    continue
                shares = grad[n, :, p, q] / ((bottom - top) * (right - left))
                c = channel_mapping[n, :, p, q].long()
                grad_input[int(roi[0])][c, top:bottom, left:right] += shares[:, None, None]
    return grad_input


def _windows(
    begin: int, end: int, pooled: int, size: int, dtype: torch.dtype
) -> list[tuple[int, int]]:
    """The pixels of each bin of one axis."""
    bin_size = torch.tensor(max(end - begin, 1), dtype=dtype, device="cpu") / pooled
    edges = torch.arange(pooled + 1, device="cpu").to(dtype) * bin_size
    low = (edges[:-1].floor().long() + begin).clamp(0, size).tolist()
    high = (edges[1:].ceil().long() + begin).clamp(0, size).tolist()
    return list(zip(low, high))
