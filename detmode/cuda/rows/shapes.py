"""The layout of rows, and the choice of the way to add them: fewer launches, then fewer bytes.

* *integers*: per destination the largest exponent, then the addends as integers of that scale.
  Reads ``source`` and the index twice, an exponent and a sum per addend; needs 12 bytes (float64:
  20) of scratch per destination. Single elements of many planes that are not
  too large are added in shared memory, by blocks that need no scratch.
* *sorted rows*: a stable sort of the index, then one pass over the rows in pieces of 64, added up
  in float64 (float64 itself: in pairs of float64), and the pieces' carries in the same way.
* *few rows*: one piece of these without the sort, in one launch instead of five or more.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

import torch

from detmode.cuda import bytes_of_sum, index_ctype, parts_of
from detmode.cuda.strips import Strips, strips_of

PIECE = 64
"""Rows that one thread adds one after the other; the same number as in row_runs.cuh."""

SHARE = 8
"""Of a piece of wide rows, those of which one thread adds up the runs that begin there."""

WIDE = 512
"""Bytes of a wide row: what a warp reads at once, so that all of its threads have one share."""

AT_ONCE = 16
"""Bytes of a wide row that a thread reads, adds and writes at once."""

SECTOR = 32
"""The fewest bytes that a GPU moves at once."""

MOST_OF_FEW = 1 << 16
"""The most elements of which each is moved by a thread that reads the whole index."""

CROWDED_COLUMNS = 4
"""The most columns side by side of which eight threads of a warp, crowd.cuh's CROWD, can meet."""

KEYS = ("int32_t", "int64_t")
"""The types of positions in CUDA code: of sorted ones, and of owners."""

MOST_EMPTY = 16
"""Destinations for each element up to which it is worth it that a block looks at all of its own."""

FILLED = 1 << 24
"""Owners that are filled in less time than the launches of a sort take."""

MOST_SORTED = 2**31 - 1
"""The most positions that are sorted: their order is int32."""

SORTED_SIZES, SORT_BYTES = (1 << 15, 1 << 31), (64, 120, 280)
"""The bytes of a row's sort in the choice of a way, up to so many destinations, and beyond.

They are those of a sort of 8 bits a pass with 64-bit positions. The one at hand moves less
(``docs/design/performance-notes.md``), but the choice decides on bits: it stays until it is
measured."""


class Rows(NamedTuple):
    """``source`` lies as ``[outer, rows, inner]``, the destinations as ``[outer, size, inner]``.

    ``wraps``: a negative position in the index counts from the end; there is one for each row.
    """

    outer: int
    rows: int
    inner: int
    size: int
    wraps: bool = False

    @property
    def addends(self) -> int:
        """Elements of ``source``."""
        return self.outer * self.rows * self.inner

    @property
    def destinations(self) -> int:
        """Elements of the output."""
        return self.outer * self.size * self.inner


def flat(shape: Rows) -> Rows:
    """Return the layout in which every element is a row."""
    return Rows(1, shape.addends, 1, shape.destinations)


def sorts_rows(shape: Rows, dtype: torch.dtype) -> bool:
    """Return whether to sort rows: if they can be sorted and fewer bytes move, or if they are few.

    ``shape``: in which one index is for a whole row.
    """
    if are_few(shape):
        return True
    outer, rows, inner, size, _ = shape
    if rows > MOST_SORTED:
        return False
    of_sorted, of_integers, of_destination, of_carry = _bytes_moved(inner, dtype)
    runs = outer * rows
    sort = rows * SORT_BYTES[bisect_left(SORTED_SIZES, size)]
    carries = runs * inner * 4 // PIECE * of_carry
    integers = runs * of_integers + outer * size * of_destination
    return sort + runs * of_sorted + carries < integers


@lru_cache(maxsize=4096)  # sizes vary, and rows are often of one width
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


def are_few(shape: Rows) -> bool:
    """Return whether one launch moves the rows: a thread finds those of its destination itself.

    Sums of such rows are one piece, so the bits are those of sorted rows.
    """
    return shape.rows <= PIECE and shape.addends <= MOST_OF_FEW


def are_wide(shape: Rows, dtype: torch.dtype) -> bool:
    """Return whether sorted rows are wide; their keys must not need 64 bits.

    Sums of such rows have the bits of others.
    """
    run = shape.inner * dtype.itemsize
    return run >= WIDE and run % AT_ONCE == 0 and shape.size <= MOST_SORTED


def cut_planes(shape: Rows, each: int, most_shared: int, most_strips: int) -> Strips | None:
    """Return the strips of planes of which blocks collect elements in shared memory, or None.

    Args:
        shape: in which each element has an index.
        each: bytes of shared memory for a destination.
        most_shared: bytes of it that a block may have.
        most_strips: of a plane, into which it is worth it: each reads all of the plane's index.
    """
    _, rows, inner, size, _ = shape
    if inner != 1 or size > MOST_EMPTY * rows or index_ctype(rows) != "int32_t":
        return None
    return strips_of(shape.outer, size, rows, each, most_shared, most_strips)


def elects(shape: Rows) -> bool:
    """Return whether to elect an owner for each destination of an assignment instead of sorting.

    Both give the same bits. Owners, one for each destination, are filled first, so a sort, which
    has more launches, is cheaper where there are very many of them, and many more than rows. More
    rows than can be sorted have owners.
    """
    return shape.size <= max(FILLED, 16 * shape.rows) or shape.rows > MOST_SORTED
