"""Launchers of index_reduce."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import new_full
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.extrema import extreme_rows
from detmode.cuda.rows.indexed import IndexedRows, indexed_rows
from detmode.cuda.rows.positions import axis_of
from detmode.cuda.rows.sums import add_rows, multiply_rows


@raises_like_aten
def index_reduce(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::index_reduce`` with "prod", "amax" or "amin", or "mean" of floating-point numbers.

    A NaN is beyond every number.

    Raises:
        IndexError, RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    rows = _checked(self, dim, index, source, out)
    if reduce == "prod":
        return rows.run(multiply_rows, include_self=include_self)
    if reduce == "mean":
        return rows.run(add_rows, include_self=include_self, mean=True)
    largest = reduce == "amax"
    if not include_self and self.dtype in (torch.int32, torch.int64):
        # All values of these have keys, so what is beaten by every value stands for no value.
        limits = torch.iinfo(self.dtype)
        rows.target.index_fill_(rows.dim, rows.index, limits.min if largest else limits.max)
        include_self = True
    return rows.run(extreme_rows, largest=largest, include_self=include_self)


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
        IndexError, RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    rows = _checked(self, dim, index, source, out)
    target, at = rows.target, (rows.dim, rows.index)
    if rows.source.numel() == 0:
        return rows.out
    if not include_self:
        target.index_fill_(*at, 0)
    target.index_add_(*at, rows.source)
    # As in ATen the counts have the result's dtype, and wrap with it.
    counts = new_full(target, target.shape, include_self)
    counts.index_add_(*at, new_full(rows.source, rows.source.shape, 1))
    target.div_(counts.masked_fill_(counts == 0, 1), rounding_mode="floor")
    return rows.out


def _checked(
    self: Tensor, dim: int, index: Tensor, source: Tensor, out: Tensor | None
) -> IndexedRows:
    """The arguments, after ATen's checks: its meta function makes none of them."""
    axis_of(self, dim)
    if index.dim() > 1:
        raise IndexError(
            f"index_reduce_(): Index is supposed to be a vector, but got dim: {index.dim()} with "
            f"size: {list(index.shape)}"
        )
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            f"index_reduce_(): Expected dtype int32/int64 for index but got: {index.dtype}"
        )
    if source.dtype != self.dtype:
        raise RuntimeError(
            f"index_reduce_(): self ({self.dtype}) and source ({source.dtype}) must have the same "
            "scalar type"
        )
    return indexed_rows(self, dim, index, source, out, _check_shapes)


def _check_shapes(self_shape: torch.Size, dim: int, n: int, source_shape: torch.Size) -> None:
    expected, rows = list(self_shape), 1
    if self_shape and len(self_shape) == len(source_shape):
        rows = expected[dim] = source_shape[dim]
    if expected != list(source_shape):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self_shape)} source.shape = {list(source_shape)}"
        )
    if n != rows:
        raise RuntimeError(
            f"index_reduce_(): Number of indices ({n}) should be equal to source.size(dim): "
            f"({rows}), for dim: {dim}"
        )
