"""Launches max unpooling, and composes it of ATen's operators on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import contiguous, new_zeros
from detmode.cuda.rows.assign import WORDS, assign_rows
from detmode.cuda.rows.positions import out_of_range
from detmode.cuda.rows.shapes import Rows


def max_unpool(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
) -> Tensor:
    """Zeros, and each input where its index says; of inputs with one index the last stays.

    Args:
        self: (N, C, H, W), or without N; for ``max_unpool3d`` with one more dimension.
        indices: int64, of the shape of ``self``: positions in row-major ``output_size``.
        output_size: height and width, for ``max_unpool3d`` depth before them.
        stride: of ``max_unpool3d``; only checked.
        padding: of ``max_unpool3d``; only checked.

    Returns:
        A contiguous tensor of shape (N, C, *output_size), or without N.

    Raises:
        RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    out, shape = _zeros(self, indices, output_size)
    assign_rows(out, contiguous(indices), contiguous(self), shape)
    return out


def max_unpool_on_cpu(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
) -> Tensor:
    """The same by ATen's operators on the CPU; in 2-D channels_last where ``self`` is."""
    out, shape = _zeros(self, indices, output_size)
    if shape.addends:
        # scatter writes along a dimension in order: the last one wins.
        planes = (shape.outer, shape.rows)
        words, to = (x.view(WORDS[x.itemsize]) for x in (self, out))
        to.view(shape.outer, shape.size).scatter_(1, indices.reshape(planes), words.reshape(planes))
    images = len(output_size) == 2 and self.dim() == 4
    format = suggest_memory_format(self) if images else torch.contiguous_format
    return contiguous(out, memory_format=format)


def _zeros(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Rows]:
    """Outputs and the layout; on the CPU, raise for an index out of range."""
    dims, size = len(output_size), prod(output_size)
    position = out_of_range(indices, size)
    if position is not None:
        volumes = "x".join(map(str, output_size))
        raise RuntimeError(
            f"Found an invalid max index: {position} (output volumes are of size {volumes})"
        )
    out = new_zeros(self, (*self.shape[:-dims], *output_size))
    return out, Rows(prod(self.shape[:-dims]), prod(self.shape[-dims:]), 1, size)
