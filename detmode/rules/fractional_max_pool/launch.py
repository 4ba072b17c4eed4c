"""Launchers of the backward of fractional max pooling."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, launch, magic_number, new_empty, new_zeros
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
from detmode.cuda.rows.chosen_windows import Pooled, entries, entry_of, pooled_of
from detmode.cuda.rows.positions import check_on_host
from detmode.cuda.rows.shares import PER_THREAD, Share
from detmode.table.conditions import FLOATING

KERNEL = "fractional_max_pool_backward"
SOURCE = Source(__file__, "kernels.cu", entries=entries(KERNEL))
Regions = namedtuple("Regions", "t h w t_magic h_magic w_magic")
"""The struct of ``kernels.cu``: the sizes of a region, the magic numbers of what is beyond it."""
REPEATED = 2**18
"""Threads at most of a launch that hardly ever has work: no more than run at once."""


@raises_like_aten
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
        kernel_size: of a region, to look for its element; one that is not the forward's makes
            this slow, not wrong.
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
    return gather(2, grad_output, self, kernel_size, output_size, indices)


@raises_like_aten
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
    return gather(3, grad_output, self, kernel_size, output_size, indices)


def gather(
    n: int,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
    share: Share | None = None,
) -> Tensor:
    """The gradient in ``n`` dimensions; ``share``: None for the one that sizes choose."""
    _check(n, grad_output, self, output_size, indices)
    grad_input = new_empty(self, self.shape)
    if grad_input.numel() == 0:
        return grad_input
    check_on_host(indices, self.shape[-n:].numel(), self.dim() - n, RuntimeError)
    pooled = pooled_of(self.shape, grad_output.shape, n)
    share = share or pooled.share(most_computed(pooled), 4 * PER_THREAD)
    shape = pooled.laid_out(share)
    arguments = {
        "grad_output": contiguous(grad_output),
        "indices": contiguous(indices),
        "grad_input": grad_input,
        # One number: of the regions that were found where their elements looked for them.
        "taken": new_zeros(indices, (1,), torch.int64),
        "shape": shape,
        "regions": regions_of(pooled, n, kernel_size),
    }
    entry = entry_of(KERNEL, self.dtype, share)
    launch(SOURCE, entry, shape.threads, everywhere=False, **arguments)
    # Does something where some were missed.
    launch(SOURCE, entry, min(shape.threads, REPEATED), everywhere=True, **arguments)
    return grad_input


def _check(
    n: int, grad_output: Tensor, self: Tensor, output_size: Sequence[int], indices: Tensor
) -> None:
    name = f"fractional_max_pool{n}d_backward"
    shape, out_shape, pooled = self.shape, grad_output.shape, tuple(output_size[:n])
    if len(shape) <= n:
        raise IndexError(f"{name}(): Expected {n + 1}D or {n + 2}D input, got {list(shape)}")
    if (
        len(shape) > n + 2
        or len(pooled) < n
        or out_shape != (*shape[:-n], *pooled)
        or indices.shape != out_shape
    ):
        raise RuntimeError(
            f"{name}(): Expected {n + 1}D or {n + 2}D input, and gradOutput and indices of its "
            f"batch and channels and output_size, but got {list(shape)}, {list(out_shape)}, "
            f"{list(indices.shape)} and {list(output_size)}"
        )
    check_scalar_type(torch.int64, indices.dtype)
    check_scalar_type(self.dtype, grad_output.dtype)
    check_implemented(f"{name}_out_frame", self.dtype, FLOATING)


def regions_of(pooled: Pooled, n: int, kernel_size: Sequence[int]) -> Regions:
    """The regions of a kernel size, which may be anything, as ATen does not read it."""
    kernel = (*(1,) * (3 - n), *kernel_size[:n])
    if len(kernel) < 3 or not all(0 <= size < 1 << 31 for size in kernel):
        kernel = (1, 1, 1)
    magics = (magic_number(size - region) for size, region in zip(pooled.sizes, kernel))
    return Regions(*kernel, *magics)


def most_computed(pooled: Pooled) -> int:
    """A number that none is above that the kernels work out of three axes."""
    # 16 times a position, with a margin of 17 and 2^-16 of the axis, is multiplied by the regions.
    return 18 * max(size * out for size, out in zip(pooled.sizes, pooled.out_sizes))
