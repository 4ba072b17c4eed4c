"""Launches put, and composes it of ATen's operators on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import clone, contiguous
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.recording import host_check
from detmode.cuda.rows.assign import WORDS, assign_rows
from detmode.cuda.rows.positions import copy_if_overlapping, in_contiguous, out_of_range
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.sums import add_rows
from detmode.process.torch_settings import deterministic_flag


@raises_like_aten
def put(
    self: Tensor,
    index: Tensor,
    source: Tensor,
    accumulate: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::put``: ``self.view(-1)[index] = source``, of sources with one index the last stays.

    Args:
        self: any shape and dtype; to accumulate, floating or complex.
        index: int64, positions in row-major ``self``; negative ones count from the end.
        source: of the dtype of ``self``, as many elements as ``index``.
        accumulate: add the sources to what is there instead.
        out: the tensor that takes the result; ``self`` for the in-place variant.

    Raises:
        IndexError, RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    target = clone(self) if out is None else out
    _check(target, index, source)
    if index.numel() == 0:
        return target
    n, size = index.numel(), target.numel()
    positions = contiguous(copy_if_overlapping(target, index)).view(-1)
    source = contiguous(copy_if_overlapping(target, source))
    move_rows = add_rows if accumulate else assign_rows
    return in_contiguous(target, move_rows, positions, source, Rows(1, n, 1, size, wraps=True))


@raises_like_aten
def put_integers(
    self: Tensor,
    index: Tensor,
    source: Tensor,
    accumulate: bool = True,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Sums of integers and bools: ATen's own kernel, without the alert."""
    target = clone(self) if out is None else out
    with deterministic_flag(False):
        return target.put_(index, source, accumulate=True)


def put_last_on_cpu(
    self: Tensor,
    index: Tensor,
    source: Tensor,
    accumulate: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """An assignment on the CPU by ATen's ``scatter``, which writes along a dimension in order."""
    target = clone(self) if out is None else out
    _check(target, index, source)
    work = contiguous(target)
    size, positions = work.numel(), copy_if_overlapping(target, index).reshape(-1)
    positions = torch.where(positions < 0, positions + size, positions)
    words, to = (x.view(WORDS[x.itemsize]) for x in (copy_if_overlapping(target, source), work))
    to.view(-1).scatter_(0, positions, words.reshape(-1))
    return target if work is target else target.copy_(work)


def _check(target: Tensor, index: Tensor, source: Tensor) -> None:
    if index.dtype != torch.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype}")
    if target.dtype != source.dtype:
        raise RuntimeError(
            "put_(): self and source expected to have the same dtype, but got "
            f"self.dtype = {target.dtype} and source.dtype = {source.dtype}"
        )
    if not target.device == source.device == index.device:
        raise RuntimeError(
            "put_(): self, index and source expected to be in the same device, but got "
            f"self.device = {target.device}, index.device = {index.device}, and "
            f"source.device = {source.device}"
        )
    size = target.numel()
    if source.numel() != index.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    if size == 0 and index.numel():
        raise IndexError("put_(): Tried to put elements into an empty tensor")
    _check_on_host(index, size)


@host_check
def _check_on_host(index: Tensor, size: int) -> None:
    position = out_of_range(index, size, wraps=True)
    if position is not None:
        raise IndexError(
            f"out of range: tried to access index {position} on a tensor of {size} elements."
        )
