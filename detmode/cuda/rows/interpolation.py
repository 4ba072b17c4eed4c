"""The gradient of any separable interpolation: what the families of interpolations share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import ctype, empty, launch, launch_blocks
from detmode.cuda.dtypes import FLOATING
from detmode.cuda.rows.interpolation_tables import (
    PACKED,
    ROWS,
    SOURCE,
    WIDTH,
    Axis,
    Interpolation,
    by_name,
    ratio_of,
    write_tables,
)

# Where an element of grad_input meets more elements of grad_output than this, the last dimension is
# left to a second launch: for channels_last, which would read each of them anew, and for contiguous
# tensors with too few elements to fill a GPU. Shapes decide, so that every GPU does the same.
MAX_READS = 64
MANY = 1 << 16
# Threads from which each serves several channels or rows: with fewer, more threads are worth more.
SEVERAL = 1 << 16
# The largest grid along y.
MAX_GROUPS = 65535


def gather_backward(
    interpolation: Interpolation,
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales: Sequence[float | None],
    *,
    contiguous: bool = False,
) -> Tensor:
    """The gradient of an interpolation of the dimensions after the first two.

    ``contiguous`` makes grad_input contiguous even where grad_output is channels_last.

    Raises:
        RuntimeError: sizes that do not go together.
        NotImplementedError: a dtype that ATen does not interpolate either.
        ValueError: a dimension has 2**31 positions or more.
    """
    if grad_output.dtype not in FLOATING:
        raise NotImplementedError(f"interpolation is not implemented for {grad_output.dtype}")
    batch, channels, *sizes = input_size
    if (
        not len(sizes) == len(output_size) == len(scales)
        or grad_output.shape != (batch, channels, *output_size)
        or min(*sizes, *output_size) <= 0
    ):
        raise RuntimeError(
            f"grad_output, {list(grad_output.shape)}, does not have the sizes of an interpolation "
            f"from {list(input_size)} to {list(output_size)}"
        )
    memory_format = suggest_memory_format(grad_output)
    if contiguous:
        memory_format = torch.contiguous_format
    grad_input = empty(input_size, grad_output.dtype, grad_output.device, memory_format)
    if grad_output.shape == grad_input.shape:
        return grad_input.copy_(grad_output)
    if grad_input.numel() == 0:
        return grad_input
    grad_output = grad_output.contiguous(memory_format=memory_format)
    # The last dimension first.
    axes = []
    for size, out, scale in zip(input_size[:1:-1], grad_output.shape[:1:-1], scales[::-1]):
        if max(size, out) >= 1 << 31:
            raise ValueError(f"a dimension of {max(size, out)} is too long; split the tensor")
        ratio = ratio_of(size, out, align_corners, scale)
        axes.append(Axis(size, out, interpolation.taps(size, ratio), ratio))
    positions, weights = write_tables(interpolation, axes, align_corners, grad_output)
    flat = memory_format is torch.contiguous_format
    outer, inner = (batch * channels, 1) if flat else (batch, channels)
    last, leading, row = axes[:1], axes[1:], axes[0].out * inner
    reads = math.prod(-(-axis.out * axis.taps // axis.size) for axis in axes)
    alone = reads <= MAX_READS or (inner == 1 and grad_input.numel() >= MANY)
    if alone or not leading or row == 1:
        _gather(grad_output, positions, weights, grad_input, outer, inner, axes, interpolation)
        return grad_input
    outer_last = outer * math.prod(axis.size for axis in leading)
    sums = empty((outer_last, row), weights.dtype, weights.device)
    rest = positions[axes[0].positions :], weights[axes[0].out * axes[0].taps :]
    _gather(grad_output, *rest, sums, outer, row, leading, interpolation)
    _gather(sums, positions, weights, grad_input, outer_last, inner, last, interpolation)
    return grad_input


def _gather(
    source: Tensor,
    positions: Tensor,
    weights: Tensor,
    result: Tensor,
    outer: int,
    inner: int,
    axes: Sequence[Axis],
    interpolation: Interpolation,
) -> None:
    """``source`` is [outer, ..., inner] in memory, the dimensions of ``axes`` reversed between."""
    template = f"{ctype(source.dtype)}, {ctype(result.dtype)}, {len(axes)}"
    arguments = {
        "grad_output": source,
        "positions": positions,
        "weights": weights,
        "grad_input": result,
        "outer": outer,
        **by_name(axes),
        "clamps": interpolation.clamps,
    }
    if inner > 1:
        # Neighbouring channels are read at once where every read is aligned.
        packed = PACKED[ctype(source.dtype)]
        aligned = all(t.data_ptr() % (packed * t.itemsize) == 0 for t in (source, result))
        step, kind = 1, "false"
        if aligned and inner % packed == 0 and result.numel() >= SEVERAL * packed:
            step, kind = packed, "true"
        elif WIDTH**2 <= inner < 1 << 31 and result.numel() >= SEVERAL * WIDTH:
            step = WIDTH
        entry = f"upsample_gather<{template}, {step}, {kind}>"
        threads = result.numel() // inner * -(-inner // step)
        launch(SOURCE, entry, threads, inner=inner, **arguments)
        return
    width = axes[0].size
    x = min(256, max(32, 1 << (width - 1).bit_length()))
    y = 256 // x
    rows = ROWS if result.numel() >= SEVERAL * ROWS else 1
    lines = result.numel() // width
    height = axes[1].size if len(axes) > 1 else lines
    groups = lines // height * -(-height // rows)
    shared = 2 * rows * x * y * weights.element_size()
    launch_blocks(
        SOURCE, f"upsample_gather_rows<{template}, {rows}>",
        (-(-width // x), min(-(-groups // y), MAX_GROUPS)), (x, y),
        shared=shared, **arguments,
    )  # fmt: skip
