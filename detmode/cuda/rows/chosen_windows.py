"""Pooled axes as kernels take them; the checks and launches of gradients that indices choose."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, index_ctype, launch, magic_number, new_empty
from detmode.cuda.dtypes import FLOATING
from detmode.cuda.rows.shapes import KEYS
from detmode.cuda.rows.shares import MANY, PER_THREAD, Share, choose_share

FEW = 16
"""Elements for each window from which those that windows choose are few."""

PooledShape = namedtuple(
    "PooledShape",
    "threads outer inner t_in h_in w_in t_out h_out w_out "
    "t_magic h_magic w_magic positions_magic lanes_magic lanes",
)
"""The struct of ``chosen_windows.cuh``: the layout of a pooled tensor, with magic numbers."""


def pooled_shape(
    threads: int,
    outer: int,
    inner: int,
    sizes_in: Sequence[int],
    sizes_out: Sequence[int],
    lanes: int,
) -> PooledShape:
    """The layout of a tensor that is pooled along three axes of these sizes."""
    t, h, w = sizes_in
    t_out, h_out, w_out = sizes_out
    t_magic, h_magic, w_magic = map(magic_number, sizes_in)
    return PooledShape(
        threads, outer, inner, t, h, w, t_out, h_out, w_out,
        t_magic, h_magic, w_magic, magic_number(t * h * w), magic_number(lanes), lanes,
    )  # fmt: skip


class Pooled:
    """The sizes of a pooling, which choose the threads that serve it.

    Args:
        leading: of the pooled tensor before its axes: batch and channels, or planes.
        sizes: of its three axes; a missing one has 1.
        out_sizes: the numbers of windows along these.
        flat: the tensors are contiguous, not channels last.

    Attributes:
        planes: channels of all images.
        elements: those of a plane.
        windows: those of a plane.
        shared: channels where they come last, otherwise planes: these are shared out among threads.
    """

    def __init__(
        self,
        leading: tuple[int, ...],
        sizes: tuple[int, ...],
        out_sizes: tuple[int, ...],
        flat: bool = True,
    ) -> None:
        self.sizes, self.out_sizes, self.flat = sizes, out_sizes, flat
        self.planes = self.shared = math.prod(leading)
        self.elements, self.windows = math.prod(sizes), math.prod(out_sizes)
        # The sizes of what lies before the axes, and behind.
        self._parts = self.planes, 1
        if not flat:
            self._parts = leading[0], leading[1]
            if leading[-1] > 1:
                self.shared = leading[-1]

    @property
    def most_adaptive(self) -> int:
        """A bound of a position of one tensor times the other's size, along any axis."""
        return (max(self.sizes) + 1) * (max(self.out_sizes) + 1)

    def share(self, most: int, least: int = PER_THREAD) -> Share:
        """Choose a thread's share.

        Args:
            most: the largest number that the kernel works out beside positions in the tensors.
            least: planes, or channels, from which a thread serves several.
        """
        numel, windows = self.planes * self.elements, self.planes * self.windows
        return choose_share(self.shared, numel, windows, most, least=least)

    def choose_few(self, least: int = FEW) -> bool:
        """Choose whether zeros, and a launch for what windows chose, are quicker.

        Args:
            least: elements for each window from which they are.
        """
        return self.planes * self.elements >= MANY and self.elements >= least * self.windows

    def laid_out(self, share: Share) -> PooledShape:
        """The layout for threads with such a share."""
        outer, inner = self._parts
        shares = -(-self.shared // share.per_thread)
        threads = self.planes * self.elements // (self.shared or 1) * shares
        lanes = shares if inner > 1 else 1
        return pooled_shape(threads, outer, inner, self.sizes, self.out_sizes, lanes)

    def few(self, most: int) -> tuple[str, PooledShape]:
        """The counter and the layout of threads that have a window each; ``most`` as above."""
        threads, (outer, inner) = self.planes * self.windows, self._parts
        counter = index_ctype(self.planes * self.elements, threads, most)
        return counter, pooled_shape(threads, outer, inner, self.sizes, self.out_sizes, inner)


def pooled_of(
    shape: Sequence[int],
    out_shape: Sequence[int],
    spatial: int,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Pooled:
    """The sizes of a pooling along the last ``spatial`` dimensions of two tensors."""
    absent, shape, out_shape = (1,) * (3 - spatial), tuple(shape), tuple(out_shape)
    sizes, out_sizes = absent + shape[-spatial:], absent + out_shape[-spatial:]
    return Pooled(shape[:-spatial], sizes, out_sizes, memory_format is torch.contiguous_format)


def entries(kernel: str) -> tuple[str, ...]:
    """The name expressions of ``kernel``, a template of a dtype, a thread's share, an index."""
    return tuple(
        entry_of(kernel, dtype, Share(per_thread, index))
        for dtype in FLOATING
        for per_thread in (1, PER_THREAD)
        for index in KEYS
    )


def entry_of(kernel: str, dtype: torch.dtype, share: Share) -> str:
    """The one of :func:`entries` for a dtype and a share."""
    return f"{kernel}<{ctype(dtype)}, {share.per_thread}, {share.counter}>"


def few_entries(kernel: str) -> tuple[str, ...]:
    """The name expressions of ``kernel``, a template of a dtype and an index."""
    return tuple(f"{kernel}<{ctype(dtype)}, {key}>" for dtype in FLOATING for key in KEYS)


def gather_chosen(
    source: Source,
    entry: str,
    shape: PooledShape,
    grad_output: Tensor,
    self: Tensor,
    indices: Tensor,
    memory_format: torch.memory_format = torch.contiguous_format,
    **windows: Any,
) -> Tensor:
    """Launch a kernel that calls ``gather_chosen``.

    Args:
        source: the file with the kernel.
        entry: the kernel, by :func:`entry_of`.
        shape: the layout of its threads.
        grad_output: like ``indices``, in any strides.
        self: the pooled tensor; only its shape and dtype are used.
        indices: int64, the position that each window chose.
        memory_format: of the result.
        windows: the kernel's other arguments.

    Returns:
        A tensor of the shape and dtype of ``self``.
    """
    grad_input = new_empty(self, self.shape, memory_format=memory_format)
    return _launched(
        source, entry, shape, grad_output, indices, grad_input, memory_format, **windows
    )


def write_chosen(
    source: Source,
    kernel: str,
    pooled: Pooled,
    most: int,
    grad_output: Tensor,
    self: Tensor,
    indices: Tensor,
    memory_format: torch.memory_format,
    **windows: Any,
) -> Tensor:
    """Launch a kernel that calls ``write_chosen``, for windows that choose few elements.

    Args:
        source: the file with the kernel.
        kernel: its name.
        pooled: the sizes.
        most: as for :meth:`Pooled.share`.
        grad_output: as for :func:`gather_chosen`.
        self: likewise.
        indices: likewise.
        memory_format: likewise.
        windows: likewise.
    """
    counter, shape = pooled.few(most)
    return _launched(
        source, f"{kernel}<{ctype(self.dtype)}, {counter}>", shape, grad_output, indices,
        new_empty(self, self.shape, memory_format=memory_format).zero_(), memory_format,
        windows_magic=magic_number(pooled.windows), **windows,
    )  # fmt: skip


def _launched(
    source: Source,
    entry: str,
    shape: PooledShape,
    grad_output: Tensor,
    indices: Tensor,
    grad_input: Tensor,
    memory_format: torch.memory_format,
    **windows: Any,
) -> Tensor:
    launch(
        source, entry, shape.threads,
        grad_output=contiguous(grad_output, memory_format=memory_format),
        indices=contiguous(indices, memory_format=memory_format),
        grad_input=grad_input, shape=shape, **windows,
    )  # fmt: skip
    return grad_input


def check_shapes(
    name: str,
    out_shape: tuple[int, ...],
    shape: tuple[int, ...],
    indices_shape: tuple[int, ...],
    spatial: int,
) -> None:
    """Check the shapes of these operators, except for conditions with other messages in ATen.

    Raises:
        RuntimeError: shapes that do not go together.
    """
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
