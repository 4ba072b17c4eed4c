"""Sums of many elements at few destinations, which each block adds for itself at first.

The sums are those of integers in memory (:mod:`detmode.cuda.rows.sums`), and so are their bits. In
memory additions to one address wait for one another; in a block's shared memory only those of
the block do, and memory gets one addition of each block and destination.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from detmode.cuda import Source, ctype, launch_blocks, of_dtypes, parts_of
from detmode.cuda.dtypes import COMPLEX, FLOATING
from detmode.cuda.rows.shapes import Rows

THREADS = 1024
"""Of a block."""
SHARED = 1 << 16
"""Bytes of shared memory that a block may have on every GPU that is supported: Turing has no more.
Were it more, the way would depend on the GPU; its bits would not."""
MOST_BLOCKS, FEWEST_BLOCKS = 256, 32
"""Two for each multiprocessor of a large GPU; and as many as are at work sooner than memory is."""
LEAST_SHARE, SHARES = 1 << 12, 8
"""Elements that a block has at least: so many, and so many for each destination that it joins."""

SOURCE = Source(
    __file__,
    "few_destinations.cu",
    entries=of_dtypes(FLOATING + COMPLEX, "few_destinations_observe", "few_destinations_add"),
)


def blocks_of(shape: Rows, dtype: torch.dtype, *, mean: bool) -> int:
    """Return the blocks that add the elements of ``shape``; 0 where memory is better."""
    destinations = shape.destinations
    blocks = shape.addends // max(LEAST_SHARE, SHARES * destinations)
    if blocks < FEWEST_BLOCKS or destinations == 0:
        return 0
    _, shared = _shared(shape, dtype, mean)
    return min(blocks, MOST_BLOCKS) if shared <= SHARED else 0


def launches(
    shape: Rows, dtype: torch.dtype, *, mean: bool
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the launches that observe the elements and that add them, for their arguments."""
    blocks, name = blocks_of(shape, dtype, mean=mean), f"<{ctype(dtype)}>"
    observe, add = (
        partial(launch_blocks, SOURCE, f"few_destinations_{kernel}{name}", blocks, THREADS, shared)
        for kernel, shared in zip(("observe", "add"), _shared(shape, dtype, mean))
    )
    return observe, add


def _shared(shape: Rows, dtype: torch.dtype, mean: bool) -> tuple[int, int]:
    """The bytes of a block's keys, and of its sums and counts."""
    components, words = parts_of(dtype)
    keys, sums = 4 * components, 8 * components * words + 4 * mean
    return shape.destinations * keys, shape.destinations * sums
