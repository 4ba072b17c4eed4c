"""The output positions that read an input position, and their weights, for each dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from detmode.cuda import Source, ctype, empty, launch

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


class Axis(NamedTuple):
    """A dimension: its input and output size, taps, and input positions per output position."""

    size: int
    out: int
    taps: int
    scale: float

    @property
    def positions(self) -> int:
        """Integers in its table."""
        return self.out + 2 * self.size


def ratio_of(size: int, out: int, align_corners: bool, scale: float | None) -> float:
    """Input positions per output position, as ATen has it."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / out


def by_name(axes: Sequence[Axis]) -> dict[str, Axis]:
    """The axes, the last one first, as the kernels' arguments ``w``, ``h`` and ``d``."""
    absent = Axis(0, 0, 0, 0.0)
    return dict(zip("whd", (*axes, absent, absent)))


class Tables(NamedTuple):
    """The axes, the last one first and by name, and what their tables and their threads count."""

    axes: tuple[Axis, ...]
    named: dict[str, Axis]
    positions: int
    weights: int
    threads: int

    @classmethod
    def of(cls, axes: Sequence[Axis]) -> Tables:
        """The tables of all ``axes``."""
        positions = weights = threads = 0
        for axis in axes:
            positions += axis.positions
            weights += axis.out * axis.taps
            threads += axis.size + axis.out
        return cls(tuple(axes), by_name(axes), positions, weights, threads)


def write_tables(
    interpolation: Interpolation, tables: Tables, align_corners: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    """The tables of the axes, one after the other: int32 positions, weights in opmath_t."""
    opmath = torch.float64 if like.dtype is torch.float64 else torch.float32
    positions = empty((tables.positions,), torch.int32, like.device)
    weights = empty((tables.weights,), opmath, like.device)
    launch(
        interpolation.source, interpolation.entry.format(ctype(opmath)), tables.threads,
        positions=positions, weights=weights, **tables.named, align_corners=align_corners,
    )  # fmt: skip
    return positions, weights
