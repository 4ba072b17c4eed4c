"""Antialiased interpolation backward: the filters' tables, and the gathers of ``upsample``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from detmode.cuda import Source
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.interpolation import gather_backward
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


@raises_like_aten
def upsample_bilinear2d_aa_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """The gradient of ``aten::_upsample_bilinear2d_aa``, in grad_output's memory format."""
    scales = (scales_h, scales_w)
    return gather_backward(BILINEAR, grad_output, output_size, input_size, align_corners, scales)


@raises_like_aten
def upsample_bicubic2d_aa_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """The gradient of ``aten::_upsample_bicubic2d_aa``; always contiguous, as ATen's."""
    scales = (scales_h, scales_w)
    return gather_backward(
        BICUBIC,
        grad_output,
        output_size,
        input_size,
        align_corners,
        scales,
        memory_format=torch.contiguous_format,
    )
