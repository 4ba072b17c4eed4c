"""The elements that an operator of the scatter family reduces, as rows and destinations."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import le
from typing import Any

import torch
from torch import Tensor

from detmode.cuda import contiguous, new_arange
from detmode.cuda.rows.positions import axis_of, check_on_host, in_contiguous, linearize, result_of
from detmode.cuda.rows.shapes import Rows


def reduce_scattered(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    out: Tensor | None,
    reduce_rows: Callable[..., None],
    **options: Any,
) -> Tensor:
    """Reduce the elements of ``src`` into the destinations that ``index`` names.

    Args:
        self: the initial values of the destinations.
        dim: along which ``index`` names destinations.
        index: integers; no larger than ``src``, and than ``self`` but for ``dim``.
        src: of the dtype of ``self``.
        out: holds ``self`` and takes the result; None is a new tensor.
        reduce_rows: called with contiguous destinations, positions, contiguous elements, how they
            lie, and ``options``.
        options: of the reduction.

    Raises:
        IndexError, RuntimeError: as :func:`check`; on the CPU, an index is out of range.
    """
    check(self, dim, index, src)
    out, index, src = result_of(self, out, index, src)
    if index.numel() == 0:
        return out
    target, dim, index, source = laid_out(out, dim, index, src)
    # Only what lies under the index takes part.
    if target.shape != index.shape:
        for axis, (length, size) in enumerate(zip(index.shape, target.shape)):
            if axis != dim and size != length:
                target = target.narrow(axis, 0, length)
    positions, shape = rows_of(index, dim, target.shape[dim])
    in_contiguous(target, reduce_rows, positions, contiguous(source), shape, **options)
    return out


def check(self: Tensor, dim: int, index: Tensor, src: Tensor) -> None:
    """Refuse what ATen's ``scatter`` refuses, whatever the indices are.

    Raises:
        IndexError: ``dim`` is out of range.
        RuntimeError: sizes or dtypes that do not go together.
    """
    axis = axis_of(self, dim)
    if src.dtype != self.dtype:
        raise RuntimeError(f"scatter(): self is {self.dtype}, but src is {src.dtype}")
    if index.numel() == 0:
        return
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"scatter(): index should be int64 or int32, but got {index.dtype}")
    sizes, named, source = (list(tensor.shape) or [1] for tensor in (self, index, src))
    if len(sizes) == len(named):
        # In the dimension itself an index has as many positions as it likes.
        sizes[axis] = named[axis]
    fits = len(sizes) == len(named) == len(source)
    if not (fits and all(map(le, named, source)) and all(map(le, named, sizes))):
        raise RuntimeError(
            f"scatter(): index, {named}, should be no larger than src, {source}, nor than self, "
            f"{list(self.shape) or [1]}, apart from dimension {axis}"
        )


def laid_out(
    out: Tensor, dim: int, index: Tensor, src: Tensor
) -> tuple[Tensor, int, Tensor, Tensor]:
    """``out``, ``dim`` from 0, the index as int64, and what of ``src`` lies under it.

    Scalars are vectors. What ``out`` may overwrite is a copy already.

    Raises:
        RuntimeError: on the CPU, an index is out of range, as ATen raises.
    """
    target, index, source = (x if x.dim() else x.view(1) for x in (out, index, src))
    dim = dim % target.dim()
    check_on_host(index, target.shape[dim], dim, RuntimeError)
    if source.shape != index.shape:
        for axis, length in enumerate(index.shape):
            source = source.narrow(axis, 0, length)
    if index.dtype is not torch.int64:
        index = contiguous(index, torch.int64)
    return target, dim, index, source


def rows_of(index: Tensor, dim: int, size: int) -> tuple[Tensor, Rows]:
    """Return the destinations that ``index`` names: one for each row behind ``dim``, if possible.

    An expanded index is recognised by its strides.
    """
    sizes, strides = tuple(index.shape), index.stride()
    shape = Rows(prod(sizes[:dim]), sizes[dim], prod(sizes[dim + 1 :]), size)
    repeats = [stride == 0 or n == 1 for n, stride in zip(sizes, strides)]
    if not all(repeats[dim + 1 :]):
        return contiguous(index), shape
    row_index = index.as_strided(sizes[: dim + 1], strides[: dim + 1])
    if all(repeats[:dim]):
        return contiguous(row_index[(0,) * dim]), shape
    outer, n, inner, *_ = shape
    if inner == 1:
        return contiguous(row_index), shape
    starts = new_arange(index, outer).view(*sizes[:dim], 1)
    positions = linearize([(row_index, size)], starts, tuple(row_index.shape))
    return positions, Rows(1, outer * n, inner, outer * size)
