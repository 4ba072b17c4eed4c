"""Launches max unpooling, and composes it of ATen's operators on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda.rows.assign import WORDS, assign_rows
from detmode.cuda.rows.shapes import Rows

__all__ = ["max_unpool2d", "max_unpool2d_on_cpu", "max_unpool3d", "max_unpool3d_on_cpu"]


def max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Zeros, and each input where its index says; of inputs with one index the last stays.

    Args:
        self: (N, C, H, W), or without N.
        indices: int64, of the shape of ``self``: positions in row-major ``output_size``.
        output_size: height and width.

    Returns:
        A contiguous tensor of shape (N, C, *output_size), or without N.

    Raises:
        RuntimeError: what ATen rejects; indices out of range on the CPU only.
    """
    return _unpool(self, indices, output_size)


def max_unpool2d_on_cpu(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """The same by ATen's operators on the CPU; channels_last where ``self`` is."""
    format = suggest_memory_format(self) if self.dim() == 4 else torch.contiguous_format
    return _unpool_on_cpu(self, indices, output_size).contiguous(memory_format=format)


def max_unpool3d(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """``max_unpool2d`` with one more dimension; ``stride`` and ``padding`` are only checked."""
    return _unpool(self, indices, output_size)


def max_unpool3d_on_cpu(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """The same by ATen's operators on the CPU."""
    return _unpool_on_cpu(self, indices, output_size)


def _unpool(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    shape = _planes(self, indices, output_size)
    out = self.new_zeros((*self.shape[: -len(output_size)], *output_size))
    assign_rows(out, indices.contiguous(), self.contiguous(), shape)
    return out


def _unpool_on_cpu(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    shape = _planes(self, indices, output_size)
    out = self.new_zeros((*self.shape[: -len(output_size)], *output_size))
    if shape.addends:
        # scatter writes along a dimension in order: the last one wins.
        planes = (shape.outer, shape.rows)
        words, to = (x.view(WORDS[x.itemsize]) for x in (self, out))
        to.view(shape.outer, shape.size).scatter_(1, indices.reshape(planes), words.reshape(planes))
    return out


def _planes(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Rows:
    """Return the layout of inputs and outputs; on the CPU, raise for an index out of range."""
    dims, size = len(output_size), prod(output_size)
    if indices.device.type == "cpu" and indices.numel():
        for position in torch.stack(torch.aminmax(indices)).tolist():
            if not 0 <= position < size:
                volumes = "x".join(map(str, output_size))
                raise RuntimeError(
                    f"Found an invalid max index: {position} (output volumes are of size {volumes})"
                )
    return Rows(prod(self.shape[:-dims]), prod(self.shape[-dims:]), 1, size)
