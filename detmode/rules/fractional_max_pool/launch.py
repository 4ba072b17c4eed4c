"""Launchers of the backward of fractional max pooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.conditions import FLOATING
from detmode.rules.index.positions import check_on_host
from detmode.rules.index.shapes import Rows
from detmode.rules.index.sums import add_rows

__all__ = ["fractional_max_pool2d_backward", "fractional_max_pool3d_backward"]


def fractional_max_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """The gradient of ``fractional_max_pool2d`` with respect to its input.

    Args:
        grad_output: (N, C, H_out, W_out) or (C, H_out, W_out), floating point.
        self: (N, C, H, W) or (C, H, W); its shape and dtype are read.
        kernel_size: not read; what a region chose is in ``indices``.
        output_size: (H_out, W_out).
        indices: int64, like ``grad_output``: for each region the position in (H, W) it chose.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        IndexError: ``self`` has too few dimensions.
        NotImplementedError: a dtype that is not floating point.
        RuntimeError: shapes, dtypes or devices that do not go together; on the CPU also an index
            out of range.
    """
    return _scatter(2, grad_output, self, output_size, indices)


def fractional_max_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """The gradient of ``fractional_max_pool3d`` with respect to its input.

    As :func:`fractional_max_pool2d_backward`, with (T, H, W) in the place of (H, W).
    """
    return _scatter(3, grad_output, self, output_size, indices)


def _scatter(
    n: int, grad_output: Tensor, self: Tensor, output_size: Sequence[int], indices: Tensor
) -> Tensor:
    """Each plane of ``grad_input`` is the sum of its regions' gradients, where they chose."""
    _check(f"fractional_max_pool{n}d_backward", n, grad_output, self, output_size, indices)
    grad_input = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
    if grad_output.numel() == 0 or grad_input.numel() == 0:
        return grad_input
    shape = Rows(
        outer=self.shape[:-n].numel(),
        rows=grad_output.shape[-n:].numel(),
        inner=1,
        size=self.shape[-n:].numel(),
    )
    check_on_host(indices, shape.size, self.dim() - n, RuntimeError)
    add_rows(grad_input, indices.contiguous(), grad_output.contiguous(), shape, include_self=False)
    return grad_input


def _check(
    name: str,
    n: int,
    grad_output: Tensor,
    self: Tensor,
    output_size: Sequence[int],
    indices: Tensor,
) -> None:
    if self.dim() <= n:
        raise IndexError(f"{name}(): Expected {n + 1}D or {n + 2}D input, got {list(self.shape)}")
    expected = [*self.shape[:-n], *output_size[:n]]
    if self.dim() > n + 2 or len(output_size) < n or list(grad_output.shape) != expected:
        raise RuntimeError(
            f"{name}(): gradOutput sizes unexpected: got {list(grad_output.shape)} for input "
            f"{list(self.shape)} and output_size {list(output_size)}"
        )
    if indices.shape != grad_output.shape:
        raise RuntimeError(
            f"{name}(): Expected indices to have the shape of gradOutput, "
            f"{list(grad_output.shape)}, but got {list(indices.shape)}"
        )
    if grad_output.dtype != self.dtype:
        raise RuntimeError(f"expected scalar type {self.dtype} but found {grad_output.dtype}")
    if indices.dtype != torch.int64:
        raise RuntimeError(f"expected scalar type {torch.int64} but found {indices.dtype}")
    if not grad_output.device == indices.device == self.device:
        raise RuntimeError(
            f"{name}(): Expected all tensors to be on the same device, but got "
            f"{grad_output.device}, {self.device} and {indices.device}"
        )
    if self.dtype not in FLOATING:
        raise NotImplementedError(f'"{name}_out_frame" not implemented for {self.dtype}')
