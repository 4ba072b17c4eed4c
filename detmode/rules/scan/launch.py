"""Launches the scans of one row."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import (
    Launch,
    Source,
    UnsizedLaunch,
    contiguous,
    ctype,
    new_empty,
    new_zeros,
    planned,
)
from detmode.cuda.checks import checks_all
from detmode.table.conditions import COMPLEX, FLOATING

THREADS = 256
"""Of a block; this and the others as in ``kernels.cu`` and ``scan.cuh``."""
ROWS = 4
"""Elements, or packs of them, that one thread reads."""
CHILDREN = 32
"""Tiles, or nodes above them, whose totals are joined at once."""
WORDS = 8
"""Words of 32 bits of the largest state."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=tuple(
        f"scan_row<{op}, {ctype(dtype)}>"
        for op in ("cumsum", "cumprod", "logcumsumexp")
        for dtype in FLOATING + COMPLEX
    ),
)


@checks_all
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


@checks_all
def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """``aten::cumprod`` of a tensor whose elements all lie along ``dim``: see :func:`cumsum`."""
    return _scan("cumprod", self if dtype is None else contiguous(self, dtype), dim)


@checks_all
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
    launch, nodes = _plan(op, self.dtype, self.numel(), self.stride(dim))
    if nodes > 1:
        # Each word with its mark, and behind them the counter from which blocks draw their tiles.
        totals = new_zeros(self, (nodes * WORDS + 1,), torch.int64)
        launch(input=self, output=out, totals=totals)
    else:
        launch(input=self, output=out)
    return out


@planned
def _plan(op: str, dtype: torch.dtype, n: int, stride: int) -> tuple[Launch, int]:
    """The launch that still needs its tensors, and the nodes of the tree over its tiles."""
    pack = min(16 // dtype.itemsize, 4)
    tiles = -(-n // (THREADS * ROWS * pack))
    nodes = _nodes(tiles)
    return _unsized(op, dtype, nodes > 1).of_blocks(tiles, nodes, n, stride), nodes


@planned
def _unsized(op: str, dtype: torch.dtype, has_totals: bool) -> UnsizedLaunch:
    """The launch without its sizes."""
    entry = f"scan_row<{op}, {ctype(dtype)}>"
    fixed = {} if has_totals else {"totals": None}
    return UnsizedLaunch(SOURCE, entry, ("nodes", "n", "stride"), THREADS, **fixed)


def _nodes(tiles: int) -> int:
    """Return the number of nodes of the tree over the tiles: the tiles, and complete groups."""
    nodes = 0
    while tiles:
        nodes += tiles
        tiles //= CHILDREN
    return nodes
