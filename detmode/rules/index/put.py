"""Puts values where indices of some dimensions say."""

from __future__ import annotations

from math import prod

from torch import Tensor

from detmode.cuda import contiguous, new_arange
from detmode.cuda.rows.assign import assign_rows
from detmode.cuda.rows.positions import broadcast, check_on_host, in_contiguous, linearize
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.sums import add_rows

Given = dict[int, Tensor]
"""The index of each dimension that has one, ascending."""


def add_named(out: Tensor, named: Given, values: Tensor) -> None:
    """Add ``values`` to ``out``, duplicates too."""
    rows = broadcast(list(named.values()))
    order, sizes, source_shape, shape = _layout(out.shape, tuple(named), rows)
    source = _source(out, named, values, source_shape)
    if source is not None:
        target = out if order is None else out.permute(order)
        positions = _positions([*zip(named.values(), sizes)], rows)
        in_contiguous(target, add_rows, positions, source, shape)


def assign_named(out: Tensor, named: Given, values: Tensor, *, unique: bool) -> None:
    """Write ``values`` to ``out``, which is contiguous; ``unique``: no place is named twice."""
    rows = broadcast(list(named.values()))
    order, sizes, source_shape, shape = _layout(out.shape, tuple(named), rows)
    if order is None:
        source = _source(out, named, values, source_shape)
        if source is not None:
            positions = _positions([*zip(named.values(), sizes)], rows)
            assign_rows(out, positions, source, shape, unique=unique)
        return
    # Nothing is copied back where the dimensions in between have positions, too.
    last = max(named) + 1
    others = [dim for dim in range(last) if dim not in named]
    named_shape = (*rows, *(out.shape[dim] for dim in others))
    tail = out.shape[last:]
    source = _source(out, named, values, (*named_shape, *tail))
    if source is not None:
        sized = [(_spread(named, others, dim, out), out.shape[dim]) for dim in range(last)]
        positions = linearize(sized, None, named_shape, wraps=True)
        shape = Rows(1, prod(named_shape), prod(tail), prod(out.shape[:last]))
        assign_rows(out, positions, source, shape, unique=unique)


def _source(out: Tensor, named: Given, values: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """The values in a shape, contiguous; None for no elements. Raise for an index out of range."""
    source = values.expand(shape)
    if source.numel() == 0:
        return None
    for dim, index in named.items():
        size = out.shape[dim]
        if size == 0:
            raise IndexError("index is out of bounds for dimension with size 0")
        check_on_host(index, size, dim, IndexError, wraps=True)
    return contiguous(source)


def _layout(
    sizes: tuple[int, ...], dims: tuple[int, ...], rows: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, tuple[int, ...], tuple[int, ...], Rows]:
    """The order of dimensions in which those with an index are adjacent, None where they are; their
    sizes; the shape of the values, and how they lie.
    """
    order, (first, behind) = None, (dims[0], dims[-1] + 1)
    if behind - first != len(dims):
        # Adjacent indices leave their dimensions where they are; others put theirs first.
        order = (*dims, *(dim for dim in range(len(sizes)) if dim not in dims))
        sizes = tuple(sizes[dim] for dim in order)
        first, behind = 0, len(dims)
    head, named, tail = sizes[:first], sizes[first:behind], sizes[behind:]
    shape = Rows(prod(head), prod(rows), prod(tail), prod(named), wraps=len(dims) == 1)
    return order, named, (*head, *rows, *tail), shape


def _positions(sized: list[tuple[Tensor, int]], rows: tuple[int, ...]) -> Tensor:
    """Positions of the rows. Those of one index are as given: some may count from the end."""
    if len(sized) == 1:
        return contiguous(sized[0][0])
    return linearize(sized, None, rows, wraps=True)


def _spread(named: Given, others: list[int], dim: int, out: Tensor) -> Tensor:
    """The index of a dimension, to broadcast over those without one, which stand behind."""
    if dim in named:
        return named[dim][(..., *(None,) * len(others))]
    place = others.index(dim)
    whole = new_arange(out, out.shape[dim])
    return whole.view(-1, *(1,) * (len(others) - place - 1))
