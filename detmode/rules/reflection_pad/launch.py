"""Launches the backward of reflection padding."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from detmode.cuda.rows.padding import gather_backward


def reflection_pad1d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient of ``reflection_pad1d`` with respect to its input.

    Args:
        grad_output: (N, C, W_out), floating point or complex; N may be missing.
        self: (N, C, W), or without N; its shape and dtype are read.
        padding: left and right; negative where it crops; each less than the size it pads.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        RuntimeError: shapes, dtypes, devices or paddings that do not go together.
        NotImplementedError: a dtype that is neither floating point nor complex.
    """
    return gather_backward("reflection_pad", grad_output, self, padding, 1)


def reflection_pad3d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient of ``reflection_pad3d`` with respect to its input.

    Args:
        grad_output: (N, C, D_out, H_out, W_out), floating point or complex; N may be missing.
        self: (N, C, D, H, W), or without N; its shape and dtype are read.
        padding: left, right, top, bottom, front and back; negative where it crops; each
            less than the size it pads.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        RuntimeError: shapes, dtypes, devices or paddings that do not go together.
        NotImplementedError: a dtype that is neither floating point nor complex.
    """
    return gather_backward("reflection_pad", grad_output, self, padding, 3)
