"""The arguments of index_reduce, checked and laid out for the reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from detmode.cuda.rows.positions import check_on_host, copy_if_overlapping
from detmode.cuda.rows.shapes import Rows


@dataclass(frozen=True)
class Reduction:
    """The operator's tensors, with scalars as vectors of one element.

    Args:
        out: the result, which holds ``self`` so far.
        target: ``out`` with at least one dimension.
        dim: not negative.
        index: int64, one-dimensional, contiguous.
        source: with the dimensions of ``target``, apart from its memory.
    """

    out: Tensor
    target: Tensor
    dim: int
    index: Tensor
    source: Tensor

    def run(self, reduce_rows: Callable[..., None], **options: Any) -> Tensor:
        """``reduce_rows`` on contiguous rows; ``out`` with what it gave."""
        sizes = self.target.shape
        shape = Rows(
            prod(sizes[: self.dim]), len(self.index), prod(sizes[self.dim + 1 :]), sizes[self.dim]
        )
        if shape.addends == 0:
            return self.out
        work = self.target.contiguous()
        reduce_rows(work, self.index, self.source.contiguous(), shape, **options)
        if work is not self.target:
            self.target.copy_(work)
        return self.out


def reduction(
    self: Tensor, dim: int, index: Tensor, source: Tensor, out: Tensor | None
) -> Reduction:
    """The arguments, after ATen's checks: its meta function makes none of them.

    Raises:
        IndexError, RuntimeError: what ATen rejects; indices out of range on the CPU only.
    """
    _check(self, dim, index, source)
    if out is None:
        out = self.clone(memory_format=torch.contiguous_format)
    target = out if out.dim() else out.view(1)
    dim = dim % target.dim()
    if source.numel():
        check_on_host(index, target.shape[dim], dim, IndexError)
    shape = list(target.shape)
    shape[dim] = index.numel()
    return Reduction(
        out,
        target,
        dim,
        copy_if_overlapping(out, index).reshape(-1).to(torch.int64).contiguous(),
        copy_if_overlapping(out, source).reshape(shape),
    )


def _check(self: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    dims = max(self.dim(), 1)
    if not -dims <= dim < dims:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], "
            f"but got {dim})"
        )
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
    own, other = list(self.shape), list(source.shape)
    rows = 1
    if own and len(own) == len(other):
        rows = own[dim] = other[dim]
    if own != other:
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self.shape)} source.shape = {other}"
        )
    if index.numel() != rows:
        raise RuntimeError(
            f"index_reduce_(): Number of indices ({index.numel()}) should be equal to "
            f"source.size(dim): ({rows}), for dim: {dim}"
        )
