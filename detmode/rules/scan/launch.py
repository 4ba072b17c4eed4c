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
from detmode.cuda.checks import checks_all
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
    nodes, totals_of_tiles, levels, row = _plan(op, self.dtype, self.numel(), self.stride(dim))
    if nodes <= 1:
        row(input=self, output=out)
        return out
    totals = new_empty(self, (nodes * STATE,), torch.float64)
    totals_of_tiles(input=self, totals=totals)
    for level in levels:
        level(totals=totals)
    row(input=self, output=out, totals=totals)
    return out


@planned
def _plan(
    op: str, dtype: torch.dtype, n: int, stride: int
) -> tuple[int, Launch, list[Launch], Launch]:
    """The nodes of the tree over the tiles, and the launches that still need their tensors.

    They are the one for the tiles' totals, one for each level of nodes, and the scan.
    """
    pack = min(16 // dtype.itemsize, 4)
    children = tiles = -(-n // (THREADS * ROWS * pack))
    unsized = _unsized(op, dtype, tiles > 1)
    nodes, levels = 0, []
    while children:
        above = children // CHILDREN
        if above:
            levels.append(unsized[1].of_threads(above * CHILDREN, nodes, children))
        nodes += children
        children = above
    return (
        nodes,
        unsized[0].of_blocks(tiles, n, stride),
        levels,
        unsized[2].of_blocks(tiles, n, stride),
    )


@planned
def _unsized(
    op: str, dtype: torch.dtype, has_totals: bool
) -> tuple[UnsizedLaunch, UnsizedLaunch, UnsizedLaunch]:
    """The launches without their sizes."""
    of = f"<{op}, {ctype(dtype)}>"
    fixed = {} if has_totals else {"totals": None}
    return (
        UnsizedLaunch(SOURCE, f"scan_totals{of}", ("n", "stride"), THREADS),
        UnsizedLaunch(SOURCE, f"scan_level{of}", ("base", "children")),
        UnsizedLaunch(SOURCE, f"scan_row{of}", ("n", "stride"), THREADS, **fixed),
    )
