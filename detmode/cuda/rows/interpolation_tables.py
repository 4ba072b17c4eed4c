"""The output positions that read an input position, and their weights, for each dimension."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from detmode.cuda import Source

WIDTH = 4
"""Channels that one thread of `upsample_gather` serves where there are many."""
PACKED = {"half": 8, "bfloat16": 8, "float": 4, "double": 2}
"""Channels that it serves where one load, 16 bytes, reads them, by the source's type."""
ROWS = 4
"""Rows that one thread of `upsample_gather_rows`, or `_lanes`, serves where there are many."""
LANES = (32, 256)
"""Threads of `upsample_gather_lanes` that an element has: a warp, or a block."""

_SAME = tuple((scalar, scalar) for scalar in ("half", "bfloat16", "float", "double"))
# In two launches, the sums between them are of the opmath type.
_LEADING = (("half", "float"), ("bfloat16", "float"))
_LAST = (("float", "half"), ("float", "bfloat16"))


def entries_of(name: str, *dims: int) -> list[str]:
    """The entries of an interpolation that has so many dimensions.

    Args:
        name: of the struct that says where an output position reads, and with which weights.
        dims: the numbers of dimensions.
    """
    return [
        *(f"upsample_tables<{name}, {t}>" for t in ("float", "double")),
        *(
            f"upsample_{kernel}<{name}, {t}, {n}>"
            for kernel in ("small", "strips")
            for t in PACKED
            for n in dims
        ),
    ]


SOURCE = Source(
    __file__,
    "interpolation.cu",
    entries=(
        *entries_of("Linear", 1, 2, 3),
        *entries_of("Cubic", 2),
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
        *(
            f"upsample_gather_lanes<{a}, {b}, {lanes}, {rows}>"
            for (a, b), lanes, rows in product(_SAME + _LAST, LANES, (1, ROWS))
        ),
    ),
)


@dataclass(frozen=True, eq=False)
class Interpolation:
    """The properties of a separable interpolation.

    Args:
        source: the source whose entries write its tables.
        name: of the struct that says what they contain.
        taps: of a dimension's input size and scale, the most taps an output position has.
        clamps: taps outside the input count at its ends; otherwise there are none outside.
    """

    source: Source
    name: str
    taps: Callable[[int, float], int]
    clamps: bool


class Axis(NamedTuple):
    """A dimension: its input and output size, the most taps of an output position, where its table
    begins, and the input positions per output position.
    """

    size: int
    out: int
    taps: int
    table: int
    scale: float


ResizedAxes = namedtuple(
    "ResizedAxes",
    "w_size w_out w_taps w_table w_scale "
    "h_size h_out h_taps h_table h_scale "
    "d_size d_out d_taps d_table d_scale",
)
"""The struct of ``interpolation_table.cuh``."""


def resized(axes: Sequence[Axis]) -> ResizedAxes:
    """Up to three axes, the last one first, as kernels take them."""
    absent = Axis(0, 0, 0, 0, 0.0)
    w, h, d = (*axes, absent, absent)[:3]
    return ResizedAxes(*w, *h, *d)


def axes_of(
    interpolation: Interpolation,
    dtype: torch.dtype,
    align_corners: bool,
    sizes: Sequence[int],
    output_size: Sequence[int],
    scales: Sequence[float | None],
) -> tuple[tuple[Axis, ...], int]:
    """The axes, the last one first, and the elements of the memory that their tables take.

    Raises:
        RuntimeError: a size is not above 0.
        ValueError: a dimension has 2**31 positions or more.
    """
    axes: tuple[Axis, ...] = ()
    # Positions, of 32 bits, in the room of a weight.
    used, per_weight = 0, dtype.itemsize // 4
    for size, out, scale in zip(sizes, output_size, scales):
        if size < 1 or out < 1:
            raise RuntimeError(f"an interpolation needs sizes above 0, but got {size} and {out}")
        if size | out >= 1 << 31:
            raise ValueError(f"a dimension of {max(size, out)} is too long; split the tensor")
        ratio = _ratio(size, out, align_corners, scale)
        taps = interpolation.taps(size, ratio)
        axes = (Axis(size, out, taps, used, ratio), *axes)
        # Behind the weights are positions.
        used += out * taps - (-(out + 2 * size) // per_weight)
    return axes, used


def _ratio(size: int, out: int, align_corners: bool, scale: float | None) -> float:
    """The input positions per output position, as ATen has it."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / out
