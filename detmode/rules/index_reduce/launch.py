"""Launchers of index_reduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from detmode.cuda import new_full
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.extrema import extreme_rows
from detmode.cuda.rows.indexed import move_indexed
from detmode.cuda.rows.positions import axis_of
from detmode.cuda.rows.shapes import Rows
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
    dim = _check(self, dim, index, source)
    largest = reduce == "amax"

    def extreme_of_sources(target: Tensor, index: Tensor, source: Tensor, shape: Rows) -> None:
        # All values of these have keys, so what is beaten by every value stands for no value.
        limits = torch.iinfo(self.dtype)
        target.index_fill_(dim, index, limits.min if largest else limits.max)
        extreme_rows(target, index, source, shape, largest=largest)

    reduce_rows: Callable[..., None]
    if reduce == "prod":
        reduce_rows = partial(multiply_rows, include_self=include_self)
    elif reduce == "mean":
        reduce_rows = partial(add_rows, include_self=include_self, mean=True)
    elif include_self or self.dtype not in (torch.int32, torch.int64):
        reduce_rows = partial(extreme_rows, include_self=include_self, largest=largest)
    else:
        reduce_rows = extreme_of_sources
    return move_indexed(self, dim, index, source, out, reduce_rows, _check_shapes)


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
    dim = _check(self, dim, index, source)

    def average(target: Tensor, index: Tensor, source: Tensor, shape: Rows) -> None:
        if not include_self:
            target.index_fill_(dim, index, 0)
        target.index_add_(dim, index, source)
        # As in ATen the counts have the result's dtype, and wrap with it.
        counts = new_full(target, target.shape, include_self)
        counts.index_add_(dim, index, new_full(source, source.shape, 1))
        target.div_(counts.masked_fill_(counts == 0, 1), rounding_mode="floor")

    return move_indexed(self, dim, index, source, out, average, _check_shapes, any_strides=True)


def _check(self: Tensor, dim: int, index: Tensor, source: Tensor) -> int:
    """Check what ATen checks, as its meta function checks nothing; return ``dim`` from 0."""
    dim = axis_of(self, dim)
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
    return dim


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
