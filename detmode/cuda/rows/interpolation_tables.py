"""The output positions that read an input position, and their weights, for each dimension."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from detmode.cuda import Launch, Source, lasting_stream, new_empty

WIDTH = 4
"""Channels that one thread of `upsample_gather` serves where there are many."""
PACKED = {"half": 8, "bfloat16": 8, "float": 4, "double": 2}
"""Channels that it serves where one load, 16 bytes, reads them, by the source's type."""
MOST_KEPT = 1 << 18
"""The most elements of tables that are kept."""
ROWS = 4
"""Rows that one thread of `upsample_gather_rows` serves where there are many elements."""

_SAME = tuple((scalar, scalar) for scalar in ("half", "bfloat16", "float", "double"))
# In two launches, the sums between them are of the opmath type.
_LEADING = (("half", "float"), ("bfloat16", "float"))
_LAST = (("float", "half"), ("float", "bfloat16"))

SOURCE = Source(
    __file__,
    "interpolation.cu",
    entries=(
        *(f"upsample_tables<{i}, {t}>" for i in ("Linear", "Cubic") for t in ("float", "double")),
        *(
            f"upsample_gather<{a}, {b}, {dims}, {channels}>"
            for pairs, most in ((_SAME, 3), (_LEADING, 2), (_LAST, 1))
            for (a, b), dims in product(pairs, range(1, most + 1))
            for channels in ("1, false", f"{WIDTH}, false", f"{PACKED[a]}, true")
        ),
        *(
            f"upsample_gather_rows<{a}, {b}, {dims}, {rows}>"
            for pairs, most in ((_SAME, 3), (_LAST, 1))
            for (a, b), dims, rows in product(pairs, range(1, most + 1), (1, ROWS))
        ),
    ),
)


@dataclass(frozen=True, eq=False)
class Interpolation:
    """The properties of a separable interpolation.

    Args:
        source: the source by which its tables are written.
        entry: the entry that writes them, with ``{}`` for the opmath type.
        taps: of a dimension's input size and scale, the most taps an output position has.
        clamps: taps outside the input count at its ends; otherwise there are none outside.
    """

    source: Source
    entry: str
    taps: Callable[[int, float], int]
    clamps: bool


Shape = namedtuple(
    "Shape",
    "outer inner"
    " w_size w_out w_taps w_length w_scale"
    " h_size h_out h_taps h_length h_scale"
    " d_size d_out d_taps d_length d_scale",
)
"""``resized_shape`` of the kernels' header: of each dimension, the last one first, its input and
output size, taps, the elements of its table, and input positions per output position."""

NUMBERS = 5
"""Those of a dimension."""

ABSENT = (0, 0, 0, 0, 0.0) * 3
"""Those of three dimensions that are absent."""

NO_SHAPE = Shape(0, 0, *ABSENT)


def ratio_of(size: int, out: int, align_corners: bool, scale: float | None) -> float:
    """Input positions per output position, as ATen has it."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / out


@dataclass(eq=False)  # frozen, each would take a microsecond more
class Tables:
    """The tables of all axes, one after the other: weights, and behind them int32 positions.

    Args:
        write: the launch that writes them.
        length: the elements of all of them.
        dtype: of the weights.
    """

    write: Launch
    length: int
    dtype: torch.dtype

    def beside(self, like: Tensor) -> Tensor:
        """The tables on the device of ``like``, to be read alone.

        Those that a call has written are kept for later ones on its stream, unless they are long.
        """
        stream = lasting_stream(like)
        if stream is None or self.length > MOST_KEPT:
            return self._written(like)
        kept = _kept(self, like.get_device(), stream)
        if not kept:
            kept.append(self._written(like))
        return kept[0]

    def _written(self, like: Tensor) -> Tensor:
        tables = new_empty(like, (self.length,), self.dtype)
        self.write(tables=tables)
        return tables


@lru_cache(maxsize=32)
def _kept(tables: Tables, device: int, stream: int) -> list[Tensor]:
    """The tables that were written on a stream of a GPU, once they are."""
    return []
