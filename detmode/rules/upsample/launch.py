"""Linear and cubic interpolation backward. grad_input has the memory format that ATen gives it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.interpolation import gather_backward
from detmode.cuda.rows.interpolation_tables import SOURCE, Interpolation

LINEAR = Interpolation(SOURCE, "Linear", lambda size, scale: 2, clamps=True)
CUBIC = Interpolation(SOURCE, "Cubic", lambda size, scale: 4, clamps=True)


@raises_like_aten
def upsample_linear1d_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales: float | None = None,
) -> Tensor:
    """The gradient of ``aten::upsample_linear1d``; always contiguous."""
    return gather_backward(LINEAR, grad_output, output_size, input_size, align_corners, (scales,))


@raises_like_aten
def upsample_bilinear2d_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """The gradient of ``aten::upsample_bilinear2d``, in grad_output's memory format."""
    return gather_backward(
        LINEAR, grad_output, output_size, input_size, align_corners, (scales_h, scales_w)
    )


@raises_like_aten
def upsample_bicubic2d_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """The gradient of ``aten::upsample_bicubic2d``; always contiguous."""
    scales = (scales_h, scales_w)
    return gather_backward(
        CUBIC,
        grad_output,
        output_size,
        input_size,
        align_corners,
        scales,
        memory_format=torch.contiguous_format,
    )


@raises_like_aten
def upsample_trilinear3d_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """The gradient of ``aten::upsample_trilinear3d``, in grad_output's memory format."""
    scales = (scales_d, scales_h, scales_w)
    return gather_backward(LINEAR, grad_output, output_size, input_size, align_corners, scales)
