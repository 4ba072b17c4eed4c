"""Launchers of median, nanmedian and kthvalue with their indices."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, launch_blocks, new_empty, new_zeros
from detmode.cuda.checks import check_implemented, raises_like_aten
from detmode.cuda.rows.positions import axis_of
from detmode.rules.order_statistics.ways import CAPACITIES, DTYPES, SelectWay, choose

MEDIAN, NANMEDIAN, KTH = 0, 1, 2

_STEPS = ("in_block", "count", "digit", "index", "value")
SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(
        *(f"select_in_thread<{ctype(dtype)}, {n}>" for n in CAPACITIES for dtype in CAPACITIES[n]),
        *(f"select_{step}<{ctype(dtype)}>" for step in _STEPS for dtype in DTYPES),
    ),
)


@raises_like_aten
def median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``aten::median.dim``: of an even number of elements the lower one; NaN if there is one.

    Returns:
        The values, and for each the smallest index along ``dim`` that holds it.

    Raises:
        IndexError: ``dim`` is out of range, or has size 0.
        NotImplementedError: a bool or complex tensor.
    """
    return select("median", self, dim, keepdim, MEDIAN)


@raises_like_aten
def nanmedian(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``aten::nanmedian.dim``: the median of what is not NaN; NaN where nothing else is there.

    Returns, raises: as ``median``.
    """
    return select("nanmedian", self, dim, keepdim, NANMEDIAN)


@raises_like_aten
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``aten::kthvalue``: the k-th smallest value, from 1; a NaN is larger than all numbers.

    Returns, raises: as ``median``; RuntimeError where ``k`` is out of range.
    """
    return select("kthvalue", self, dim, keepdim, KTH, k)


def select(
    name: str,
    self: Tensor,
    dim: int,
    keepdim: bool,
    kind: int,
    k: int = 0,
    way: SelectWay | None = None,
) -> tuple[Tensor, Tensor]:
    """Select as all of these do; ``way``: None for the one that sizes choose."""
    axis = axis_of(self, dim)
    # ATen's word for nanmedian is median.
    refuse_size_0(name.removeprefix("nan"), self, axis)
    n = self.shape[axis] if self.dim() else 1
    if kind == KTH and not 1 <= k <= n:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}")
    check_implemented(name, self.dtype, DTYPES)
    grown = self if self.dim() else self.view(1)
    before, behind = grown.shape[:axis], grown.shape[axis + 1 :]
    reduced = (1,) if keepdim and self.dim() else ()
    shape = (*before, *reduced, *behind)
    values = new_empty(self, shape)
    indices = new_empty(self, shape, torch.int64)
    if values.numel() == 0:
        return values, indices
    slices = values.numel()
    by, size, keeps_keys = way or choose(n, slices, self.dtype)
    if by == "thread":
        launch(
            SOURCE, f"select_in_thread<{ctype(self.dtype)}, {size}>", slices,
            input=contiguous(grown), values=values, indices=indices, slices=slices, n=n,
            inner=prod(behind), kind=kind, k=k,
        )  # fmt: skip
        return values, indices
    rows = contiguous(grown.movedim(axis, -1))
    if by == "blocks":
        _select_long(rows, values, indices, n, kind, k, size)
    else:
        launch_blocks(
            SOURCE, f"select_in_block<{ctype(self.dtype)}>", min(slices, 2**20), size,
            shared=n * self.itemsize if keeps_keys else 0,
            input=rows, values=values, indices=indices, rows=slices, n=n, kind=kind, k=k,
            cached=keeps_keys,
        )  # fmt: skip
    return values, indices


def refuse_size_0(name: str, self: Tensor, axis: int) -> None:
    """``IndexError`` where there is nothing to choose from."""
    if self.dim() and self.shape[axis] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {axis} to have non-zero size.")


def _select_long(
    input: Tensor, values: Tensor, indices: Tensor, n: int, kind: int, k: int, chunks: int
) -> None:
    """A row to many blocks: two small launches for each digit of 8 bits, then the index."""
    scalar, rows = ctype(input.dtype), values.numel()
    state = new_zeros(input, (rows * 259,), torch.int64)
    counts, prefix, left = state.split((rows * 257, rows, rows))
    for shift in range(8 * input.itemsize - 8, -8, -8):
        launch_blocks(
            SOURCE, f"select_count<{scalar}>", rows * chunks, 256,
            input=input, prefix=prefix, counts=counts, n=n, chunks=chunks, shift=shift,
        )  # fmt: skip
        launch_blocks(
            SOURCE, f"select_digit<{scalar}>", rows, 32,
            counts=counts, prefix=prefix, left=left, n=n, kind=kind, k=k, shift=shift,
        )  # fmt: skip
    indices.fill_(n)
    launch_blocks(
        SOURCE, f"select_index<{scalar}>", rows * chunks, 256,
        input=input, prefix=prefix, indices=indices, n=n, chunks=chunks,
    )  # fmt: skip
    launch(
        SOURCE, f"select_value<{scalar}>", rows,
        input=input, prefix=prefix, indices=indices, values=values, rows=rows, n=n,
    )  # fmt: skip
