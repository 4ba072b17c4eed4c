"""Launchers of histc, and of bincount with weights."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch_blocks, new_zeros, of_dtypes
from detmode.cuda.checks import check_implemented, raises_like_aten
from detmode.cuda.recording import one_above
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.sums import add_rows
from detmode.table.conditions import INTEGRAL

DTYPES = (torch.float32, torch.float64)
SHARED_BINS = 12 * 1024
"""Bins that fit into the shared memory of a block on any GPU, 4 bytes each."""
BLOCK, MOST_BLOCKS = 256, 2**13

SOURCE = Source(__file__, "kernels.cu", entries=of_dtypes(DTYPES, "histc_count"))


@raises_like_aten
def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """``aten::histc``: how many elements lie in each of ``bins`` equal parts of ``[min, max]``.

    Args:
        self: float32 or float64, any shape.
        bins: positive.
        min: the lower end; where it is ``max``, the range is that of the elements.
        max: the upper end, which belongs to the last bin.

    Returns:
        A tensor of ``bins`` elements of the dtype of ``self``.

    Raises:
        RuntimeError: ``bins`` or the range is not possible, or the range is not finite.
    """
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    low, high = _range(self, _rounded(min, self.dtype), _rounded(max, self.dtype))
    return contiguous(_count(contiguous(self), bins, low, high), self.dtype)


def histc_of_integers(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """``aten::histc`` of integers on the CPU, where ATen has no kernel, as on CUDA.

    As :func:`histc`, for integers of any shape; ``min`` and ``max`` lose their fractions.

    Raises:
        RuntimeError: ``bins`` or the range is not possible.
        NotImplementedError: ``self`` has no integers.
    """
    check_implemented("histc", self.dtype, INTEGRAL)
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    values, low, high = self.flatten().long(), int(min), int(max)
    if low == high and values.numel() > 0:
        low, high = torch.stack(torch.aminmax(values)).tolist()
    if low == high:
        low, high = low - 1, high + 1
    if not low < high:
        raise RuntimeError("max must be larger than min")
    inside = values[(values >= low) & (values <= high)]
    place = ((inside - low) * bins // (high - low)).clamp(max=bins - 1)
    return torch.bincount(place, minlength=bins).to(self.dtype)


def choose(n: int, bins: int) -> tuple[int, bool]:
    """Choose the blocks that count, and if each does in its own shared memory first."""
    in_shared = bins <= SHARED_BINS
    # A block reads no fewer elements than it has counts to hand over.
    share = max(BLOCK * 16, bins if in_shared else 0)
    return min(-(-n // share), MOST_BLOCKS), in_shared


def _count(input: Tensor, bins: int, low: float, high: float) -> Tensor:
    n = input.numel()
    blocks, in_shared = choose(n, bins)
    counts = new_zeros(input, (bins,), torch.int64)
    launch_blocks(
        SOURCE, f"histc_count<{ctype(input.dtype)}>", blocks, BLOCK,
        shared=4 * bins if in_shared else 0,
        input=input, counts=counts, n=n, bins=bins, min=low, max=high, in_shared=in_shared,
    )  # fmt: skip
    return counts


def _rounded(value: float, dtype: torch.dtype) -> float:
    """``value`` in the dtype in which ATen compares it with the elements."""
    if math.isfinite(value) and abs(value) > torch.finfo(dtype).max:
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")
    return float(value) if dtype is torch.float64 else ctypes.c_float(value).value


def _range(self: Tensor, low: float, high: float) -> tuple[float, float]:
    if low == high and self.numel() > 0:
        low, high = torch.stack(torch.aminmax(self)).tolist()
    if low == high:
        low, high = _rounded(low - 1, self.dtype), _rounded(high + 1, self.dtype)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"range of [{low:g}, {high:g}] is not finite")
    if not low < high:
        raise RuntimeError("max must be larger than min")
    return low, high


@raises_like_aten
def bincount(self: Tensor, weights: Tensor, minlength: int = 0) -> Tensor:
    """``aten::bincount`` with weights: ``result[self[i]] += weights[i]``.

    Args:
        self: integers that are not negative, (N,).
        weights: (N,); what is not float32 is added as float64.
        minlength: bins at least.

    Returns:
        Float32 or float64, one element more than the largest of ``self`` or ``minlength``; for an
        empty ``self``, as in ATen, ``minlength`` zeros of int64.

    Raises:
        RuntimeError: ``self``, ``weights`` or ``minlength`` is not possible.
        NotImplementedError: ``self`` is bool or not integral.
    """
    check_implemented("bincount_cuda", self.dtype, INTEGRAL)
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if self.dim() == 1 and self.numel() == 0:
        return new_zeros(self, (minlength,), torch.int64)
    bins = one_above(self, minlength) if self.dim() == 1 else None
    if bins is None:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if weights.device != self.device:
        raise RuntimeError(f"expected weights on {self.device}, but they are on {weights.device}")
    dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    result = new_zeros(weights, (bins,), dtype)
    shape = Rows(outer=1, rows=self.numel(), inner=1, size=bins)
    add_rows(result, contiguous(self, torch.int64), contiguous(weights, dtype), shape)
    return result
