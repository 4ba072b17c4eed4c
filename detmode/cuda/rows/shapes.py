"""The layout of rows that are added or assigned."""

from __future__ import annotations

from typing import NamedTuple

PIECE = 64
"""Rows that one thread adds one after the other; the same number as in row_runs.cuh."""

SHARE = 8
"""Of a piece of wide rows, those of which one thread adds up the runs that begin there."""

AT_ONCE = 16
"""Bytes of a wide row that a thread reads, adds and writes at once."""

CROWDED_COLUMNS = 4
"""The most columns side by side of which eight threads of a warp, crowd.cuh's CROWD, can meet."""

KEYS = ("int32_t", "int64_t")
"""The types of positions in CUDA code: of sorted ones, and of owners."""

MOST_SORTED = 2**31 - 1
"""The most positions that are sorted: their order is int32."""


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
