"""The gradient of any separable interpolation: what the families of interpolations share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

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
    Tables,
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
    memory_format = torch.contiguous_format
    # Channels last, an element is at least as far from the next in a row as from the next channel.
    if not contiguous and grad_output.stride(-1) >= grad_output.stride(1):
        memory_format = suggest_memory_format(grad_output)
    tables, outer, inner, alone = _plan(
        *(interpolation, grad_output.shape, memory_format),
        *(tuple(output_size), tuple(input_size), align_corners, tuple(scales)),
    )
    grad_input = empty(input_size, grad_output.dtype, grad_output.device, memory_format)
    if grad_output.shape == grad_input.shape:
        return grad_input.copy_(grad_output)
    if grad_input.numel() == 0:
        return grad_input
    grad_output = grad_output.contiguous(memory_format=memory_format)
    positions, weights = write_tables(interpolation, tables, align_corners, grad_output)
    if alone:
        _gather(grad_output, positions, weights, grad_input, outer, inner, tables, interpolation)
        return grad_input
    axes = tables.axes
    last, leading, row = Tables.of(axes[:1]), Tables.of(axes[1:]), axes[0].out * inner
    outer_last = outer * math.prod(axis.size for axis in axes[1:])
    sums = empty((outer_last, row), weights.dtype, weights.device)
    rest = positions[axes[0].positions :], weights[axes[0].out * axes[0].taps :]
    _gather(grad_output, *rest, sums, outer, row, leading, interpolation)
    _gather(sums, positions, weights, grad_input, outer_last, inner, last, interpolation)
    return grad_input


@lru_cache(maxsize=4096)
def _plan(
    interpolation: Interpolation,
    shape: torch.Size,
    memory_format: torch.memory_format,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    align_corners: bool,
    scales: tuple[float | None, ...],
) -> tuple[Tables, int, int, bool]:
    """The tables of the axes, and how many elements are before and behind those.

    At the end, whether one launch gathers over all axes.
    """
    batch, channels, *sizes = input_size
    if (
        not len(sizes) == len(output_size) == len(scales)
        or shape != (batch, channels, *output_size)
        or min(*sizes, *output_size) <= 0
    ):
        raise RuntimeError(
            f"grad_output, {list(shape)}, does not have the sizes of an interpolation from "
            f"{list(input_size)} to {list(output_size)}"
        )
    is_gathered = shape != input_size and 0 not in input_size
    axes = []
    for size, out, scale in zip(sizes[::-1], output_size[::-1], scales[::-1]):
        if is_gathered and max(size, out) >= 1 << 31:
            raise ValueError(f"a dimension of {max(size, out)} is too long; split the tensor")
        ratio = ratio_of(size, out, align_corners, scale)
        axes.append(Axis(size, out, interpolation.taps(size, ratio), ratio))
    flat = memory_format is torch.contiguous_format
    outer, inner = (batch * channels, 1) if flat else (batch, channels)
    reads = math.prod(-(-axis.out * axis.taps // axis.size) for axis in axes)
    is_one_row = len(axes) == 1 or axes[0].out * inner == 1
    many = inner == 1 and math.prod(input_size) >= MANY
    return Tables.of(axes), outer, inner, is_one_row or reads <= MAX_READS or many


def _gather(
    source: Tensor,
    positions: Tensor,
    weights: Tensor,
    result: Tensor,
    outer: int,
    inner: int,
    tables: Tables,
    interpolation: Interpolation,
) -> None:
    """``source`` is [outer, ..., inner] in memory, the axes of ``tables`` reversed between."""
    axes = tables.axes
    template = f"{ctype(source.dtype)}, {ctype(result.dtype)}, {len(axes)}"
    arguments = {
        "grad_output": source,
        "positions": positions,
        "weights": weights,
        "grad_input": result,
        "outer": outer,
        **tables.named,
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
    grid, block, rows = _grid_of_rows(axes[0].size, axes[1].size if axes[1:] else 0, result.numel())
    launch_blocks(
        SOURCE, f"upsample_gather_rows<{template}, {rows}>", grid, block,
        shared=2 * rows * block[0] * block[1] * weights.itemsize, **arguments,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _grid_of_rows(
    width: int, height: int, numel: int
) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Grid, block and the rows that a thread serves, for planes or, without ``height``, rows."""
    x = min(256, max(32, 1 << (width - 1).bit_length()))
    y = 256 // x
    rows = ROWS if numel >= SEVERAL * ROWS else 1
    lines = numel // width
    height = height or lines
    groups = lines // height * -(-height // rows)
    return (-(-width // x), min(-(-groups // y), MAX_GROUPS)), (x, y), rows
