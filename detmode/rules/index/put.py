"""Puts values where indices of some dimensions say."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from detmode.cuda.rows.assign import assign_rows
from detmode.cuda.rows.positions import broadcast, check_on_host, in_contiguous, linearize
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.sums import add_rows

Given = dict[int, Tensor]
"""The index of each dimension that has one, ascending."""


def add_named(out: Tensor, given: Given, values: Tensor) -> None:
    """Add ``values`` to ``out``, duplicates too."""
    rows, dims = broadcast(list(given.values())), list(given)
    others = [dim for dim in range(out.dim()) if dim not in given]
    # Adjacent indices leave their dimensions where they are; others put theirs first.
    before = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    target = out.permute(*others[:before], *dims, *others[before:])
    sizes = target.shape[before : before + len(dims)]
    head, tail = target.shape[:before], target.shape[before + len(dims) :]
    source = values.expand((*head, *rows, *tail))
    if source.numel() == 0:
        return
    _check_bounds(out, given)
    positions, wraps = _positions(list(zip(given.values(), sizes)), rows)
    shape = Rows(prod(head), prod(rows), prod(tail), prod(sizes), wraps)
    in_contiguous(target, add_rows, positions, source.contiguous(), shape)


def assign_named(out: Tensor, given: Given, values: Tensor, *, unique: bool) -> None:
    """Write ``values`` to ``out``, which is contiguous; ``unique``: no place is named twice."""
    rows = broadcast(list(given.values()))
    first, last = min(given), max(given) + 1
    adjacent = last - first == len(given)
    # Adjacent indices leave their dimensions where they are; others put theirs first.
    others = [dim for dim in range(last) if dim not in given]
    between = [out.shape[dim] for dim in others]
    tail = out.shape[last:]
    named_shape = (*between, *rows) if adjacent else (*rows, *between)
    source = values.expand((*named_shape, *tail)).contiguous()
    if source.numel() == 0:
        return
    _check_bounds(out, given)
    if adjacent:
        found = [(index, out.shape[dim]) for dim, index in given.items()]
        positions, wraps = _positions(found, rows)
        shape = Rows(prod(between), prod(rows), prod(tail), prod(out.shape[first:last]), wraps)
    else:
        found = [(_spread(given, others, dim, out), out.shape[dim]) for dim in range(last)]
        positions = linearize(found, None, named_shape, wraps=True)
        shape = Rows(1, prod(named_shape), prod(tail), prod(out.shape[:last]))
    assign_rows(out, positions, source, shape, unique=unique)


def _positions(found: list[tuple[Tensor, int]], rows: tuple[int, ...]) -> tuple[Tensor, bool]:
    """Positions of the rows, and whether some may count from the end: those of one index alone."""
    if len(found) == 1:
        return found[0][0].expand(rows).contiguous(), True
    return linearize(found, None, rows, wraps=True), False


def _check_bounds(out: Tensor, given: Given) -> None:
    for dim, index in given.items():
        if out.shape[dim] == 0:
            raise IndexError("index is out of bounds for dimension with size 0")
        check_on_host(index, out.shape[dim], dim, IndexError, wraps=True)


def _spread(given: Given, others: list[int], dim: int, out: Tensor) -> Tensor:
    """The index of a dimension, to broadcast over those without one, which stand behind."""
    if dim in given:
        return given[dim][(..., *(None,) * len(others))]
    place = others.index(dim)
    whole = torch.arange(out.shape[dim], device=out.device)
    return whole.view(-1, *(1,) * (len(others) - place - 1))
