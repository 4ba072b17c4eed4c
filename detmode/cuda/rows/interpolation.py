"""The gradient of any separable interpolation: what the families of interpolations share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Launch, UnsizedLaunch, contiguous, ctype, new_empty, planned
from detmode.cuda.checks import named, raises_like_aten
from detmode.cuda.dtypes import FLOATING, OPMATH
from detmode.cuda.rows.interpolation_tables import (
    ABSENT,
    PACKED,
    ROWS,
    SOURCE,
    WIDTH,
    Axes,
    Interpolation,
    axes_of,
    table_writer,
)

# Where an element of grad_input meets more elements of grad_output than this, the last dimension is
# left to a second launch: for channels_last, which would read each of them anew, and for contiguous
# tensors with too few elements to fill a GPU. Shapes decide, so that every GPU does the same.
MAX_READS = 64
MANY = 1 << 16
# With fewer elements than MANY, and at most so many bytes of tables, each block has its own tables
# in shared memory. All is one launch then, and sizes that were never met cost the host no other.
SHARED = 1 << 13
# The same of rows whose tables are longer: a block has those of a strip, in so many bytes.
STRIP = 1 << 15
# Threads from which each serves several channels or rows: with fewer, more threads are worth more.
SEVERAL = 1 << 16
# The threads of a block, and the largest grid along y.
BLOCK, MAX_GROUPS = 256, 65535
# The shortest rows of which a block takes a strip.
LONG = BLOCK // 2


def interpolation_backward(
    module: str,
    name: str,
    interpolation: Interpolation,
    *,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Callable[..., Tensor]:
    """Make the launcher of an interpolation's backward, as :func:`gather_backward` says.

    Args:
        module: in which it is defined.
        name: the operator without its namespace: ``"upsample_linear1d_backward"``.
        interpolation: of its forward operator.
        memory_format: of the gradient; if preserved, channels_last where grad_output is.
    """
    gather = partial(gather_backward, interpolation, memory_format)

    def of_lines(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales: float | None = None,
    ) -> Tensor:
        return gather(grad_output, output_size, input_size, align_corners, (scales,))

    def of_images(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return gather(grad_output, output_size, input_size, align_corners, (scales_h, scales_w))

    def of_volumes(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        scales = scales_d, scales_h, scales_w
        return gather(grad_output, output_size, input_size, align_corners, scales)

    launchers: dict[str, Callable[..., Tensor]]
    launchers = {"1d": of_lines, "2d": of_images, "3d": of_volumes}
    (launcher,) = (function for dims, function in launchers.items() if dims in name)
    preserves = launcher is not of_lines and memory_format is torch.preserve_format
    form = "in grad_output's memory format" if preserves else "always contiguous"
    doc = f"The gradient of ``{name.removesuffix('_backward')}``, {form}."
    return raises_like_aten(named(launcher, module, name, doc))


def gather_backward(
    interpolation: Interpolation,
    memory_format: torch.memory_format,
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales: Sequence[float | None],
) -> Tensor:
    """The gradient of an interpolation of the dimensions after the first two.

    ``memory_format`` is that of grad_input; if preserved, channels_last where grad_output is.

    Raises:
        RuntimeError: sizes that do not go together.
        NotImplementedError: a dtype that ATen does not interpolate either.
        ValueError: a dimension has 2**31 positions or more.
    """
    if grad_output.dtype not in FLOATING:
        raise NotImplementedError(f"interpolation is not implemented for {grad_output.dtype}")
    if memory_format is torch.preserve_format:
        strides = grad_output.stride()
        # Channels last, an element is at least as far from the next in a row as from the next
        # channel.
        is_planar = strides[-1] < strides[1]
        memory_format = torch.contiguous_format if is_planar else suggest_memory_format(grad_output)
    grad_output = contiguous(grad_output, memory_format=memory_format)
    dtype = grad_output.dtype
    opmath = OPMATH.get(dtype, dtype)
    plan = _plan(
        interpolation, dtype, opmath, grad_output.shape, memory_format,
        tuple(output_size), tuple(input_size), align_corners, tuple(scales),
        grad_output.data_ptr() % 16 == 0,
    )  # fmt: skip
    grad_input = new_empty(grad_output, input_size, memory_format=memory_format)
    if plan is None:
        return grad_input.copy_(grad_output) if grad_input.numel() else grad_input
    if not isinstance(plan, tuple):
        plan(grad_output=grad_output, grad_input=grad_input)
        return grad_input
    write, length, gather, last, between = plan
    tables = new_empty(grad_output, (length,), opmath)
    write(tables=tables)
    if last is None:
        gather(grad_output=grad_output, tables=tables, grad_input=grad_input)
        return grad_input
    sums = new_empty(tables, between)
    gather(grad_output=grad_output, tables=tables, grad_input=sums)
    last(grad_output=sums, tables=tables, grad_input=grad_input)
    return grad_input


# The launch that writes the tables, and their length; the launch that gathers over all axes, or
# over all but the last one; the launch over that one, where there are two, and the shape of what
# is between them. A plain tuple: a named one would take half a microsecond more.
_Plan: TypeAlias = tuple[Launch, int, Launch, "Launch | None", tuple[int, int]]


@planned
def _plan(
    interpolation: Interpolation,
    dtype: torch.dtype,
    opmath: torch.dtype,
    shape: tuple[int, ...],
    memory_format: torch.memory_format,
    output_size: tuple[int, ...],
    input_size: tuple[int, ...],
    align_corners: bool,
    scales: tuple[float | None, ...],
    is_aligned: bool,
) -> Launch | _Plan | None:
    """The plan of a gradient; None where nothing is gathered: of no elements, or of equal sizes.

    ``is_aligned``: packs of 16 bytes of grad_output can be read at once. A `Launch` has no tables.
    """
    leading, sizes = input_size[:2], input_size[2:]
    is_copied = shape == input_size or 0 in leading
    if (
        not len(sizes) == len(output_size) == len(scales)
        or shape != leading + output_size
        or (is_copied and min(sizes + output_size) <= 0)
    ):
        raise RuntimeError(
            f"grad_output, {list(shape)}, does not have the sizes of an interpolation from "
            f"{list(input_size)} to {list(output_size)}"
        )
    if is_copied:
        return None
    numel = math.prod(input_size)
    outer, inner = leading
    if memory_format is torch.contiguous_format:
        outer, inner = outer * inner, 1
    axes, length = axes_of(interpolation, opmath, align_corners, sizes, output_size, scales)
    if numel < MANY and _reads(axes) <= MAX_READS:
        if length * opmath.itemsize <= SHARED:
            small = _small(interpolation, dtype, len(sizes), align_corners)
            return partial(small.launch, numel, outer, inner, axes)
        width = sizes[-1]
        rows = numel // width
        fits = width >= LONG and inner == 1 and rows <= MAX_GROUPS
        if fits and _strip_bytes(axes, opmath) <= STRIP:
            strips = _strips(interpolation, dtype, len(sizes), align_corners)
            grid = -(-width // BLOCK), rows, 1
            return partial(strips.launch_blocks, grid, axes)
    write = table_writer(interpolation, opmath, align_corners).of_threads(length, axes)
    clamps, row = interpolation.clamps, output_size[-1] * inner
    many = inner == 1 and numel >= MANY
    if many or row == 1 or len(sizes) == 1 or _reads(axes) <= MAX_READS:
        whole = _gather(dtype, dtype, outer, inner, sizes, axes, numel, is_aligned, clamps)
        return write, length, whole, None, (0, 0)
    others, last = sizes[:-1], sizes[-1:]
    lines = outer * math.prod(others)
    first = _gather(
        dtype, opmath, outer, row, others, axes[5:] + ABSENT[2], lines * row, is_aligned, clamps
    )
    second = _gather(opmath, dtype, lines, inner, last, axes[:5] + ABSENT[1], numel, True, clamps)
    return write, length, first, second, (lines, row)


def _reads(axes: Axes) -> float:
    """The most that an element reads."""
    w, w_out, w_taps, _, _, h, h_out, h_taps, _, _, d, d_out, d_taps, _, _ = axes
    reads = -(-w_out * w_taps // w)
    if h:
        reads *= -(-h_out * h_taps // h)
    if d:
        reads *= -(-d_out * d_taps // d)
    return reads


def _strip_bytes(axes: Axes, dtype: torch.dtype) -> float:
    """The most bytes that a block of ``upsample_strips`` needs."""
    # Of the last dimension each thread has a position, of the others all have the same.
    total, n, width = 8.0 * (BLOCK + 2), BLOCK, dtype.itemsize
    for i in range(0, len(axes), 5):
        size, out, taps, _, ratio = axes[i : i + 5]
        if not size:
            break
        readers = out
        if ratio > 0:
            # One reads less than `taps` positions to each side of its own. Those behind the input
            # may read its last.
            behind = out - (size - 1) / ratio
            near = (n + 2 * taps) / ratio + (behind if behind > 0 else 0) + 3
            if near < out:
                readers = near
        total += (readers + 1) * (taps * width + 4)
        n = 1
    return total


# Launches without their shapes.


@planned
def _small(
    interpolation: Interpolation, dtype: torch.dtype, dims: int, align_corners: bool
) -> UnsizedLaunch:
    """The one that does without tables in global memory."""
    entry = f"upsample_small<{interpolation.name}, {ctype(dtype)}, {dims}>"
    return UnsizedLaunch(
        interpolation.source, entry, ("outer", "inner", "resized"), BLOCK, SHARED,
        align_corners=align_corners, clamps=interpolation.clamps,
    )  # fmt: skip


@planned
def _strips(
    interpolation: Interpolation, dtype: torch.dtype, dims: int, align_corners: bool
) -> UnsizedLaunch:
    """The one whose blocks have tables for a strip of a row."""
    entry = f"upsample_strips<{interpolation.name}, {ctype(dtype)}, {dims}>"
    return UnsizedLaunch(
        interpolation.source, entry, ("resized",), BLOCK, STRIP,
        align_corners=align_corners, clamps=interpolation.clamps, capacity=STRIP,
    )  # fmt: skip


@planned
def _gather_elements(
    read: torch.dtype, written: torch.dtype, dims: int, step: int, packed: bool, clamps: bool
) -> UnsizedLaunch:
    """The one that gathers, ``step`` channels a thread."""
    arguments = f"{ctype(read)}, {ctype(written)}, {dims}, {step}, {str(packed).lower()}"
    unset = "outer", "inner", "resized"
    return UnsizedLaunch(SOURCE, f"upsample_gather<{arguments}>", unset, clamps=clamps)


@planned
def _gather_rows(
    read: torch.dtype, written: torch.dtype, dims: int, rows: int, x: int, clamps: bool
) -> UnsizedLaunch:
    """The one that gathers, ``rows`` rows a thread, in blocks with ``x`` threads along a row."""
    entry = f"upsample_gather_rows<{ctype(read)}, {ctype(written)}, {dims}, {rows}>"
    shared = 2 * rows * BLOCK * (8 if read is torch.float64 else 4)
    unset = "outer", "resized"
    return UnsizedLaunch(SOURCE, entry, unset, (x, BLOCK // x), shared, clamps=clamps)


def _gather(
    read: torch.dtype,
    written: torch.dtype,
    outer: int,
    inner: int,
    sizes: tuple[int, ...],
    axes: Axes,
    numel: int,
    is_aligned: bool,
    clamps: bool,
) -> Launch:
    """The launch that writes [outer, (sizes,) inner], of so many elements."""
    dims = len(sizes)
    if inner > 1:
        # Neighbouring channels are read at once where every read is aligned.
        packed = PACKED[ctype(read)]
        step = 1
        if is_packed := is_aligned and inner % packed == 0 and numel >= SEVERAL * packed:
            step = packed
        elif WIDTH**2 <= inner < 1 << 31 and numel >= SEVERAL * WIDTH:
            step = WIDTH
        launch = _gather_elements(read, written, dims, step, is_packed, clamps)
        return partial(launch.launch, numel // inner * -(-inner // step), outer, inner, axes)
    width = sizes[-1]
    lines = numel // width
    height = sizes[-2] if dims > 1 else lines
    rows = ROWS if numel >= SEVERAL * ROWS else 1
    x = 256 if width > 128 else 128 if width > 64 else 64 if width > 32 else 32
    y = BLOCK // x
    groups = -(-(lines // height * -(-height // rows)) // y)
    launch = _gather_rows(read, written, dims, rows, x, clamps)
    grid = -(-width // x), groups if groups < MAX_GROUPS else MAX_GROUPS, 1
    return partial(launch.launch_blocks, grid, outer, axes)
