"""Antialiased interpolation backward: the filters' tables, and the gathers of ``upsample``."""

from __future__ import annotations

import math
from functools import partial

import torch

from detmode.cuda import Source
from detmode.cuda.rows.interpolation import interpolation_backward
from detmode.cuda.rows.interpolation_tables import Interpolation, entries_of

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(*entries_of("Antialiased<Bilinear>", 2), *entries_of("Antialiased<Bicubic>", 2)),
)


def _taps(reach: int, size: int, scale: float) -> int:
    return min(2 * math.ceil(min(reach * max(scale, 1.0), size)) + 1, size)


BILINEAR = Interpolation(SOURCE, "Antialiased<Bilinear>", partial(_taps, 1), clamps=False)
BICUBIC = Interpolation(SOURCE, "Antialiased<Bicubic>", partial(_taps, 2), clamps=False)


_backward = partial(interpolation_backward, __name__)
upsample_bilinear2d_aa_backward = _backward("upsample_bilinear2d_aa_backward", BILINEAR)
upsample_bicubic2d_aa_backward = _backward(
    "upsample_bicubic2d_aa_backward", BICUBIC, memory_format=torch.contiguous_format
)
