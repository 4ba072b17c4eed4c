"""Indices as ATen takes them: masks, broadcasting, positions, bounds, overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from detmode.cuda import Source, clone, contiguous, launch, new_arange, new_empty
from detmode.cuda.recording import host_check
from detmode.cuda.rows.shapes import Rows
from detmode.process.extent import extent_of

SOURCE = Source(__file__, "positions.cu", entries=["index_put_linearize"])


def expand_masks(self: Tensor, indices: Sequence[Tensor | None]) -> dict[int, Tensor]:
    """By dimension the indices as int64 on the device of ``self``; a mask is one for each."""
    by_dim: dict[int, Tensor] = {}
    dim, device = 0, self.device
    for index in indices:
        if index is None:
            dim += 1
        elif index.dtype in (torch.int64, torch.int32):
            if index.device != device:
                index = index.to(device)
            by_dim[dim] = contiguous(index, torch.int64) if index.dtype is torch.int32 else index
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            for place, size in enumerate(index.shape, dim):
                if place >= self.dim() or size != self.shape[place]:
                    raise IndexError(
                        f"The shape of the mask {list(index.shape)} at index {place - dim} does "
                        f"not match the shape of the indexed tensor {list(self.shape)} at index "
                        f"{place}"
                    )
            for part in index.to(device).nonzero().unbind(1):
                by_dim[dim] = part
                dim += 1
        else:
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    if dim > self.dim():
        raise IndexError(f"too many indices for tensor of dimension {self.dim()} (got {dim})")
    return by_dim


def broadcast(indices: Sequence[Tensor]) -> tuple[int, ...]:
    """The common shape of the indices, or ATen's ``IndexError``."""
    if len(indices) == 1:
        return tuple(indices[0].shape)
    try:
        return tuple(torch.broadcast_shapes(*(index.shape for index in indices)))
    except RuntimeError:
        shapes = ", ".join(str(list(index.shape)) for index in indices)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None


def linearize(
    indices: list[tuple[Tensor, int]],
    start: Tensor | None,
    shape: tuple[int, ...],
    *,
    wraps: bool = False,
) -> Tensor:
    """Row-major positions of several indices: ``((start * n0 + i0) * n1 + i1) ...``, contiguous.

    Args:
        indices: int64 tensors that broadcast to ``shape``, each with the size of its dimension.
        start: int64, broadcasts to ``shape``; nothing counts as zeros.
        shape: of the result.
        wraps: negative indices count from the end.
    """
    if start is None:
        keys = new_empty(indices[0][0], shape)
    else:
        keys = clone(start.expand(shape), memory_format=torch.contiguous_format)
    n, before = keys.numel(), start is not None
    for index, size in indices:
        index = contiguous(index.expand(shape))
        launch(
            SOURCE, "index_put_linearize", n,
            index=index, keys=keys, n=n, size=size, before=before, wraps=wraps,
        )  # fmt: skip
        before = True
    return keys


def of_elements(index: Tensor, shape: Rows) -> Tensor:
    """The place of each element in ``[outer, size, inner]``; contiguous.

    Args:
        index: int64, a position in ``[0, size)`` for each element of ``[outer, rows, inner]``.
        shape: their layout.
    """
    grid = (shape.outer, shape.rows, shape.inner)
    outer = new_arange(index, shape.outer).view(-1, 1, 1)
    inner = new_arange(index, shape.inner)
    return linearize([(index.view(grid), shape.size), (inner, shape.inner)], outer, grid)


@host_check
def check_on_host(
    index: Tensor, size: int, dim: int, error: type[Exception], *, wraps: bool = False
) -> None:
    """Raise ``error`` for an index out of range; on a GPU the kernel traps instead of waiting here.

    Args:
        index: integers.
        size: of the dimension.
        dim: the dimension, for the message.
        error: the exception that ATen raises.
        wraps: negative indices count from the end.
    """
    position = out_of_range(index, size, wraps=wraps)
    if position is not None:
        raise error(f"index {position} is out of bounds for dimension {dim} with size {size}")


def out_of_range(index: Tensor, size: int, *, wraps: bool = False) -> int | None:
    """A position on the CPU that is none of ``size``; from ``-size`` on where it ``wraps``."""
    if not index.is_cpu or index.numel() == 0:
        return None
    lowest = -size if wraps else 0
    ends: list[int] = torch.stack(torch.aminmax(index)).tolist()
    return next((position for position in ends if not lowest <= position < size), None)


def axis_of(self: Tensor, dim: int) -> int:
    """``dim`` from 0; a tensor without dimensions has one.

    Raises:
        IndexError: it is out of range.
    """
    size = max(self.dim(), 1)
    if not -size <= dim < size:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-size}, {size - 1}], "
            f"but got {dim})"
        )
    return dim % size


def values_beside(out: Tensor, values: Tensor) -> Tensor:
    """Return values to be put into ``out`` on its device.

    Raises:
        RuntimeError: another dtype, or another device and more than a scalar.
    """
    if values.dtype != out.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{out.dtype} for the destination and {values.dtype} for the source."
        )
    device = out.device
    if values.device == device:
        return values
    if values.dim() > 0:
        raise RuntimeError(
            f"expected values on {device}, where self is, but they are on {values.device}"
        )
    return values.to(device)


def in_contiguous(
    target: Tensor, move_rows: Callable[..., None], *arguments: Any, **options: Any
) -> Tensor:
    """``target`` with what ``move_rows`` does to it, or to a contiguous copy of it."""
    work = contiguous(target)
    move_rows(work, *arguments, **options)
    return target if work is target else target.copy_(work)


def result_of(
    self: Tensor, out: Tensor | None, index: Tensor, source: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, which holds ``self`` so far, and the index and the source apart from its memory.

    ``out``: the result where it is given; it holds ``self``.
    """
    if out is None:
        return clone(self, memory_format=torch.contiguous_format), index, source
    return out, copy_if_overlapping(out, index), copy_if_overlapping(out, source)


def copy_if_overlapping(out: Tensor, source: Tensor) -> Tensor:
    """``source``, or a copy where ``out`` may overwrite it before it is read.

    What certainly overlaps was refused before, as by ATen.
    """
    if out.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
        return source
    out_begin, out_end = extent_of(out)
    begin, end = extent_of(source)
    return clone(source) if max(begin, out_begin) < min(end, out_end) else source
