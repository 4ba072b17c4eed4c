"""Plans the launches of the backward kernels that all operators of grid sampling share."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import NamedTuple, TypeAlias

import torch

from detmode.cuda import Launch, Source, UnsizedLaunch, ctype, headroom, planned
from detmode.cuda.rows.extents import sizes_of, strides_of
from detmode.rules.grid_sampler.checks import check_how, matched
from detmode.table.conditions import FLOATING

BILINEAR, NEAREST, BICUBIC = range(3)
TAPS = {BILINEAR: 2, NEAREST: 1, BICUBIC: 4}
"""Pixels that a sample reads along one axis, by PyTorch's number of the interpolation."""

MANY = 2**18
"""Threads from which more channels a thread are worth more than more threads."""
MOST_CHANNELS = 8
"""Channels that a thread of the sum serves at most: it computes its weights once for them."""
THREADS, RUNS = 256, 8
"""Threads of a block, the same in kernels.cu, and into how many runs it cuts many channels."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(
        *(f"finish_sums<{ctype(dtype)}>" for dtype in FLOATING),
        *(
            f"grid_sampler_{kernel}<{ctype(dtype)}, {dims}, {taps}>"
            for kernel in ("scatter", "grad_grid")
            for dtype in FLOATING
            for dims in (2, 3)
            for taps in TAPS.values()
            if (kernel, taps) != ("grad_grid", 1)
        ),
    ),
)


class Sampling(NamedTuple):
    """The arguments that say where the forward operator samples.

    Args:
        interpolation: a key of :data:`TAPS`.
        padding: 0 for zeros, 1 for the border, 2 for reflection.
        align_corners: whether -1 and 1 are the centres of the outermost pixels, or their edges.
    """

    interpolation: int
    padding: int
    align_corners: bool


Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape of a tensor, and its strides."""


Plan: TypeAlias = tuple[Launch, Launch, "Launch | None"]
"""The launches that still need their tensors: of the addends of the input's gradient, of their
sums, and of the grid's gradient; None where that is zero: for nearest, and without channels."""


def plan(
    name: str,
    how: Sampling,
    dims: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    input: Layout,
    grid: Layout,
    grad: Layout,
) -> Plan:
    """Plan the gradients of an input and a grid.

    Args:
        name: of the kernel, in messages.
        how: the input is sampled.
        dims: of an image.
        dtypes: of the input, the grid and ``grad_output``: all the same.
        input: (N, C, H, W) or (N, C, D, H, W).
        grid: (N, H_out, W_out, 2) or (N, D_out, H_out, W_out, 3).
        grad: (N, C, H_out, W_out) or (N, C, D_out, H_out, W_out).

    Raises:
        Exception: as ATen, for what does not go together.
    """
    add, finish = _scattering(name, how, dims, dtypes)
    n, channels, sizes, places = matched(dims, input[0], grid[0], grad[0])
    per_image = prod(places)
    samples = n * per_image
    numel = samples * channels
    per_thread = 1 if numel < MANY else min(numel // MANY, MOST_CHANNELS)
    groups = -(-channels // per_thread)
    # The coordinates are the grid's channels.
    of_image, *of_places, of_coordinates = grid[1]
    grid_stride = strides_of((of_image, of_coordinates, *of_places))
    extents = sizes_of(input[0]), sizes_of(grad[0]), strides_of(grad[1]), grid_stride
    elements = n * channels * prod(sizes)
    bits = headroom(per_image * TAPS[how.interpolation] ** dims)
    gather = None
    if how.interpolation != NEAREST and numel:
        runs = RUNS if channels >= 4 * RUNS and samples < MANY else 1
        blocks = -(-samples * runs // THREADS)
        # Of two numbers, min takes several times as long.
        blocks = blocks if blocks < 2**16 else 2**16
        strides, run = strides_of(input[1]), -(-channels // runs)
        unsized = _gathering(how, dims, dtypes[0], runs)
        gather = partial(unsized.launch_blocks, blocks, run, *extents, strides)
    return (
        add.of_threads(samples * groups, groups, per_thread, *extents, bits),
        # Packed at each call: that takes half a microsecond, and a plan more than one.
        partial(finish.launch, -(-elements // 2), elements, bits),
        gather,
    )


_EXTENTS = ("input_size", "output_size", "grad_stride", "grid_stride")


@planned
def _scattering(
    name: str,
    how: Sampling,
    dims: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
) -> tuple[UnsizedLaunch, UnsizedLaunch]:
    """The launches of the input's gradient without their sizes."""
    check_how(name, how.interpolation, how.padding, dtypes)
    dtype = ctype(dtypes[0])
    entry = f"grid_sampler_scatter<{dtype}, {dims}, {TAPS[how.interpolation]}>"
    open = ("groups", "per_thread", *_EXTENTS, "headroom")
    fixed = {"padding": how.padding, "align_corners": how.align_corners}
    return (
        UnsizedLaunch(SOURCE, entry, open, **fixed),
        UnsizedLaunch(SOURCE, f"finish_sums<{dtype}>", ("n", "headroom")),
    )


@planned
def _gathering(how: Sampling, dims: int, dtype: torch.dtype, runs: int) -> UnsizedLaunch:
    """The launch of the grid's gradient without its sizes."""
    entry = f"grid_sampler_grad_grid<{ctype(dtype)}, {dims}, {TAPS[how.interpolation]}>"
    return UnsizedLaunch(
        SOURCE, entry, ("run", *_EXTENTS, "input_stride"), (THREADS // runs, runs),
        padding=how.padding, align_corners=how.align_corners,
    )  # fmt: skip
