"""The choice of the way to add rows, or to assign them: fewer launches, then fewer bytes.

* *integers*: per destination the largest exponent, then the addends as integers of that scale.
  Reads ``source`` and the index twice, an exponent and a sum per addend; needs 12 bytes (float64:
  20) of scratch per destination. Single elements of many planes that are not
  too large are added in shared memory, by blocks that need no scratch; and many elements at few
  destinations by blocks that each have all destinations in shared memory first.
* *sorted rows*: a stable sort of the index, then one pass over the rows in pieces of 64, added up
  in float64 (float64 itself: in pairs of float64), and the pieces' carries in the same way.
* *few rows*: one piece of these without the sort, in one launch instead of five or more. So is a
  single row, of which at most one addend reaches a destination, however long it is.
* *bins*: single elements, four for each destination or more. Reads the elements twice and the index
  once, and adds each in one integer addition, exactly; needs up to 136 bytes of scratch for each
  destination (bfloat16: 72, float16: 24), of which it uses what the exponents span.

Sizes and dtypes choose between these, so that the bits of a sum are the same on every GPU. Other
choices change no bit; the shared memory of a block takes part in them.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum, auto

import torch

from detmode.cuda import bytes_of_sum, index_ctype, parts_of
from detmode.cuda.rows.exponent_bins import has_bins
from detmode.cuda.rows.few_destinations import blocks_of
from detmode.cuda.rows.shapes import AT_ONCE, MOST_SORTED, PIECE, Rows, flat
from detmode.cuda.rows.strips import Strips, strips_of

WIDE = 512
"""Bytes of a wide row: what a warp reads at once, so that all of its threads have one share."""

MOST_WIDE = 2**32 - 1
"""The most bytes of a wide row, which its kernel multiplies in 32 bits by the row's position."""

SECTOR = 32
"""The fewest bytes that a GPU moves at once."""

MOST_OF_FEW = 1 << 16
"""The most elements of which each is moved by a thread that reads the whole index."""

MOST_EMPTY = 16
"""Destinations for each element up to which it is worth it that a block looks at all of its own."""

MOST_ADDED_STRIPS, MOST_ASSIGNED_STRIPS = 6, 20
"""Into which a plane is cut at most: each strip's block reads all addends, or all of the index."""

FILLED, MOST_OWNERS = 1 << 24, 16
"""Owners that are filled in less time than the launches of a sort take; and owners of each row, up
to which filling and reading them takes less than elections in rows that are far apart."""

MARK = 4
"""Bytes of a destination that hold a position while it elects the last row that names it."""

MANY = 2**19
"""Elements from which a thread takes several at once: with fewer, more threads are better."""

SORTED_SIZES, SORT_BYTES = (1 << 15, 1 << 31), (64, 120, 280)
"""The bytes of a row's sort in the choice of a way, up to so many destinations, and beyond.

They are those of a sort of 8 bits a pass with 64-bit positions. The one at hand moves less
(``docs/design/performance-notes.md``), but the choice decides on bits: it stays until it is
measured."""


class Way(Enum):
    """A way to move rows. :class:`Strips` are one too: in shared memory."""

    FEW = auto()
    """In one launch: a thread finds the rows of its destination itself."""
    SORTED = auto()
    """By a stable sort of the index."""
    WIDE = auto()
    """The same, and several columns are read at once. Needs aligned rows; its bits are those."""
    BINS = auto()
    """Sums of single elements, exact but for one rounding, in bins by exponent."""
    SINGLY = auto()
    """Sums of integers, of which a thread takes one element after the other."""
    TOGETHER = auto()
    """The same bits of a thread that takes several elements at once."""
    IN_BLOCKS = auto()
    """The same bits of blocks that add for themselves first: of many elements at few places."""
    ELECTED = auto()
    """Assignments: each destination elects the last row that names it, in memory beside it."""
    IN_PLACE = auto()
    """Assignments: it does so in its own memory, which holds what is assigned afterwards."""
    DIRECT = auto()
    """Assignments, where no destination is named twice."""


def choose_sum(
    shape: Rows,
    dtype: torch.dtype,
    *,
    by_row: bool = True,
    mean: bool = False,
    include_self: bool = True,
    aligned: bool = False,
    shared: int = 0,
) -> Way | Strips:
    """Choose how rows are added.

    Args:
        shape: their layout.
        dtype: of the rows, and of what they are added to.
        by_row: one index is for a whole row, not for an element.
        mean: sums are divided by the number of their addends.
        include_self: a destination's value before is an addend too.
        aligned: both memories begin at a multiple of ``AT_ONCE`` bytes.
        shared: bytes of shared memory that a block may have.
    """
    named = shape if by_row else flat(shape)
    if _are_few(named) or (shape.rows == 1 and not mean):
        return Way.FEW
    has_blocks = blocks_of(shape, dtype, mean=mean) > 0
    if by_row and include_self and not mean and has_bins(shape, dtype) and not has_blocks:
        return Way.BINS
    if _sort_moves_less(named, dtype):
        return Way.WIDE if aligned and not mean and _are_wide(named, dtype) else Way.SORTED
    strips = None
    if not by_row:
        strips = _strips_of(shape, bytes_of_sum(dtype) + 4 * mean, shared, MOST_ADDED_STRIPS)
    if strips is None and has_blocks:
        return Way.IN_BLOCKS
    return strips or (Way.TOGETHER if shape.addends >= MANY else Way.SINGLY)


def choose_product(shape: Rows, *, by_row: bool = True) -> Way:
    """Choose how rows are multiplied. The arguments are those of :func:`choose_sum`."""
    few = shape.rows == 1 or _are_few(shape if by_row else flat(shape))
    return Way.FEW if few else Way.SORTED


def choose_assignment(
    shape: Rows, *, width: int, by_row: bool = True, unique: bool = False, shared: int = 0
) -> Way | Strips:
    """Choose how rows are assigned; every way gives the same bits.

    Args:
        shape: as for :func:`choose_sum`, in words that move at once, as ``by_row`` and ``shared``.
        width: bytes of a word.
        by_row: see there.
        unique: no destination is named twice.
        shared: see there.
    """
    named = shape if by_row else flat(shape)
    if unique or shape.rows == 1:
        return Way.DIRECT
    if by_row and _are_few(named):
        return Way.FEW
    strips = None if by_row else _strips_of(shape, 4, shared, MOST_ASSIGNED_STRIPS)
    if strips is not None:
        return strips
    if width >= MARK and _elects_in_place(named):
        return Way.IN_PLACE
    return Way.ELECTED if _elects(named) else Way.SORTED


# In these, `shape` has an index for each row.


def _are_few(shape: Rows) -> bool:
    """Return whether one launch moves the rows.

    Sums of such rows are one piece, so the bits are those of sorted rows.
    """
    return shape.rows <= PIECE and shape.addends <= MOST_OF_FEW


def _are_wide(shape: Rows, dtype: torch.dtype) -> bool:
    """Return whether sorted rows are wide; their keys must not need 64 bits."""
    run = shape.inner * dtype.itemsize
    return WIDE <= run <= MOST_WIDE and run % AT_ONCE == 0 and shape.size <= MOST_SORTED


def _sort_moves_less(shape: Rows, dtype: torch.dtype) -> bool:
    """Return whether rows can be sorted, and fewer bytes move than of their sums as integers."""
    outer, rows, inner, size, _ = shape
    if rows > MOST_SORTED:
        return False
    of_sorted, of_integers, of_destination, of_carry = _bytes_moved(inner, dtype)
    runs = outer * rows
    sort = rows * SORT_BYTES[bisect_left(SORTED_SIZES, size)]
    carries = runs * inner * 4 // PIECE * of_carry
    integers = runs * of_integers + outer * size * of_destination
    return sort + runs * of_sorted + carries < integers


def _bytes_moved(inner: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """The bytes that move for a row in one of ``outer``: if it is sorted, without the sort and what
    pieces carry; if it is added as integers; of a destination's, as integers; of a column's carry.
    """
    components, words = parts_of(dtype)
    width = dtype.itemsize
    atomics = _sectors(4 * components * inner) + _sectors(8 * words * components * inner)
    return (
        SECTOR * _sectors(inner * width),
        2 * inner * width + 16 + SECTOR * atomics,
        3 * inner * bytes_of_sum(dtype),
        8 * components * words,
    )


def _sectors(n_bytes: int) -> int:
    return -(-n_bytes // SECTOR)


def _elects(shape: Rows) -> bool:
    """Return whether to elect an owner for each destination of an assignment instead of sorting.

    Owners, one for each destination, are filled first, so a sort, which has more launches, is
    cheaper where there are very many of them, and many more than rows. More rows than can be sorted
    have owners.
    """
    return shape.size <= max(FILLED, MOST_OWNERS * shape.rows) or shape.rows > MOST_SORTED


def _elects_in_place(shape: Rows) -> bool:
    """Return whether each destination elects its row in its own first word.

    Nothing is filled, or sorted. Single elements are in that word anyway; for others owners beside
    them are closer together, unless there are many more than rows.
    """
    is_near = shape.outer * shape.inner == 1 or shape.size > MOST_OWNERS * shape.rows
    return is_near and shape.rows <= MOST_SORTED


def _strips_of(shape: Rows, element_bytes: int, shared: int, most_strips: int) -> Strips | None:
    """Return the strips of planes, in which each element has an index, or None.

    ``element_bytes``: of shared memory for a destination.
    """
    _, rows, inner, size, _ = shape
    if inner != 1 or size > MOST_EMPTY * rows or index_ctype(rows) != "int32_t":
        return None
    return strips_of(shape.outer, size, rows, element_bytes, shared, most_strips)
