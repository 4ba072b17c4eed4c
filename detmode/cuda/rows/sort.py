"""The stable sort of an index, by no more bits than its positions need."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from detmode.cuda import Source, ctype, launch_blocks, new_empty, new_zeros
from detmode.cuda.rows.shapes import KEYS, MOST_SORTED

THREADS = 1024
"""Of a block; this and the others as in ``sort.cu``."""
ITEMS = 8
"""Positions of a thread at most."""
TILE = THREADS * ITEMS
"""Positions that one block sorts at most."""
TILES = 32
"""Blocks up to which a thread has one position: eight of them would keep few multiprocessors busy,
and long. With more blocks each would wait longer for what is before it."""
MOST_BITS = 9
"""By which one pass sorts."""
MOST_COUNTING = 512
"""Blocks that count: more of them would add up their counts longer than they count."""

SOURCE = Source(
    __file__, "sort.cu", entries=("sort_count", *(f"sort_tiles<{key}>" for key in KEYS))
)


class _DigitPasses(NamedTuple):
    """The struct of ``sort.cu``: bits of a digit, the passes, all and those done, and the positions
    of a thread.
    """

    width: int
    passes: int
    done: int
    rounds: int


def sorted_positions(index: Tensor, size: int, *, wraps: bool = False) -> tuple[Tensor, Tensor]:
    """The positions of ``index`` sorted stably, as int32 or, if they need it, int64; their order.

    Args:
        index: contiguous int64; on a GPU the launch traps for one that is not in ``[0, size)``, or
            in ``[-size, size)`` where it ``wraps``.
        size: of the dimension.
        wraps: negative indices count from the end.

    Returns:
        Sorted positions, and, as int32, where in ``index`` each of them stands.

    Raises:
        RuntimeError: there are more than 2**31 - 1 positions.
    """
    n, dtype = index.numel(), key_dtype(size)
    if n > MOST_SORTED:
        raise RuntimeError(
            f"at most {MOST_SORTED} indices can be sorted, but got {n}; call the operator with "
            "fewer of them at a time"
        )
    bits = max((size - 1).bit_length(), 1)
    passes = -(-bits // MOST_BITS)
    width = -(-bits // passes)
    if n <= TILE:
        # One block makes all passes.
        keys, order = _pair(index, n, dtype)
        threads = THREADS if n > TILE // 2 else THREADS // 2
        launch_blocks(
            SOURCE, f"sort_tiles<{ctype(dtype)}>", 1, threads,
            index=index, keys_read=None, order_read=None, keys=keys, order=order, counters=None,
            n=n, size=size, wraps=wraps, digits=_DigitPasses(width, passes, 0, -(-n // threads)),
        )  # fmt: skip
        return keys, order
    rounds = min(-(-n // (TILES * THREADS)), ITEMS)
    tiles, digits = -(-n // (rounds * THREADS)), 1 << MOST_BITS
    counters = new_zeros(index, (passes * (digits + 1 + tiles * digits),), torch.int32)
    launch_blocks(
        SOURCE, "sort_count", min(tiles, MOST_COUNTING), THREADS,
        index=index, counters=counters, n=n, size=size, width=width, passes=passes, wraps=wraps,
    )  # fmt: skip
    pairs = [_pair(index, n, dtype) for _ in range(min(passes, 2))]
    for done in range(passes):
        keys_read, order_read = pairs[done % 2 - 1] if done else (None, None)
        keys, order = pairs[done % 2]
        launch_blocks(
            SOURCE, f"sort_tiles<{ctype(dtype)}>", tiles, THREADS,
            index=None if done else index, keys_read=keys_read, order_read=order_read, keys=keys,
            order=order, counters=counters, n=n, size=size, wraps=wraps,
            digits=_DigitPasses(width, passes, done, rounds),
        )  # fmt: skip
    return keys, order


def _pair(index: Tensor, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return new_empty(index, (n,), dtype), new_empty(index, (n,), torch.int32)


def key_dtype(size: int) -> torch.dtype:
    """The dtype of sorted positions below ``size``."""
    return torch.int32 if size <= 2**31 else torch.int64
