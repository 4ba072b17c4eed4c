"""Launches scatter with a source tensor."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from detmode.cuda import contiguous, new_arange, new_zeros
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.assign import assign_rows
from detmode.cuda.rows.positions import linearize, result_of
from detmode.cuda.rows.scattered import check, laid_out, rows_of
from detmode.cuda.rows.shapes import Rows


@raises_like_aten
def scatter(
    self: Tensor, dim: int, index: Tensor, src: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """``aten::scatter.src``: ``self[.., index[.., i, ..], ..] = src[.., i, ..]``, of duplicates the
    last along ``dim``.

    Args:
        self: contiguous, of any dtype that is not quantized.
        dim: the dimension whose positions ``index`` names.
        index: int64 or int32, no larger than ``src``, nor than ``self`` apart from ``dim``.
        src: of the dtype of ``self``.
        out: contiguous, where the result goes; ``self`` for the in-place variant.

    Raises:
        IndexError, RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    check(self, dim, index, src)
    out, index, src = result_of(self, out, index, src)
    if index.numel() == 0:
        return out
    target, dim, index, source = laid_out(out, dim, index, src)
    covers = all(
        length == size
        for axis, (length, size) in enumerate(zip(index.shape, target.shape))
        if axis != dim
    )
    positions, shape = (
        rows_of(index, dim, target.shape[dim]) if covers else _of_part(index, dim, target.shape)
    )
    assign_rows(target, positions, contiguous(source), shape)
    return out


def _of_part(index: Tensor, dim: int, sizes: Sequence[int]) -> tuple[Tensor, Rows]:
    """Positions in all of ``self``, where it is larger than the index apart from ``dim``."""

    def corner(dims: range) -> Tensor:
        at = new_zeros(index, (), torch.int64)
        for d in dims:
            at = at.unsqueeze(-1) * sizes[d] + new_arange(index, index.shape[d])
        return at

    before, behind = corner(range(dim)), corner(range(dim + 1, index.dim()))
    before = before.view(*before.shape, *(1,) * (index.dim() - dim))
    positions = linearize(
        [(index, sizes[dim]), (behind, prod(sizes[dim + 1 :]))], before, tuple(index.shape)
    )
    return positions, Rows(1, index.numel(), 1, prod(sizes))
