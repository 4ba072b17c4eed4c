"""The rows that an operator of the ``index_*`` family moves along one dimension, laid out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from detmode.cuda import contiguous
from detmode.cuda.rows.positions import check_on_host, in_contiguous, result_of
from detmode.cuda.rows.shapes import Rows

CheckShapes: TypeAlias = Callable[[torch.Size, int, int, torch.Size], None]
"""Raises for shapes that do not go together: called with that of ``self``, the dimension, from 0,
the number of indices, and the source's shape."""


@dataclass(slots=True)
class IndexedRows:
    """The operator's tensors, with scalars as vectors of one element.

    Args:
        out: the result, which holds ``self`` so far.
        target: ``out`` with at least one dimension.
        dim: not negative.
        index: int64, one-dimensional, contiguous.
        source: with the dimensions of ``target``, apart from its memory.
        shape: the layout of its rows.
    """

    out: Tensor
    target: Tensor
    dim: int
    index: Tensor
    source: Tensor
    shape: Rows

    def run(self, move_rows: Callable[..., None], **options: Any) -> Tensor:
        """``move_rows`` on contiguous rows; ``out`` with what it gave."""
        if self.shape.addends:
            source = contiguous(self.source)
            in_contiguous(self.target, move_rows, self.index, source, self.shape, **options)
        return self.out


def indexed_rows(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    out: Tensor | None,
    check_shapes: CheckShapes,
    error: type[Exception] = IndexError,
) -> IndexedRows:
    """The arguments of an operator that has checked all but shapes.

    ``check_shapes`` is asked where the source's shape is not simply that of ``self`` with another
    size in ``dim``: what ATen refuses, it refuses.

    Raises:
        Exception: ``error``, on the CPU, for an index out of range; what ``check_shapes`` raises.
    """
    out, index, source = result_of(self, out, index, source)
    target = out if out.dim() else out.view(1)
    dim = dim % target.dim()
    source_shape, shape = _layout(target.shape, dim, index.numel())
    if target is not out or source.shape != source_shape:
        check_shapes(self.shape, dim, index.numel(), source.shape)
        source = source.reshape(source_shape)
    if source.numel():
        check_on_host(index, shape.size, dim, error)
    if index.dim() != 1:
        # ATen takes as long to find that nothing changes.
        index = index.reshape(-1)
    index = contiguous(index, torch.int64)
    return IndexedRows(out, target, dim, index, source, shape)


def _layout(sizes: tuple[int, ...], dim: int, n: int) -> tuple[tuple[int, ...], Rows]:
    """The shape of the source, and how its rows lie."""
    sizes = tuple(sizes)  # of which parts are taken in less time than of a torch.Size
    before, behind = sizes[:dim], sizes[dim + 1 :]
    return (*before, n, *behind), Rows(prod(before), n, prod(behind), sizes[dim])
