"""The choice of the way to select an element of each slice. Every way gives the same."""

from __future__ import annotations

from typing import Literal, TypeAlias

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


SelectWay: TypeAlias = tuple[Literal["thread", "block", "blocks"], int, bool]
"""By a thread, a block or several blocks; the elements that the thread keeps at most, the threads
of the block, or the blocks; and whether the block keeps the slice's keys in shared memory."""


def choose(n: int, slices: int, dtype: torch.dtype) -> SelectWay:
    """Choose how to select in slices of ``n`` elements each."""
    fitting = (size for size, dtypes in CAPACITIES.items() if n <= size and dtype in dtypes)
    capacity = next(fitting, None)
    if capacity is not None and (capacity <= 32 or slices >= MANY):
        return "thread", capacity, False
    if n >= 2**31 or (n > LONG and slices < FEW):
        return "blocks", max(1, min(-(-n // SHARE), 8 * FEW // slices)), False
    threads = 64 if n <= 512 else 256 if n <= 8192 else 1024
    return "block", threads, n * dtype.itemsize <= CACHE
