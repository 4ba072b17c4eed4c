"""The rows that an operator of the ``index_*`` family moves along one dimension, laid out."""

from __future__ import annotations

from collections.abc import Callable
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


def move_indexed(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    out: Tensor | None,
    move_rows: Callable[..., None],
    check_shapes: CheckShapes,
    error: type[Exception] = IndexError,
    *,
    any_strides: bool = False,
    **options: Any,
) -> Tensor:
    """Move the rows of ``source`` along ``dim`` to the destinations that ``index`` names.

    Args:
        self: the initial values of the destinations.
        dim: along which ``index`` names destinations.
        index: integers; one dimension, or none.
        source: of the dtype of ``self``.
        out: holds ``self`` and takes the result; None is a new tensor.
        move_rows: called with contiguous destinations, int64 positions, contiguous rows, how they
            lie, and ``options``. Scalars are vectors of one element.
        check_shapes: asked where the source's shape is not simply that of ``self`` with another
            size in ``dim``: what ATen refuses, it refuses.
        error: raised, on the CPU, for an index out of range.
        any_strides: ``move_rows`` takes destinations and rows as they lie: nothing is copied.
        options: of what moves the rows.

    Raises:
        Exception: ``error``, and what ``check_shapes`` raises.
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
        index = contiguous(index.reshape(-1), torch.int64)
        if any_strides:
            move_rows(target, index, source, shape, **options)
        else:
            in_contiguous(target, move_rows, index, contiguous(source), shape, **options)
    return out


def _layout(sizes: torch.Size, dim: int, n: int) -> tuple[tuple[int, ...], Rows]:
    """The shape of the source, and how its rows lie."""
    before, behind = sizes[:dim], sizes[dim + 1 :]
    return (*before, n, *behind), Rows(prod(before), n, prod(behind), sizes[dim])
