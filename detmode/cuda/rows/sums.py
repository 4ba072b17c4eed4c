"""Adding rows of a tensor to the destinations that an index names, or multiplying them by rows.

Integers, in one way or another, or sorted rows lead to sums that do not depend on the order of
threads.
:mod:`detmode.cuda.rows.ways` chooses.
"""

from __future__ import annotations

import functools
from collections import namedtuple
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
from detmode.cuda.rows.exponent_bins import add_in_bins
from detmode.cuda.rows.positions import of_elements
from detmode.cuda.rows.shapes import AT_ONCE, CROWDED_COLUMNS, PIECE, SHARE, Rows, flat
from detmode.cuda.rows.sort import sorted_positions
from detmode.cuda.rows.source import FEW, INTEGERS, SORTED, TOGETHER, widths
from detmode.cuda.rows.ways import Way, choose_product, choose_sum
from detmode.cuda.strips import Strips

THREADS = 256
"""Of a block that reduces carries."""
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
    how: dict[str, Any] = {"include_self": include_self, "mean": mean, "alpha": scaling}
    if isinstance(way, Strips):
        launch_blocks(
            INTEGERS, f"index_add_strips<{ctype(out.dtype)}>", way.blocks, way.threads, way.shared,
            index=index, source=source, out=out, strip=way.strip, strips=way.strips, shape=shape,
            headroom=_headroom(shape), **how,
        )  # fmt: skip
    elif way is Way.BINS:
        add_in_bins(out, index, source, shape, scaling)
    elif way in (Way.SINGLY, Way.TOGETHER):
        together = TOGETHER if way is Way.TOGETHER else 1
        _add_integers(out, index, source, shape, by_row, together, **how)
    else:
        row = _summed(out.dtype, way, begin, (shape if by_row else flat(shape)).inner)
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
    how = {"include_self": include_self, "mean": False, "alpha": UNSCALED}
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
    together: int,
    include_self: bool,
    mean: bool,
    alpha: Scaling,
) -> None:
    """Add rows as integers, of which a thread takes so many elements ``together``."""
    scalar, headroom = ctype(out.dtype), _headroom(shape)
    n, addends = shape.destinations, shape.addends
    crowded = str(shape.inner <= CROWDED_COLUMNS).lower()
    keys, sums, counts = _scratch(out, n, mean)
    # More turns than one where enough threads are left.
    threads = max(-(-addends // TURNS), min(-(-addends // together), MOST))
    read: dict[str, Any] = {"index": index, "source": source, "keys": keys}
    read |= {"n": addends, "shape": shape, "by_row": by_row, "alpha": alpha}
    launch(INTEGERS, f"index_add_observe<{scalar}, {together}>", threads, **read)
    launch(
        INTEGERS, f"index_add_admit_self<{scalar}>", n,
        self=out, keys=keys, sums=sums, n=n, headroom=headroom, include_self=include_self,
    )  # fmt: skip
    launch(
        INTEGERS, f"index_add_accumulate<{scalar}, {crowded}, {together}>", threads,
        sums=sums, counts=counts, headroom=headroom, **read,
    )  # fmt: skip
    launch(
        INTEGERS, f"index_add_finish<{scalar}>", n,
        keys=keys, sums=sums, counts=counts, out=out, n=n, headroom=headroom,
        include_self=include_self,
    )  # fmt: skip


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


def _summed(dtype: torch.dtype, way: Way | None, begin: int, inner: int) -> _Row:
    """The sum of rows of so many columns, which begin so many bytes behind ``AT_ONCE`` of them."""
    if way is Way.WIDE:
        return _row(dtype, AT_ONCE // dtype.itemsize)
    row = _row(dtype, widths(dtype)[-1])
    # Reading several columns at once needs aligned rows, and does not change the bits.
    return _row(dtype, 1) if begin % 8 or inner % row.width else row


@functools.cache
def _row(dtype: torch.dtype, width: int) -> _Row:
    components, words = parts_of(dtype)
    return _Row(f"row_sum<{ctype(dtype)}>", width, components * words)


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
    mean: bool,
    alpha: Scaling,
) -> None:
    """Sort the rows' index, and reduce them in pieces; of ``wide`` ones there is no mean."""
    keys, order = sorted_positions(index, shape.size, wraps=shape.wraps)
    carries = new_carries(out, shape, row.words)
    types = f"{row.name}, {row.width}, {ctype(keys.dtype)}"
    entry, of_carries = f"sorted_rows<{types}>", types
    pieces, means = pieces_of(shape.rows), {"mean": mean}
    if wide:
        entry, of_carries = f"wide_rows<{types}>", f"{types}, true"
        pieces, means = -(-shape.rows // SHARE), {}
    launch(
        SORTED, entry, pieces * (shape.outer * shape.inner // row.width),
        keys=keys, order=order, source=source, out=out, carries=carries, shape=shape,
        include_self=include_self, alpha=alpha, **means,
    )  # fmt: skip
    reduce_carries(
        of_carries, row.width, shape,
        keys=keys, out=out, carries=carries, include_self=include_self, mean=mean,
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
    mean: bool = False,
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
        mean: as for :func:`add_rows`.
    """
    groups, pieces, level = shape.outer * shape.inner // width, pieces_of(shape.rows), 0
    while pieces > 1:
        pieces, level = pieces_of(2 * pieces), level + 1
        # Few pieces of a few columns are a block's, which goes on through all levels by itself.
        owned = THREADS // pieces if pieces <= PIECE else 0
        blocks = -(-groups // owned) if owned else -(-pieces * groups // THREADS)
        launch_blocks(
            SORTED, f"sorted_carries<{types}>", blocks, THREADS,
            keys=keys, out=out, carries=carries, shape=shape, level=level, owned=owned,
            include_self=include_self, mean=mean,
        )  # fmt: skip
        if owned:
            return
