"""Launches max unpooling, and composes it of ATen's operators on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import contiguous, new_zeros
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.recording import host_check
from detmode.cuda.rows.assign import WORDS, assign_rows
from detmode.cuda.rows.positions import out_of_range
from detmode.cuda.rows.shapes import Rows


@raises_like_aten
def max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Zeros, and each input where its index says; of inputs with one index the last stays.

    Args:
        self: (N, C, H, W) or (C, H, W).
        indices: int64, of the shape of ``self``: positions in row-major ``output_size``.
        output_size: height and width.

    Returns:
        A contiguous tensor of shape (N, C, *output_size) or (C, *output_size).

    Raises:
        RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    return _unpool(2, self, indices, output_size)


@raises_like_aten
def max_unpool3d(
    self: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    """As :func:`max_unpool2d`, with depth before height and width.

    ``stride`` and ``padding``, which have three sizes each, are only checked.
    """
    if len(stride) != 3 or len(padding) != 3 or min(stride) <= 0:
        raise RuntimeError(
            "max_unpool3d(): stride and padding need three sizes each, strides above zero, but got "
            f"{list(stride)} and {list(padding)}"
        )
    return _unpool(3, self, indices, output_size)


def _unpool(dims: int, self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    if (
        indices.dtype is not torch.int64
        or len(output_size) != dims
        or self.dim() not in (dims + 1, dims + 2)
        or indices.shape != self.shape
        or 0 in self.shape[1:]
        or min(output_size) < 0
    ):
        raise RuntimeError(
            f"max_unpool{dims}d(): {indices.dtype} indices of shape {list(indices.shape)} do not "
            f"place an input of shape {list(self.shape)} in {list(output_size)}"
        )
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
    """Both by ATen's operators on the CPU; in 2-D channels_last where ``self`` is."""
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
    _check_on_host(indices, output_size)
    out = new_zeros(self, (*self.shape[:-dims], *output_size))
    return out, Rows(prod(self.shape[:-dims]), prod(self.shape[-dims:]), 1, size)


@host_check
def _check_on_host(indices: Tensor, output_size: Sequence[int]) -> None:
    position = out_of_range(indices, prod(output_size))
    if position is not None:
        volumes = "x".join(map(str, output_size))
        raise RuntimeError(
            f"Found an invalid max index: {position} (output volumes are of size {volumes})"
        )
