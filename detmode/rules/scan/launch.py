"""Launches the scans of one row."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, launch_blocks, new_empty
from detmode.cuda.checks import raises_like_aten
from detmode.table.conditions import COMPLEX, FLOATING

THREADS = 256
"""Of a block; this and the others as in ``kernels.cu`` and ``scan.cuh``."""
ROWS = 4
"""Elements, or packs of them, that one thread reads."""
CHILDREN = 32
"""Tiles, or nodes above them, whose totals are joined at once."""
STATE = 4
"""Doubles that the largest state takes."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=tuple(
        f"{kernel}<{op}, {ctype(dtype)}>"
        for kernel in ("scan_totals", "scan_level", "scan_row")
        for op in ("cumsum", "cumprod", "logcumsumexp")
        for dtype in FLOATING + COMPLEX
    ),
)


@raises_like_aten
def cumsum(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """``aten::cumsum`` of a tensor whose elements all lie along ``dim``.

    Args:
        self: any shape in which one size is the number of elements, any strides, any dtype.
        dim: that dimension.
        dtype: float16, bfloat16, float32, float64, complex64 or complex128, into which ``self`` is
            converted first; ``None`` where ``self`` has one of them.

    Returns:
        A contiguous tensor of the shape of ``self``.
    """
    return _scan("cumsum", self if dtype is None else contiguous(self, dtype), dim)


@raises_like_aten
def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """``aten::cumprod`` of a tensor whose elements all lie along ``dim``: see :func:`cumsum`."""
    return _scan("cumprod", self if dtype is None else contiguous(self, dtype), dim)


@raises_like_aten
def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    """``aten::logcumsumexp`` of a tensor whose elements all lie along ``dim``.

    Args:
        self: any shape in which one size is the number of elements, any strides; floating point
            or complex.
        dim: that dimension.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.
    """
    return _scan("logcumsumexp", self, dim)


def _scan(op: str, self: Tensor, dim: int) -> Tensor:
    out = new_empty(self, self.shape)
    n, types = self.numel(), f"<{op}, {ctype(self.dtype)}>"
    stride = self.stride(dim)
    tiles = -(-n // (THREADS * ROWS * min(16 // self.itemsize, 4)))
    totals = _totals(types, self, stride, tiles - 1) if tiles > 1 else None
    launch_blocks(
        SOURCE, f"scan_row{types}", tiles, THREADS,
        input=self, output=out, totals=totals, n=n, stride=stride,
    )  # fmt: skip
    return out


def _totals(types: str, self: Tensor, stride: int, tiles: int) -> Tensor:
    """The totals of all tiles before the last one, and of the nodes above them."""
    counts = [tiles]
    # Before the last node lie those over whole 32 of the nodes below.
    while counts[-1] >= CHILDREN:
        counts.append(counts[-1] // CHILDREN)
    totals = new_empty(self, (sum(counts) * STATE,), torch.float64)
    launch_blocks(
        SOURCE, f"scan_totals{types}", tiles, THREADS, input=self, totals=totals, stride=stride
    )
    base = 0
    for children, above in pairwise(counts):
        launch(
            SOURCE, f"scan_level{types}", above * CHILDREN,
            totals=totals, base=base, children=children,
        )  # fmt: skip
        base += children
    return totals
