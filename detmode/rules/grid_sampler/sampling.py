"""Arguments that say how a grid samples, and the kernels."""

from __future__ import annotations

from typing import NamedTuple

from detmode.cuda import Source, ctype, of_dtypes
from detmode.table.conditions import FLOATING

BILINEAR, NEAREST, BICUBIC = range(3)
TAPS = {BILINEAR: 2, NEAREST: 1, BICUBIC: 4}
"""Pixels that a sample reads along one axis, by PyTorch's number of the interpolation."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(
        *of_dtypes(FLOATING, "finish_sums"),
        *(
            f"grid_sampler_{kernel}<{ctype(dtype)}, {dims}, {taps}>"
            for kernel in ("scatter", "strips", "grad_grid")
            for dtype in FLOATING
            for dims in (2, 3)
            for taps in TAPS.values()
            if (kernel, taps) != ("grad_grid", 1)
        ),
        *(
            f"grid_sampler_few_taps<{ctype(dtype)}, {dims}, {taps}>"
            for dtype in FLOATING
            for dims in (2, 3)
            for taps in (TAPS[NEAREST], TAPS[BILINEAR])
        ),
    ),
)


class Sampling(NamedTuple):
    """The arguments that say where the forward operator samples.

    Args:
        interpolation: a key of :data:`TAPS`.
        padding: 0 for zeros, 1 for the border, 2 for reflection.
        align_corners: whether -1 and 1 are the centres of the outermost pixels, or their edges.
    """

    interpolation: int
    padding: int
    align_corners: bool
