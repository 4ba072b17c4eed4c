"""The rows that an operator of the ``index_*`` family moves along one dimension, laid out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from detmode.cuda.rows.positions import check_on_host, copy_if_overlapping, in_contiguous
from detmode.cuda.rows.shapes import Rows


@dataclass(frozen=True)
class IndexedRows:
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

    def run(self, move_rows: Callable[..., None], **options: Any) -> Tensor:
        """``move_rows`` on contiguous rows; ``out`` with what it gave."""
        sizes = self.target.shape
        shape = Rows(
            prod(sizes[: self.dim]), len(self.index), prod(sizes[self.dim + 1 :]), sizes[self.dim]
        )
        if shape.addends:
            source = self.source.contiguous()
            in_contiguous(self.target, move_rows, self.index, source, shape, **options)
        return self.out


def indexed_rows(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    out: Tensor | None,
    error: type[Exception] = IndexError,
) -> IndexedRows:
    """The arguments of an operator that has made its own checks.

    Raises:
        Exception: ``error``, on the CPU, for an index out of range.
    """
    if out is None:
        out = self.clone(memory_format=torch.contiguous_format)
    else:
        index, source = copy_if_overlapping(out, index), copy_if_overlapping(out, source)
    target = out if out.dim() else out.view(1)
    dim = dim % target.dim()
    if source.numel():
        check_on_host(index, target.shape[dim], dim, error)
    shape = list(target.shape)
    shape[dim] = index.numel()
    positions = index.reshape(-1).to(torch.int64).contiguous()
    return IndexedRows(out, target, dim, positions, source.reshape(shape))
