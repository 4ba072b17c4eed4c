"""Launchers of index_reduce, one for each kind of reduction."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda.rows.extrema import extreme_rows
from detmode.cuda.rows.products import multiply_rows
from detmode.cuda.rows.reductions import SOURCE
from detmode.cuda.rows.sums import add_rows
from detmode.rules.index_reduce.reduction import reduction

__all__ = ["SOURCE", "extremum", "mean", "mean_of_integers", "product"]


def product(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::index_reduce`` with "prod": ``self[.., index[i], ..] *= source[.., i, ..]``.

    Raises:
        IndexError, RuntimeError: what ATen rejects; indices out of range on the CPU only.
    """
    rows = reduction(self, dim, index, source, out)
    return rows.run(multiply_rows, include_self=include_self)


def mean(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::index_reduce`` with "mean", of floating-point numbers.

    Raises:
        IndexError, RuntimeError: what ATen rejects; indices out of range on the CPU only.
    """
    rows = reduction(self, dim, index, source, out)
    return rows.run(add_rows, include_self=include_self, mean=True)


def mean_of_integers(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::index_reduce`` with "mean", of integers: rounded down, modulo the dtype's range.

    ATen's own operators do it: integer additions give the same in any order.

    Raises:
        IndexError, RuntimeError: what ATen rejects; indices out of range on the CPU only.
    """
    rows = reduction(self, dim, index, source, out)
    target, at = rows.target, (rows.dim, rows.index)
    if rows.source.numel() == 0:
        return rows.out
    if not include_self:
        target.index_fill_(*at, 0)
    target.index_add_(*at, rows.source)
    # As in ATen the counts have the result's dtype, and wrap with it.
    counts = torch.full_like(target, include_self)
    counts.index_add_(*at, torch.ones_like(rows.source))
    target.div_(counts.masked_fill_(counts == 0, 1), rounding_mode="floor")
    return rows.out


def extremum(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::index_reduce`` with "amax" or "amin"; a NaN is beyond every number.

    Raises:
        IndexError, RuntimeError: what ATen rejects; indices out of range on the CPU only.
    """
    rows = reduction(self, dim, index, source, out)
    largest = reduce == "amax"
    if not include_self and self.dtype in (torch.int32, torch.int64):
        # All values of these have keys, so what is beaten by every value stands for no value.
        limits = torch.iinfo(self.dtype)
        rows.target.index_fill_(rows.dim, rows.index, limits.min if largest else limits.max)
        include_self = True
    return rows.run(extreme_rows, largest=largest, include_self=include_self)
