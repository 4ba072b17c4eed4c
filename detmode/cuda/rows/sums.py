"""Adding rows of a tensor to the destinations that an index names, or multiplying them by rows.

Integers, in one way or another, or sorted rows lead to sums that do not depend on the order of
threads.
:mod:`detmode.cuda.rows.ways` chooses.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detmode.cuda import (
    ctype,
    launch,
    launch_blocks,
    most_shared,
    new_empty,
    new_zeros,
    parts_of,
    stretch,
)
from detmode.cuda.rows import few_destinations
from detmode.cuda.rows.exponent_bins import add_in_bins
from detmode.cuda.rows.positions import of_elements
from detmode.cuda.rows.shapes import AT_ONCE, CROWDED_COLUMNS, PIECE, SHARE, Rows, flat
from detmode.cuda.rows.sort import sorted_positions
from detmode.cuda.rows.source import FEW, INTEGERS, MOST_CARRIED, SORTED, TOGETHER, widths
from detmode.cuda.rows.strips import Strips
from detmode.cuda.rows.ways import Way, choose_product, choose_sum

THREADS = 512
"""Of a block that reduces carries."""
MOST_OWNED = PIECE**2
"""Carries of a column up to which a block goes on through all of their levels by itself."""
TURNS = 16
"""Elements of a thread at most."""
MOST = 2**18
"""Threads from which each may have more elements: a GPU holds as many at once."""

Scaling = namedtuple("Scaling", "scaled re im")
"""The struct of ``scaling.cuh``: whether addends have a factor, and which."""
UNSCALED = Scaling(False, 1.0, 0.0)


def add_rows(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    *,
    alpha: complex = 1,
    include_self: bool = True,
    mean: bool = False,
    way: Way | Strips | None = None,
) -> None:
    """Add ``source`` to ``out`` where ``index`` says; a destination without addend keeps its bits.

    Args:
        out: contiguous, ``shape.destinations`` elements.
        index: contiguous int64, ``shape.rows`` positions in ``[0, shape.size)``, one for a row in
            each of ``shape.outer``, or one for each element of ``source``; where ``shape.wraps``,
            in ``[-shape.size, shape.size)``.
        source: contiguous, ``shape.addends`` elements, of the dtype of ``out``.
        shape: their layout.
        alpha: a factor for the addends.
        include_self: whether what a destination held is an addend too.
        mean: divide each sum by the number of its addends.
        way: None for the one that :func:`~detmode.cuda.rows.ways.choose_sum` chooses.
    """
    if shape.addends == 0:
        return
    by_row, begin = index.numel() == shape.rows, source.data_ptr() % AT_ONCE
    aligned = not (begin or out.data_ptr() % AT_ONCE)
    shared = 0 if by_row else most_shared(out)
    way = way or choose_sum(
        shape, out.dtype, by_row=by_row, mean=mean, include_self=include_self, aligned=aligned,
        shared=shared,
    )  # fmt: skip
    scaling = UNSCALED if alpha == 1 else Scaling(True, float(alpha.real), float(alpha.imag))
    how: dict[str, Any] = {"include_self": include_self, "alpha": scaling}
    if isinstance(way, Strips):
        launch_blocks(
            INTEGERS, f"index_add_strips<{ctype(out.dtype)}>", way.blocks, way.threads, way.shared,
            index=index, source=source, out=out, strip=way.strip, strips=way.strips, shape=shape,
            headroom=_headroom(shape), mean=mean, **how,
        )  # fmt: skip
    elif way is Way.BINS:
        add_in_bins(out, index, source, shape, scaling)
    elif way in (Way.SINGLY, Way.TOGETHER, Way.IN_BLOCKS):
        _add_integers(out, index, source, shape, by_row, way, mean=mean, **how)
    else:
        row = _summed(out.dtype, way, begin, (shape if by_row else flat(shape)).inner, mean)
        _reduce(row, way, out, index, source, shape, how)


def multiply_rows(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    *,
    include_self: bool = True,
    way: Way | None = None,
) -> None:
    """Multiply ``out`` by ``source`` where ``index`` says; other destinations keep their bits.

    Args:
        out: as for :func:`add_rows`, of a floating or integral dtype.
        index: likewise.
        source: likewise.
        shape: likewise.
        include_self: whether what a destination held is a factor too.
        way: few or sorted; None for the one that the shape chooses.
    """
    if shape.addends == 0:
        return
    way = way or choose_product(shape, by_row=index.numel() == shape.rows)
    # product_t of product.cuh
    words = 1 if not out.is_floating_point() else 3 if out.dtype is torch.float64 else 2
    row = _Row(f"row_product<{ctype(out.dtype)}>", 1, words)
    how = {"include_self": include_self, "alpha": UNSCALED}
    _reduce(row, way, out, index, source, shape, how)


def _headroom(shape: Rows) -> int:
    """The bits by which the sum of all rows may be longer than an addend."""
    return (shape.rows + 1).bit_length()


def _add_integers(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    by_row: bool,
    way: Way,
    include_self: bool,
    mean: bool,
    alpha: Scaling,
) -> None:
    """Add rows as integers, in one of the ways that do so in memory."""
    scalar, headroom, n = ctype(out.dtype), _headroom(shape), shape.destinations
    keys, sums, counts = _scratch(out, n, mean)
    if way is Way.IN_BLOCKS:
        observe, accumulate = few_destinations.launches(shape, out.dtype, mean=mean)
    else:
        observe, accumulate = _in_memory(scalar, shape, TOGETHER if way is Way.TOGETHER else 1)
    read: dict[str, Any] = {"index": index, "source": source, "keys": keys}
    read |= {"n": shape.addends, "shape": shape, "by_row": by_row, "alpha": alpha}
    observe(**read)
    launch(
        INTEGERS, f"index_add_admit_self<{scalar}>", n,
        self=out, keys=keys, sums=sums, n=n, headroom=headroom, include_self=include_self,
    )  # fmt: skip
    accumulate(sums=sums, counts=counts, headroom=headroom, **read)
    launch(
        INTEGERS, f"index_add_finish<{scalar}>", n,
        keys=keys, sums=sums, counts=counts, out=out, n=n, headroom=headroom,
        include_self=include_self,
    )  # fmt: skip


def _in_memory(
    scalar: str, shape: Rows, together: int
) -> tuple[Callable[..., None], Callable[..., None]]:
    """The launches that observe and accumulate; a thread takes so many elements ``together``."""
    crowded = str(shape.inner <= CROWDED_COLUMNS).lower()
    # More turns than one where enough threads are left.
    threads = max(-(-shape.addends // TURNS), min(-(-shape.addends // together), MOST))
    observe, accumulate = (
        partial(launch, INTEGERS, f"index_add_{kernel}, {together}>", threads)
        for kernel in (f"observe<{scalar}", f"accumulate<{scalar}, {crowded}")
    )
    return observe, accumulate


def _scratch(out: Tensor, n: int, mean: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Zeros for keys and sums of ``n`` destinations, and for the counts of their addends."""
    components, words = parts_of(out.dtype)
    n_sums, n_counts, n_keys = n * components * words, n if mean else 0, (n * components + 1) // 2
    # One allocation, so one fill.
    scratch = new_zeros(out, (n_sums + n_counts + n_keys,), torch.int64)
    keys = stretch(scratch, n_sums + n_counts, n_keys).view(torch.int32)
    counts = stretch(scratch, n_sums, n_counts) if mean else None
    return keys, stretch(scratch, 0, n_sums), counts


class _Row(NamedTuple):
    """The reduction of rows.

    Args:
        name: of the struct that reduces one element after the other, as a template's argument.
        width: the columns that a thread reduces side by side.
        words: the words of 64 bits that it carries of each.
    """

    name: str
    width: int
    words: int


def _summed(dtype: torch.dtype, way: Way | None, begin: int, inner: int, mean: bool) -> _Row:
    """The sum of rows of so many columns, which begin so many bytes behind ``AT_ONCE`` of them."""
    width = AT_ONCE // dtype.itemsize if way is Way.WIDE else widths(dtype)[-1]
    # Reading several columns at once needs aligned rows, and does not change the bits.
    if way is not Way.WIDE and (begin % 8 or inner % width):
        width = 1
    components, words = parts_of(dtype)
    return _Row(f"row_{'mean' if mean else 'sum'}<{ctype(dtype)}>", width, components * words)


def _reduce(
    row: _Row,
    way: Way | None,
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    how: dict[str, Any],
) -> None:
    """Reduce rows: at once where they are few, otherwise sorted."""
    by_row = index.numel() == shape.rows
    named = shape if by_row else flat(shape)
    if way is Way.FEW:
        launch(
            FEW, f"few_rows<{row.name}, {row.width}>", named.addends // row.width,
            index=index, source=source, out=out, shape=shape, by_row=by_row, **how,
        )  # fmt: skip
        return
    index = index if by_row else of_elements(index, shape)
    _reduce_sorted(row, way is Way.WIDE, out, index, source, named, **how)


def _reduce_sorted(
    row: _Row,
    wide: bool,
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    include_self: bool,
    alpha: Scaling,
) -> None:
    """Sort the rows' index, and reduce them in pieces; of ``wide`` ones there is no mean."""
    keys, order = sorted_positions(index, shape.size, wraps=shape.wraps)
    carries = new_carries(out, shape, row.words)
    entry, pieces, carried, width = "sorted_rows", pieces_of(shape.rows), "", row.width
    if wide:
        entry, pieces, carried = "wide_rows", -(-shape.rows // SHARE), ", true"
        width = min(width, MOST_CARRIED)
    key = ctype(keys.dtype)
    launch(
        SORTED, f"{entry}<{row.name}, {row.width}, {key}>",
        pieces * (shape.outer * shape.inner // row.width),
        keys=keys, order=order, source=source, out=out, carries=carries, shape=shape,
        include_self=include_self, alpha=alpha,
    )  # fmt: skip
    reduce_carries(
        f"{row.name}, {width}, {key}{carried}", width, shape,
        keys=keys, out=out, carries=carries, include_self=include_self,
    )  # fmt: skip


def pieces_of(rows: int) -> int:
    """Return the pieces of so many sorted rows, or carries, each reduced one after the other."""
    return -(-rows // PIECE)


def new_carries(out: Tensor, shape: Rows, words: int) -> Tensor | None:
    """Return memory for what the pieces of sorted rows carry, at all levels; None for one piece.

    Args:
        out: as for :func:`add_rows`.
        shape: the layout of the rows.
        words: the words of 64 bits that a piece carries of each column.
    """
    slots, pieces = 0, pieces_of(shape.rows)
    while pieces > 1:
        # Each piece carries its first run and its last one.
        slots += 2 * pieces
        pieces = pieces_of(2 * pieces)
    if not slots:
        return None
    return new_empty(out, (slots * shape.outer * shape.inner * words,), torch.float64)


def reduce_carries(
    types: str,
    width: int,
    shape: Rows,
    *,
    keys: Tensor,
    out: Tensor,
    carries: Tensor | None,
    include_self: bool,
) -> None:
    """Launch the reduction of what the pieces of sorted rows carry, level by level.

    Args:
        types: the template arguments of ``sorted_carries``.
        width: the columns that a thread reduces side by side.
        shape: the layout of the rows.
        keys: the destinations of the rows, ascending, int32 or int64.
        out: as for :func:`add_rows`.
        carries: by :func:`new_carries`, with those of the rows.
        include_self: as for :func:`add_rows`.
    """
    groups, pieces, level = shape.outer * shape.inner // width, pieces_of(shape.rows), 0
    while pieces > 1:
        slots, pieces, level = 2 * pieces, pieces_of(2 * pieces), level + 1
        # A thread takes the carries at a border of pieces, or at an end.
        borders = slots // 2 + 1
        owned = max(THREADS // borders, 1) if slots <= MOST_OWNED else 0
        blocks = -(-groups // owned) if owned else -(-borders * groups // THREADS)
        launch_blocks(
            SORTED, f"sorted_carries<{types}>", blocks, THREADS,
            keys=keys, out=out, carries=carries, shape=shape, level=level, owned=owned,
            include_self=include_self,
        )  # fmt: skip
        if owned:
            return
