"""The backward operators of grid sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda.checks import check_implemented, check_scalar_type, checks_all
from detmode.rules.grid_sampler.gradients import BILINEAR, TAPS, Sampling, grad_grid, grad_input
from detmode.table.conditions import FLOATING

ZEROS = 0
PADDINGS = range(3)


@checks_all
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
    call = Sampling(input, grid, interpolation_mode, padding_mode, align_corners)
    return _backward("grid_sampler_2d_backward_cuda", 2, call, grad_output, output_mask)


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

    Args:
        grad_output: (N, C, D_out, H_out, W_out), floating point.
        input: (N, C, D, H, W), of the dtype of ``grad_output``.
        grid: (N, D_out, H_out, W_out, 3), of the dtype of ``grad_output``: x, y, then z.
        interpolation_mode: 0 trilinear, 1 nearest, 2 tricubic where this PyTorch has it.
        padding_mode: as for :func:`grid_sampler_2d_backward`, like the arguments that follow.
        align_corners: likewise.
        output_mask: likewise.

    Returns:
        The gradient of ``input``, or None, and that of ``grid``; both contiguous.

    Raises:
        Exception: as :func:`grid_sampler_2d_backward`.
    """
    call = Sampling(input, grid, interpolation_mode, padding_mode, align_corners)
    return _backward("grid_sampler_3d_backward_cuda", 3, call, grad_output, output_mask)


@checks_all
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
    name, call = "cudnn_grid_sampler_backward", Sampling(self, grid, BILINEAR, ZEROS, True)
    of_input, of_grid = _backward(name, 2, call, grad_output, (True, True))
    assert of_input is not None
    return of_input, of_grid


def _backward(
    name: str, dims: int, call: Sampling, grad_output: Tensor, output_mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor]:
    _check(name, dims, call, grad_output)
    asks_for_input, _ = output_mask
    of_input = grad_input(call, grad_output) if asks_for_input else None
    return of_input, grad_grid(call, grad_output)


def _check(name: str, dims: int, call: Sampling, grad_output: Tensor) -> None:
    input, grid = call.input, call.grid
    sizes = f"input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
    if not input.device == grid.device == grad_output.device:
        raise RuntimeError(
            f"grid_sampler(): expected all tensors to be on the same device, but input is on "
            f"{input.device}, grid on {grid.device} and grad_output on {grad_output.device}"
        )
    if not input.dim() == grid.dim() == dims + 2:
        raise RuntimeError(
            f"grid_sampler(): expected {dims + 2}D input and grid with same number of dimensions, "
            f"but got {sizes}"
        )
    if input.shape[0] != grid.shape[0] or grid.shape[-1] != dims:
        raise RuntimeError(
            "grid_sampler(): expected grid and input to have same batch size, and grid to have "
            f"size {dims} in last dimension, but got {sizes}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            f"grid_sampler(): expected input to have non-empty spatial dimensions, but got {sizes}"
        )
    expected = [*input.shape[:2], *grid.shape[1:-1]]
    if list(grad_output.shape) != expected:
        raise ValueError(
            f"grid_sampler(): expected grad_output to have sizes {expected} but got grad_output "
            f"with sizes {list(grad_output.shape)}"
        )
    if call.interpolation not in TAPS or call.padding not in PADDINGS:
        raise RuntimeError(
            "grid_sampler(): expected an interpolation mode and a padding mode from 0 to 2, but "
            f"got {call.interpolation} and {call.padding}"
        )
    check_implemented(name, input.dtype, FLOATING)
    check_scalar_type(input.dtype, grid.dtype, grad_output.dtype)
