"""The choice of the way to select an element of each slice. Every way gives the same."""

from __future__ import annotations

from typing import NamedTuple

import torch

from detmode.table.conditions import FLOATING, INTEGRAL

DTYPES = FLOATING + INTEGRAL
CAPACITIES = {16: DTYPES, 32: DTYPES, 64: FLOATING}
"""Elements of a slice that a thread keeps, of these dtypes; longer slices are a block's."""
MANY = 2**14
"""Slices from which threads of more than 32 elements each fill a GPU."""
CACHE = 32 * 1024
"""Bytes of keys that a block keeps in shared memory."""
LONG = 2**15
"""Elements from which a row is shared out to several blocks, where the rows are few."""
FEW = 128
"""Rows with which blocks of one row each leave most of a GPU idle."""
SHARE = 4096
"""Elements of a long row that are worth a block."""


class ByThread(NamedTuple):
    """A thread selects in a slice, of which it keeps so many elements at most."""

    capacity: int


class ByBlock(NamedTuple):
    """A block of so many threads selects in a row; ``shared``: it keeps the row's keys."""

    threads: int
    shared: bool


class ByBlocks(NamedTuple):
    """So many blocks share a row."""

    chunks: int


def choose(n: int, slices: int, dtype: torch.dtype) -> ByThread | ByBlock | ByBlocks:
    """Choose how to select in slices of ``n`` elements each."""
    fitting = (size for size, dtypes in CAPACITIES.items() if n <= size and dtype in dtypes)
    capacity = next(fitting, None)
    if capacity is not None and (capacity <= 32 or slices >= MANY):
        return ByThread(capacity)
    if n >= 2**31 or (n > LONG and slices < FEW):
        return ByBlocks(max(1, min(-(-n // SHARE), 8 * FEW // slices)))
    return ByBlock(64 if n <= 512 else 256 if n <= 8192 else 1024, n * dtype.itemsize <= CACHE)
