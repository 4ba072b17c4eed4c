"""The gradient of any separable interpolation: what the families of interpolations share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import contiguous, ctype, launch, launch_blocks, new_empty
from detmode.cuda.checks import named, raises_like_aten
from detmode.cuda.dtypes import FLOATING, OPMATH
from detmode.cuda.rows.interpolation_tables import (
    LANES,
    PACKED,
    ROWS,
    SOURCE,
    WIDTH,
    Axis,
    Interpolation,
    axes_of,
    resized,
)

# Where an element of grad_input meets more elements of grad_output than this, the last dimension is
# left to a second launch: for channels_last, which would read each of them anew, and for contiguous
# tensors with too few elements to fill a GPU. Shapes decide, so that every GPU does the same.
MAX_READS = 64
# Where one of the last dimension of a contiguous tensor does, a warp adds them, and from so many on
# a block.
MANY_READS = 1 << 12
MANY = 1 << 16
# With fewer elements than MANY, and at most so many bytes of tables, each block has its own tables
# in shared memory. All is one launch then, and sizes that were never met cost the host no other.
SHARED = 1 << 13
# The same of rows whose tables are longer: a block has those of a strip, in so many bytes.
STRIP = 1 << 15
# Threads from which each serves several channels or rows: with fewer, more threads are worth more.
SEVERAL = 1 << 16
# The threads of a block, and the largest grid along y, or of blocks that take turns.
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
        memory_format = _format_of(grad_output)
    grad_output = contiguous(grad_output, memory_format=memory_format)
    input_size, output_size = tuple(input_size), tuple(output_size)
    leading, sizes = input_size[:2], input_size[2:]
    is_copied = grad_output.shape == input_size or 0 in leading
    if (
        not len(sizes) == len(output_size) == len(scales)
        or grad_output.shape != leading + output_size
        or (is_copied and min(sizes + output_size) <= 0)
    ):
        raise RuntimeError(
            f"grad_output, {list(grad_output.shape)}, does not have the sizes of an interpolation "
            f"from {list(input_size)} to {list(output_size)}"
        )
    if is_copied:
        grad_input = new_empty(grad_output, input_size, memory_format=memory_format)
        return grad_input.copy_(grad_output) if grad_input.numel() else grad_input
    opmath = OPMATH.get(grad_output.dtype, grad_output.dtype)
    axes, length = axes_of(interpolation, opmath, align_corners, sizes, output_size, scales)
    outer, inner = leading
    if memory_format is torch.contiguous_format:
        outer, inner = outer * inner, 1
    grad_input = new_empty(grad_output, input_size, memory_format=memory_format)
    way = choose(axes, length, opmath, grad_input.numel(), inner)
    if way in ("small", "strips"):
        gather = partial(_gather_at_once, way, interpolation, align_corners)
    else:
        tables = new_empty(grad_output, (length,), opmath)
        entry = f"upsample_tables<{interpolation.name}, {ctype(opmath)}>"
        written = {"tables": tables, "resized": resized(axes), "align_corners": align_corners}
        launch(interpolation.source, entry, length, **written)
        gather = partial(_gather, interpolation, tables)
    if way == "last apart":
        last, axes = axes[0], axes[1:]
        row = last.out * inner
        lines = grad_input.numel() // (last.size * inner)
        sums = new_empty(tables, (lines, row))
        gather(grad_output, sums, outer, row, axes)
        grad_output, outer, axes = sums, lines, (last,)
    gather(grad_output, grad_input, outer, inner, axes)
    return grad_input


def _format_of(grad_output: Tensor) -> torch.memory_format:
    strides = grad_output.stride()
    # Channels last, an element is at least as far from the next in a row as from the next channel.
    is_planar = strides[-1] < strides[1]
    return torch.contiguous_format if is_planar else suggest_memory_format(grad_output)


GatherWay: TypeAlias = Literal["small", "strips", "whole", "last apart"]
"""A way to gather. Without tables in memory, all is one launch: each block has its own tables in
shared memory, or those of a strip of a row. Otherwise tables are written to memory first, and an
element gathers along all axes, or the last axis is left to another launch."""


def choose(
    axes: Sequence[Axis], length: int, opmath: torch.dtype, numel: int, inner: int
) -> GatherWay:
    """Choose how to gather; between the last two, sizes decide on bits.

    Args:
        axes: the last one first.
        length: elements of their tables.
        opmath: the dtype of these.
        numel: elements of grad_input.
        inner: its channels where they come last, otherwise 1.
    """
    last = axes[0]
    reads_little = math.prod(-(-axis.out * axis.taps // axis.size) for axis in axes) <= MAX_READS
    if numel < MANY and reads_little:
        if length * opmath.itemsize <= SHARED:
            return "small"
        fits = last.size >= LONG and inner == 1 and numel // last.size <= MAX_GROUPS
        if fits and _strip_bytes(axes, opmath) <= STRIP:
            return "strips"
    is_filled = inner == 1 and numel >= MANY and lanes_of(last) == 1
    if is_filled or reads_little or len(axes) == 1 or last.out * inner == 1:
        return "whole"
    return "last apart"


def lanes_of(axis: Axis) -> int:
    """Choose how many threads add what an element meets along the last axis, and so its bits."""
    reads = -(-axis.out * axis.taps // axis.size)
    return 1 if reads <= MAX_READS else LANES[reads > MANY_READS]


def _strip_bytes(axes: Sequence[Axis], dtype: torch.dtype) -> float:
    """The most bytes that a block of ``upsample_strips`` needs."""
    # Of the last dimension each thread has a position, of the others all have the same.
    total, n = 8.0 * (BLOCK + 2), BLOCK
    for size, out, taps, _, ratio in axes:
        readers: float = out
        if ratio > 0:
            # One reads less than `taps` positions to each side of its own. Those behind the input
            # may read its last.
            behind = max(out - (size - 1) / ratio, 0)
            readers = min(out, (n + 2 * taps) / ratio + behind + 3)
        total += (readers + 1) * (taps * dtype.itemsize + 4)
        n = 1
    return total


def _gather_at_once(
    way: GatherWay,
    interpolation: Interpolation,
    align_corners: bool,
    grad_output: Tensor,
    grad_input: Tensor,
    outer: int,
    inner: int,
    axes: Sequence[Axis],
) -> None:
    """Launch what writes [outer, (sizes of axes,) inner], and needs no tables in memory."""
    types = f"<{interpolation.name}, {ctype(grad_output.dtype)}, {len(axes)}>"
    how: dict[str, Any] = {"align_corners": align_corners, "clamps": interpolation.clamps}
    how |= {"grad_output": grad_output, "grad_input": grad_input, "resized": resized(axes)}
    numel, width = grad_input.numel(), axes[0].size
    if way == "small":
        entry, blocks = f"upsample_small{types}", -(-numel // BLOCK)
        how |= {"outer": outer, "inner": inner}
        launch_blocks(interpolation.source, entry, blocks, BLOCK, SHARED, **how)
    else:
        entry, strips = f"upsample_strips{types}", (-(-width // BLOCK), numel // width)
        launch_blocks(interpolation.source, entry, strips, BLOCK, STRIP, capacity=STRIP, **how)


def _gather(
    interpolation: Interpolation,
    tables: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    outer: int,
    inner: int,
    axes: Sequence[Axis],
) -> None:
    """Launch what writes the same by tables in memory."""
    numel, read = grad_input.numel(), ctype(grad_output.dtype)
    scalars = f"{read}, {ctype(grad_input.dtype)}"
    types = f"{scalars}, {len(axes)}"
    gathered: dict[str, Any]
    gathered = {"grad_output": grad_output, "tables": tables, "grad_input": grad_input}
    gathered |= {"outer": outer, "resized": resized(axes), "clamps": interpolation.clamps}
    if inner > 1:
        # Neighbouring channels are read at once where every read is aligned.
        step, packed = 1, PACKED[read]
        is_aligned = grad_output.data_ptr() % 16 == 0 and inner % packed == 0
        if is_packed := is_aligned and numel >= SEVERAL * packed:
            step = packed
        elif WIDTH**2 <= inner < 1 << 31 and numel >= SEVERAL * WIDTH:
            step = WIDTH
        entry = f"upsample_gather<{types}, {step}, {str(is_packed).lower()}>"
        launch(SOURCE, entry, numel // inner * -(-inner // step), inner=inner, **gathered)
        return
    width = axes[0].size
    lines = numel // width
    if len(axes) == 1 and (lanes := lanes_of(axes[0])) > 1:
        rows = ROWS if numel * lanes >= SEVERAL * ROWS else 1
        entry, owners = f"upsample_gather_lanes<{scalars}, {lanes}, {rows}>", BLOCK // lanes
        blocks = min(-(-(-(-lines // rows) * width) // owners), MAX_GROUPS)
        launch_blocks(SOURCE, entry, blocks, BLOCK, **gathered)
        return
    height = axes[1].size if len(axes) > 1 else lines
    rows = ROWS if numel >= SEVERAL * ROWS else 1
    x = next((x for x in (32, 64, 128) if width <= x), 256)
    groups = -(-(lines // height * -(-height // rows)) // (BLOCK // x))
    launch_blocks(
        SOURCE, f"upsample_gather_rows<{types}, {rows}>",
        (-(-width // x), min(groups, MAX_GROUPS)), (x, BLOCK // x),
        2 * rows * BLOCK * (8 if read == "double" else 4), **gathered,
    )  # fmt: skip
