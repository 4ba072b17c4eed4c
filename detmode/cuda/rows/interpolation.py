"""The gradient of any separable interpolation: what the families of interpolations share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Launch, ctype, empty, new_empty, planned
from detmode.cuda.dtypes import FLOATING
from detmode.cuda.rows.interpolation_tables import (
    ABSENT,
    NO_SHAPE,
    NUMBERS,
    PACKED,
    ROWS,
    SOURCE,
    WIDTH,
    Interpolation,
    Tables,
    ratio_of,
)

# Where an element of grad_input meets more elements of grad_output than this, the last dimension is
# left to a second launch: for channels_last, which would read each of them anew, and for contiguous
# tensors with too few elements to fill a GPU. Shapes decide, so that every GPU does the same.
MAX_READS = 64
MANY = 1 << 16
# Threads from which each serves several channels or rows: with fewer, more threads are worth more.
SEVERAL = 1 << 16
# The threads of a block, and the largest grid along y.
BLOCK, MAX_GROUPS = 256, 65535


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
    strides = grad_output.stride()
    # Channels last, an element is at least as far from the next in a row as from the next channel.
    if not contiguous and strides[-1] >= strides[1]:
        memory_format = suggest_memory_format(grad_output)
    grad_output = grad_output.contiguous(memory_format=memory_format)
    plan = _plan(
        interpolation, grad_output.dtype, grad_output.shape, memory_format,
        tuple(output_size), tuple(input_size), align_corners, tuple(scales),
        grad_output.data_ptr() % 16 == 0,
    )  # fmt: skip
    if memory_format is torch.contiguous_format:
        grad_input = new_empty(grad_output, input_size)
    else:
        grad_input = empty(input_size, grad_output.dtype, grad_output.device, memory_format)
    if plan is None:
        return grad_input.copy_(grad_output) if grad_input.numel() else grad_input
    tables = plan.tables.beside(grad_output)
    if plan.last is None:
        plan.gather(grad_output=grad_output, tables=tables, grad_input=grad_input)
        return grad_input
    sums = new_empty(tables, plan.sums)
    plan.gather(grad_output=grad_output, tables=tables[plan.skipped :], grad_input=sums)
    plan.last(grad_output=sums, tables=tables, grad_input=grad_input)
    return grad_input


class _Plan(NamedTuple):
    """The launches of one gradient.

    Args:
        tables: of all axes.
        gather: over all axes, or over all but the last one.
        last: over that one, in two launches.
        sums: the shape of what is between the two.
        skipped: the length of the last axis' table.
    """

    tables: Tables
    gather: Launch
    last: Launch | None = None
    sums: tuple[int, int] = (0, 0)
    skipped: int = 0


@planned
def _plan(
    interpolation: Interpolation,
    dtype: torch.dtype,
    shape: torch.Size,
    memory_format: torch.memory_format,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    align_corners: bool,
    scales: tuple[float | None, ...],
    is_aligned: bool,
) -> _Plan | None:
    """The plan of a gradient; None where nothing is gathered: of no elements, or of equal sizes.

    ``is_aligned``: packs of 16 bytes of grad_output can be read at once.
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
    if shape == input_size or 0 in input_size:
        return None
    opmath = torch.float64 if dtype is torch.float64 else torch.float32
    at_once = opmath.itemsize // 4
    numbers: list[Any] = []
    threads, length, reads = 0, 0, 1
    for size, out, scale in zip(sizes[::-1], output_size[::-1], scales[::-1]):
        if size >= 1 << 31 or out >= 1 << 31:
            raise ValueError(f"a dimension of {max(size, out)} is too long; split the tensor")
        ratio = ratio_of(size, out, align_corners, scale)
        taps = interpolation.taps(size, ratio)
        part = out * taps - (-(out + 2 * size) // at_once)
        numbers += size, out, taps, part, ratio
        threads += size + out
        length += part
        reads *= -(-out * taps // size)
    flat = memory_format is torch.contiguous_format
    outer, inner = (batch * channels, 1) if flat else (batch, channels)
    whole = _shape(outer, inner, numbers)
    write = _write_nothing(interpolation, opmath, align_corners).resized(threads, shape=whole)
    tables = Tables(write, length, opmath)
    row = output_size[-1] * inner
    numel = math.prod(input_size)
    many = inner == 1 and numel >= MANY
    clamps = interpolation.clamps
    if len(sizes) == 1 or row == 1 or reads <= MAX_READS or many:
        gather = _gather(dtype, dtype, len(sizes), whole, numel, is_aligned, clamps)
        return _Plan(tables, gather)
    _, _, _, skipped, _ = numbers[:NUMBERS]
    outer_last = outer * math.prod(sizes[:-1])
    leading = _shape(outer, row, numbers[NUMBERS:])
    last = _shape(outer_last, inner, numbers[:NUMBERS])
    return _Plan(
        tables,
        _gather(dtype, opmath, len(sizes) - 1, leading, outer_last * row, is_aligned, clamps),
        _gather(opmath, dtype, 1, last, numel, True, clamps),
        (outer_last, row),
        skipped,
    )


def _shape(outer: int, inner: int, numbers: list[Any]) -> tuple[Any, ...]:
    """`Shape`; a named one would take a microsecond more."""
    return (outer, inner, *numbers, *ABSENT[len(numbers) :])


# Launches of no shape, to be resized.


@planned
def _write_nothing(interpolation: Interpolation, dtype: torch.dtype, align_corners: bool) -> Launch:
    """The one that writes tables."""
    entry = interpolation.entry.format(ctype(dtype))
    return Launch(interpolation.source, entry, 0, shape=NO_SHAPE, align_corners=align_corners)


@planned
def _gather_nothing(
    read: torch.dtype, written: torch.dtype, dims: int, step: int, packed: bool, clamps: bool
) -> Launch:
    """The one that gathers, ``step`` channels a thread."""
    arguments = f"{ctype(read)}, {ctype(written)}, {dims}, {step}, {str(packed).lower()}"
    return Launch(SOURCE, f"upsample_gather<{arguments}>", 0, shape=NO_SHAPE, clamps=clamps)


@planned
def _gather_no_rows(
    read: torch.dtype, written: torch.dtype, dims: int, rows: int, x: int, clamps: bool
) -> Launch:
    """The one that gathers, ``rows`` rows a thread, in blocks with ``x`` threads along a row."""
    entry = f"upsample_gather_rows<{ctype(read)}, {ctype(written)}, {dims}, {rows}>"
    shared = 2 * rows * BLOCK * (8 if read is torch.float64 else 4)
    block = x, BLOCK // x
    return Launch.of_blocks(SOURCE, entry, 0, block, shared=shared, shape=NO_SHAPE, clamps=clamps)


def _gather(
    read: torch.dtype,
    written: torch.dtype,
    dims: int,
    shape: tuple[Any, ...],
    numel: int,
    is_aligned: bool,
    clamps: bool,
) -> Launch:
    """The launch that reads ``dims`` dimensions of a `Shape` and writes ``numel``."""
    _, inner, width, *_ = shape
    if inner > 1:
        # Neighbouring channels are read at once where every read is aligned.
        packed = PACKED[ctype(read)]
        step = 1
        if is_packed := is_aligned and inner % packed == 0 and numel >= SEVERAL * packed:
            step = packed
        elif WIDTH**2 <= inner < 1 << 31 and numel >= SEVERAL * WIDTH:
            step = WIDTH
        launch = _gather_nothing(read, written, dims, step, is_packed, clamps)
        return launch.resized(numel // inner * -(-inner // step), shape=shape)
    lines = numel // width
    height = shape[2 + NUMBERS] if dims > 1 else lines
    rows = ROWS if numel >= SEVERAL * ROWS else 1
    x = 32 if width <= 32 else 64 if width <= 64 else 128 if width <= 128 else 256
    y = BLOCK // x
    groups = lines // height * -(-height // rows)
    launch = _gather_no_rows(read, written, dims, rows, x, clamps)
    grid = -(-width // x), min(-(-groups // y), MAX_GROUPS), 1
    return launch.resized_blocks(grid, shape=shape)
