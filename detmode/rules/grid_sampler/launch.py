"""The backward operators of grid sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda.checks import raises_like_aten
from detmode.rules.grid_sampler.gradients import backward
from detmode.rules.grid_sampler.sampling import BILINEAR


@raises_like_aten
def grid_sampler_2d_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """The gradients of ``grid_sampler_2d`` with respect to its input and its grid.

    Args:
        grad_output: (N, C, H_out, W_out), floating point.
        input: (N, C, H, W), of the dtype of ``grad_output``.
        grid: (N, H_out, W_out, 2), of the dtype of ``grad_output``: x, then y.
        interpolation_mode: 0 bilinear, 1 nearest, 2 bicubic.
        padding_mode: 0 zeros, 1 border, 2 reflection.
        align_corners: whether -1 and 1 are the centres of the outermost pixels, or their edges.
        output_mask: whether the gradient of ``input`` is asked for; that of ``grid`` always is.

    Returns:
        The gradient of ``input``, or None, and that of ``grid``; both contiguous.

    Raises:
        RuntimeError: shapes, dtypes, devices or arguments that do not go together.
        ValueError: a ``grad_output`` of another shape than the forward operator's output.
        NotImplementedError: a dtype that is not floating point.
    """
    how = interpolation_mode, padding_mode, align_corners
    name = "grid_sampler_2d_backward_cuda"
    return backward(name, 2, grad_output, input, grid, *how, output_mask)


# Whether it has mode 2 depends on PyTorch's version: its shape function is asked.
def grid_sampler_3d_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """The gradients of ``grid_sampler_3d`` with respect to its input and its grid.

    As :func:`grid_sampler_2d_backward`, with (D, H, W) in the place of (H, W), and x, y and z in
    the grid; mode 2 where this PyTorch has it.
    """
    how = interpolation_mode, padding_mode, align_corners
    name = "grid_sampler_3d_backward_cuda"
    return backward(name, 3, grad_output, input, grid, *how, output_mask)


@raises_like_aten
def cudnn_grid_sampler_backward(
    self: Tensor, grid: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of bilinear sampling with zeros around and ``align_corners=True``.

    Args:
        self: (N, C, H, W), float16, float32 or float64.
        grid: (N, H_out, W_out, 2), of the dtype of ``self``.
        grad_output: (N, C, H_out, W_out), of the dtype of ``self``.

    Returns:
        The gradients of ``self`` and of ``grid``; both contiguous.

    Raises:
        Exception: as :func:`grid_sampler_2d_backward`.
    """
    if self.dtype is torch.bfloat16 or (self.dim() == 4 and self.shape[1] > 1024):
        raise RuntimeError("Invalid arguments to cudnn_grid_sampler_backward")
    how = BILINEAR, 0, True  # zeros around
    name = "cudnn_grid_sampler_backward"
    of_input, of_grid = backward(name, 2, grad_output, self, grid, *how, (True, True))
    assert of_input is not None
    return of_input, of_grid
