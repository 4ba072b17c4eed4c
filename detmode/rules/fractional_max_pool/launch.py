"""Launchers of the backward of fractional max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from detmode.cuda import (
    MAGIC,
    Launch,
    Source,
    UnsizedLaunch,
    contiguous,
    new_empty,
    new_zeros,
    planned,
)
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
from detmode.cuda.rows.chosen_windows import entries, shared_out, unsized
from detmode.cuda.rows.positions import check_on_host
from detmode.cuda.rows.shares import Share
from detmode.table.conditions import FLOATING

KERNEL = "fractional_max_pool_backward"
SOURCE = Source(__file__, "kernels.cu", entries=entries(KERNEL))
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
    launches = plan(
        n, self.dtype, grad_output.dtype, indices.dtype,
        self.shape, grad_output.shape, indices.shape, tuple(kernel_size), tuple(output_size), share,
    )  # fmt: skip
    if launches is None:
        return new_empty(self, self.shape)
    check_on_host(indices, self.shape[-n:].numel(), self.dim() - n, RuntimeError)
    tensors = {
        "grad_output": contiguous(grad_output),
        "indices": contiguous(indices),
        "grad_input": new_empty(self, self.shape),
        # One number: of the regions that were found where their elements looked for them.
        "taken": new_zeros(indices, (1,), torch.int64),
    }
    for launch in launches:
        launch(**tensors)
    return tensors["grad_input"]


@planned
def plan(
    n: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    indices_dtype: torch.dtype,
    shape: tuple[int, ...],
    out_shape: tuple[int, ...],
    indices_shape: tuple[int, ...],
    kernel_size: tuple[int, ...],
    output_size: tuple[int, ...],
    share: Share | None,
) -> tuple[Launch, Launch] | None:
    """The launch that gathers, and the one that does where it missed some; None for no elements."""
    name = f"fractional_max_pool{n}d_backward"
    # A plain tuple is cut quicker than a torch.Size.
    shape, out_shape = tuple(shape), tuple(out_shape)
    leading, pooled = shape[:-n], output_size[:n]
    if len(shape) <= n:
        raise IndexError(f"{name}(): Expected {n + 1}D or {n + 2}D input, got {list(shape)}")
    if (
        len(leading) > 2
        or len(pooled) < n
        or out_shape != leading + pooled
        or indices_shape != out_shape
    ):
        raise RuntimeError(
            f"{name}(): Expected {n + 1}D or {n + 2}D input, and gradOutput and indices of its "
            f"batch and channels and output_size, but got {list(shape)}, {list(out_shape)}, "
            f"{list(indices_shape)} and {list(output_size)}"
        )
    _check_dtypes(name, dtype, out_dtype, indices_dtype)
    if 0 in shape:
        return None
    # The missing axis has one region of one input.
    ones = (1,) * (3 - n)
    sizes, out_sizes, regions = ones + shape[-n:], ones + pooled, ones + kernel_size[:n]
    # ATen does not read the kernel size, so it may be anything.
    if len(regions) < 3 or not 0 <= regions[0] | regions[1] | regions[2] < 1 << 31:
        regions = (1, 1, 1)
    most = most_computed(sizes, out_sizes)
    share, threads, layout = shared_out(leading, sizes, out_sizes, True, most, share)
    once, again = _launches(dtype, share)
    (t, h, w), (kt, kh, kw) = sizes, regions
    axes = kt, kh, kw, MAGIC[t - kt], MAGIC[h - kh], MAGIC[w - kw]
    # Packed at each call: that takes half a microsecond, and a plan more than one. Of two numbers,
    # min takes several times as long.
    later = partial(again.launch, threads if threads < REPEATED else REPEATED, layout, axes)
    return once.of_threads(threads, layout, axes), later


@planned
def _check_dtypes(name: str, dtype: torch.dtype, out: torch.dtype, indices: torch.dtype) -> None:
    check_scalar_type(torch.int64, indices)
    check_scalar_type(dtype, out)
    check_implemented(f"{name}_out_frame", dtype, FLOATING)


@planned
def _launches(dtype: torch.dtype, share: Share) -> tuple[UnsizedLaunch, UnsizedLaunch]:
    make = partial(unsized, SOURCE, KERNEL, dtype, share, ("shape", "regions"))
    return make(everywhere=False), make(everywhere=True)


def most_computed(sizes: tuple[int, ...], out_sizes: tuple[int, ...]) -> int:
    """A number that none is above that the kernels work out of three axes."""
    (t, h, w), (t_out, h_out, w_out) = sizes, out_sizes
    # 16 times a position, with a margin of 17 and 2^-16 of the axis, is multiplied by the regions.
    return 18 * max(t * t_out, h * h_out, w * w_out)
