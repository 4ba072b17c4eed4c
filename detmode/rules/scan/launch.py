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
    planned,
)
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
    tree, row = _plan(op, self.dtype, self.numel(), self.stride(dim))
    if tree is None:
        row(input=self, output=out)
        return out
    nodes, tiles, levels = tree
    totals = new_empty(self, (nodes * STATE,), torch.float64)
    tiles(input=self, totals=totals)
    for level in levels:
        level(totals=totals)
    row(input=self, output=out, totals=totals)
    return out


_Tree = tuple[int, Launch, list[Launch]]
"""The number of nodes, and the launches for the totals of tiles and for those of each level."""


@planned
def _plan(op: str, dtype: torch.dtype, n: int, stride: int) -> tuple[_Tree | None, Launch]:
    """The tree over the tiles, if there are several, and the scan; without their tensors."""
    tiles = -(-n // (THREADS * ROWS * min(16 // dtype.itemsize, 4)))
    row = _row(op, dtype, tiles > 1).of_blocks(tiles, n, stride)
    if tiles <= 1:
        return None, row
    of_tiles, of_level = _totals(op, dtype)
    # Before the last tile lie all others, and before its node those over whole 32 of them.
    nodes, children, levels = 0, tiles - 1, []
    while children:
        above = children // CHILDREN
        if above:
            levels.append(of_level.of_threads(above * CHILDREN, nodes, children))
        nodes += children
        children = above
    return (nodes, of_tiles.of_blocks(tiles - 1, stride), levels), row


@planned
def _row(op: str, dtype: torch.dtype, has_totals: bool) -> UnsizedLaunch:
    fixed = {} if has_totals else {"totals": None}
    entry = f"scan_row<{op}, {ctype(dtype)}>"
    return UnsizedLaunch(SOURCE, entry, ("n", "stride"), THREADS, **fixed)


@planned
def _totals(op: str, dtype: torch.dtype) -> tuple[UnsizedLaunch, UnsizedLaunch]:
    of = f"<{op}, {ctype(dtype)}>"
    return (
        UnsizedLaunch(SOURCE, f"scan_totals{of}", ("stride",), THREADS),
        UnsizedLaunch(SOURCE, f"scan_level{of}", ("base", "children")),
    )
