"""Launcher of index_put(accumulate=False)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from detmode.cuda.rows.assign import assign_rows
from detmode.cuda.rows.positions import (
    broadcast,
    check_on_host,
    check_values,
    copy_if_overlapping,
    expand_masks,
    linearize,
)
from detmode.cuda.rows.shapes import Rows

__all__ = ["index_put_last"]

_MASKS = (torch.bool, torch.uint8)


def index_put_last(
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``self[indices] = values``, of duplicates the last: ``aten::index_put``, ``self`` contiguous.

    ``aten::_unsafe_index_put`` and ``aten::_index_put_impl`` are the same: ``unsafe`` promises
    indices in range, which are checked all the same. Boolean masks become indices by ``nonzero``,
    which waits for the GPU, as in ATen.

    Raises:
        IndexError, RuntimeError: what ATen rejects; indices out of range on the CPU only.
    """
    if out is None:
        out = self.clone()
    named = [index for index in indices if index is not None]
    given = {
        dim: index for dim, index in enumerate(expand_masks(out, indices)) if index is not None
    }
    if not given:
        # ATen has its own ways with nothing to index by.
        return out.copy_(torch.ops.aten.index_put(self, indices, values, accumulate))
    check_values(out, values)
    rows = broadcast(list(given.values()))
    first, last = min(given), max(given) + 1
    adjacent = last - first == len(given)
    # Adjacent indices leave their dimensions where they are; others put theirs first.
    others = [dim for dim in range(last) if dim not in given]
    between = [out.shape[dim] for dim in others]
    tail = out.shape[last:]
    named_shape = (*between, *rows) if adjacent else (*rows, *between)
    source = (
        copy_if_overlapping(out, values.to(out.device)).expand((*named_shape, *tail)).contiguous()
    )
    if source.numel() == 0:
        return out
    for dim, index in given.items():
        if out.shape[dim] == 0:
            raise IndexError("index is out of bounds for dimension with size 0")
        check_on_host(index, out.shape[dim], dim, IndexError, wraps=True)
    if adjacent:
        found = [(index, out.shape[dim]) for dim, index in given.items()]
        positions = linearize(found, None, rows, wraps=True)
        shape = Rows(prod(between), prod(rows), prod(tail), prod(out.shape[first:last]))
    else:
        found = [(_spread(given, others, dim, out), out.shape[dim]) for dim in range(last)]
        positions = linearize(found, None, named_shape, wraps=True)
        shape = Rows(1, prod(named_shape), prod(tail), prod(out.shape[:last]))
    # A mask names no place twice.
    unique = len(named) == 1 and named[0].dtype in _MASKS
    assign_rows(out, positions, source, shape, unique=unique)
    return out


def _spread(given: dict[int, Tensor], others: list[int], dim: int, out: Tensor) -> Tensor:
    """The index of a dimension, to broadcast over those without one, which stand behind."""
    if dim in given:
        return given[dim][(..., *(None,) * len(others))]
    place = others.index(dim)
    whole = torch.arange(out.shape[dim], device=out.device)
    return whole.view(-1, *(1,) * (len(others) - place - 1))
