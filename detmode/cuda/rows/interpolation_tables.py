"""The output positions that read an input position, and their weights, for each dimension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import torch

from detmode.cuda import Source, UnsizedLaunch, ctype, planned

WIDTH = 4
"""Channels that one thread of `upsample_gather` serves where there are many."""
PACKED = {"half": 8, "bfloat16": 8, "float": 4, "double": 2}
"""Channels that it serves where one load, 16 bytes, reads them, by the source's type."""
ROWS = 4
"""Rows that one thread of `upsample_gather_rows` serves where there are many elements."""

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


Axes: TypeAlias = tuple[float, ...]
"""The members of ``resized_axes`` of the kernels' header: the numbers of the last dimension, then
of the one before it. Of each: input and output size, taps, where its table begins, and input
positions per output position."""

ABSENT = tuple((0, 0, 0, 0, 0.0) * (3 - dims) for dims in range(4))
"""The numbers of the dimensions that are absent, where there are so many."""

Given: TypeAlias = tuple[int, int, "float | None"]
"""The input size, the output size and the scale of a dimension."""


def axes_of(
    interpolation: Interpolation,
    dtype: torch.dtype,
    align_corners: bool,
    sizes: tuple[int, ...],
    output_size: tuple[int, ...],
    scales: tuple[float | None, ...],
) -> tuple[Axes, int]:
    """The axes, and the elements of the memory that their tables take.

    Raises:
        RuntimeError: a size is not above 0.
        ValueError: a dimension has 2**31 positions or more.
    """
    axes: Axes = ABSENT[len(sizes)]
    used, per_weight = 0, dtype.itemsize // 4
    for given in zip(sizes, output_size, scales):
        taps, ratio, length = _table(interpolation, per_weight, align_corners, given)
        axes = (given[0], given[1], taps, used, ratio) + axes
        used += length
    return axes, used


def _table(
    interpolation: Interpolation, per_weight: int, align_corners: bool, given: Given
) -> tuple[int, float, int]:
    """The taps and the ratio of an axis, and the elements of its table.

    ``per_weight``: positions, of 32 bits, in the room of a weight.
    """
    size, out, scale = given
    if size < 1 or out < 1:
        raise RuntimeError(f"an interpolation needs sizes above 0, but got {size} and {out}")
    if size | out >= 1 << 31:
        raise ValueError(f"a dimension of {max(size, out)} is too long; split the tensor")
    # As ATen has it.
    if align_corners:
        ratio = (size - 1) / (out - 1) if out > 1 else 0.0
    elif scale is not None and scale > 0:
        ratio = 1.0 / scale
    else:
        ratio = size / out
    taps = interpolation.taps(size, ratio)
    # Behind the weights are positions.
    return taps, ratio, out * taps - (-(out + 2 * size) // per_weight)


@planned
def table_writer(
    interpolation: Interpolation, dtype: torch.dtype, align_corners: bool
) -> UnsizedLaunch:
    """The launch that writes tables, without its sizes."""
    entry = f"upsample_tables<{interpolation.name}, {ctype(dtype)}>"
    return UnsizedLaunch(interpolation.source, entry, ("resized",), align_corners=align_corners)
