"""Checks and launch shared by the backwards of max, adaptive and fractional max pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detmode.cuda import (
    MAGIC,
    Launch,
    Source,
    UnsizedLaunch,
    contiguous,
    ctype,
    index_ctype,
    new_empty,
    planned,
)
from detmode.cuda.checks import check_scalar_type
from detmode.cuda.dtypes import FLOATING
from detmode.cuda.rows.shares import MANY, PER_THREAD, Share, choose_share

COLUMNS = 4
"""Neighbours along w that one thread serves where windows choose few elements."""
FEW = 16
"""Elements for each window from which those that windows choose are few."""
THREADS = 2**20
"""Threads at most where windows choose few elements: a GPU holds a quarter of them at once."""

_ABSENT = (1, 1, 1)


def pooled_shape(
    threads: int,
    outer: int,
    inner: int,
    sizes_in: Sequence[int],
    sizes_out: Sequence[int],
    lanes: int,
) -> tuple[int, ...]:
    """The members of ``pooled_shape`` of the kernels' header: the layout, with magic numbers.

    The sizes are those of three axes.
    """
    t, h, w = sizes_in
    t_out, h_out, w_out = sizes_out
    return (
        threads, outer, inner, t, h, w, t_out, h_out, w_out,
        MAGIC[t], MAGIC[h], MAGIC[w], MAGIC[t * h * w], MAGIC[lanes], lanes,
    )  # fmt: skip


def in_axes(shape: tuple[int, ...], spatial: int) -> tuple[int, ...]:
    """The last ``spatial`` sizes as those of three axes; the missing ones have 1."""
    return (*_ABSENT[spatial:], *shape[-spatial:])


def entries(kernel: str, shares: Sequence[int] = (1, PER_THREAD)) -> tuple[str, ...]:
    """The name expressions of ``kernel``, a template of a dtype, a thread's share, an index."""
    return tuple(
        f"{kernel}<{ctype(dtype)}, {per_thread}, {index}>"
        for dtype in FLOATING
        for per_thread in shares
        for index in ("int32_t", "int64_t")
    )


@planned
def unsized(
    source: Source,
    kernel: str,
    dtype: torch.dtype,
    share: Share,
    unset: tuple[str, ...],
    windows: tuple[tuple[int, ...], ...] = (),
    **numbers: Any,
) -> UnsizedLaunch:
    """The launch of an entry without the numbers of the parameters in ``unset``."""
    entry = f"{kernel}<{ctype(dtype)}, {share.per_thread}, {share.counter}>"
    return UnsizedLaunch(source, entry, unset, **dict(zip("thw", windows)), **numbers)


def gather_chosen(
    launch: Launch,
    grad_output: Tensor,
    self: Tensor,
    indices: Tensor,
    memory_format: torch.memory_format,
) -> Tensor:
    """Launch a kernel that calls ``gather_chosen`` of ``chosen_windows.cuh``.

    Args:
        launch: planned by :func:`plan_chosen`.
        grad_output: like ``indices``, in any strides.
        self: the pooled tensor; only its shape and dtype are used.
        indices: int64, the position that each window chose.
        memory_format: of the result.

    Returns:
        A tensor of the shape and dtype of ``self``.
    """
    grad_input = new_empty(self, self.shape, memory_format=memory_format)
    launch(
        grad_output=contiguous(grad_output, memory_format=memory_format),
        indices=contiguous(indices, memory_format=memory_format),
        grad_input=grad_input,
    )
    return grad_input


def plan_chosen(
    source: Source,
    kernel: str,
    dtype: torch.dtype,
    leading: tuple[int, ...],
    sizes: tuple[int, ...],
    out_sizes: tuple[int, ...],
    flat: bool,
    most: int,
    windows: tuple[tuple[int, ...], ...] = (),
    share: Share | None = None,
) -> Launch:
    """Plan the launch of a kernel that calls ``gather_chosen`` of ``chosen_windows.cuh``.

    Args:
        source: the file with the kernel.
        kernel: a name that :func:`entries` expanded.
        dtype: of the pooled tensor.
        leading: as for :func:`shared_out`, like the next four.
        sizes: see there.
        out_sizes: see there.
        flat: see there.
        most: see there.
        windows: of three axes, where the kernel takes them.
        share: as for :func:`shared_out`.
    """
    share, threads, shape = shared_out(leading, sizes, out_sizes, flat, most, share)
    launch = unsized(source, kernel, dtype, share, ("shape",), windows)
    return launch.of_threads(threads, shape)


def choose_apart(
    leading: tuple[int, ...], sizes: tuple[int, ...], out_sizes: tuple[int, ...], flat: bool
) -> int | None:
    """Choose whether a thread serves neighbours along w, as windows choose few elements.

    The arguments are those of :func:`shared_out`.

    Returns:
        The planes from one of a thread to its next; None where that is not the quicker one, or does
        not work.
    """
    planes, elements, windows = math.prod(leading), math.prod(sizes), math.prod(out_sizes)
    if not flat or sizes[-1] % COLUMNS or planes * elements < MANY or elements < FEW * windows:
        return None
    return max(1, min(planes, THREADS // (elements // COLUMNS)))


def plan_few_chosen(
    source: Source,
    kernel: str,
    dtype: torch.dtype,
    leading: tuple[int, ...],
    sizes: tuple[int, ...],
    out_sizes: tuple[int, ...],
    most: int,
    apart: int,
) -> Launch:
    """Plan the launch of a kernel that calls ``gather_few_chosen`` of ``chosen_windows.cuh``.

    The arguments are those of :func:`plan_chosen`, and what :func:`choose_apart` chooses.
    """
    planes, elements = math.prod(leading), math.prod(sizes)
    threads = elements // COLUMNS * apart
    shape = pooled_shape(threads, planes, 1, sizes, out_sizes, sizes[-1] // COLUMNS)
    counter = index_ctype(planes * elements, planes * math.prod(out_sizes), most)
    launch = unsized(source, kernel, dtype, Share(COLUMNS, counter), ("shape", "apart"))
    return launch.of_threads(threads, shape, apart)


def shared_out(
    leading: tuple[int, ...],
    sizes: tuple[int, ...],
    out_sizes: tuple[int, ...],
    flat: bool,
    most: int,
    share: Share | None = None,
) -> tuple[Share, int, tuple[int, ...]]:
    """Share the pooled tensor out among threads.

    Args:
        leading: its sizes before the axes: batch and channels, or planes.
        sizes: of its three axes; a missing one has 1.
        out_sizes: those of ``grad_output``.
        flat: contiguous, not channels last.
        most: the largest number that the kernel works out of what it takes besides, beside
            positions in the tensors.
        share: of a thread; None for the one that sizes choose.

    Returns:
        The share, the number of threads, and the argument ``shape``.
    """
    planes = math.prod(leading)
    numel = planes * math.prod(sizes)
    outer, inner = (planes, 1) if flat else leading
    shared = inner if inner > 1 else outer
    counts = planes * math.prod(out_sizes), most
    share = share or choose_share(shared, numel, *counts, least=4 * PER_THREAD)
    shares = -(-shared // share.per_thread)
    threads = numel // (shared or 1) * shares
    shape = pooled_shape(threads, outer, inner, sizes, out_sizes, shares if inner > 1 else 1)
    return share, threads, shape


def check(name: str, grad_output: Tensor, self: Tensor, indices: Tensor, spatial: int) -> None:
    """Check the tensors of these operators, except for conditions with other messages in ATen.

    Raises:
        RuntimeError: shapes, or a dtype of ``indices``, that do not go together.
    """
    check_shapes(name, grad_output.shape, self.shape, indices.shape, spatial)
    check_scalar_type(torch.int64, indices.dtype)


def check_shapes(
    name: str,
    out_shape: tuple[int, ...],
    shape: tuple[int, ...],
    indices_shape: tuple[int, ...],
    spatial: int,
) -> None:
    """Check the shapes alone, as :func:`check` does."""
    if len(shape) not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"{name}(): Expected {spatial + 1}D or {spatial + 2}D input tensor, but got "
            f"{list(shape)}"
        )
    if len(out_shape) != len(shape) or out_shape[:-spatial] != shape[:-spatial]:
        raise RuntimeError(
            f"{name}(): Expected grad_output to have the batch and channel sizes of self, "
            f"{list(shape)}, but got {list(out_shape)}"
        )
    if indices_shape != out_shape:
        raise RuntimeError(
            f"{name}(): Expected indices to have the shape of grad_output, "
            f"{list(out_shape)}, but got {list(indices_shape)}"
        )
