"""Plans the launches of the backward kernels that all operators of grid sampling share."""

from __future__ import annotations

from math import prod
from typing import NamedTuple, TypeAlias

import torch

from detmode.cuda import Launch, Source, UnsizedLaunch, ctype, headroom, planned
from detmode.cuda.rows.extents import Extents
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


class Plan(NamedTuple):
    """The launches that still need their tensors.

    Args:
        observe: of the addends of the input's gradient.
        add: likewise.
        finish: of their sums.
        gather: of the grid's gradient; None where it is zero: for nearest, and without channels.
    """

    observe: Launch
    add: Launch
    finish: Launch
    gather: Launch | None


def plan(how: Sampling, dtype: torch.dtype, input: Layout, grid: Layout, grad: Layout) -> Plan:
    """Plan the gradients of an input and a grid.

    Args:
        how: the input is sampled.
        dtype: of all tensors.
        input: (N, C, H, W) or (N, C, D, H, W).
        grid: (N, H_out, W_out, 2) or (N, D_out, H_out, W_out, 3).
        grad: (N, C, H_out, W_out) or (N, C, D_out, H_out, W_out).
    """
    (n, channels, *_), dims = input[0], grid[0][-1]
    samples, taps, numel = prod(grid[0][1:-1]), TAPS[how.interpolation], prod(grad[0])
    per_thread = min(max(numel // MANY, 1), MOST_CHANNELS)
    groups = -(-channels // per_thread)
    threads, elements, bits = n * groups * samples, prod(input[0]), headroom(samples * taps**dims)
    of_image, *of_places, of_coordinates = grid[1]
    # The coordinates are the grid's channels.
    grid_stride = Extents.strides((of_image, of_coordinates, *of_places))
    extents = Extents.sizes(input[0]), Extents.sizes(grad[0]), Extents.strides(grad[1]), grid_stride
    observe, add, finish = _scattering(how, dtype, dims)
    gather = None
    if how.interpolation != NEAREST and numel:
        runs = RUNS if channels >= 4 * RUNS and n * samples < MANY else 1
        blocks = min(-(-n * samples * runs // THREADS), 2**16)
        strides, run = Extents.strides(input[1]), -(-channels // runs)
        gather = _gathering(how, dtype, dims, runs).of_blocks(blocks, run, *extents, strides)
    return Plan(
        observe.of_threads(threads, groups, per_thread, *extents, bits),
        add.of_threads(threads, groups, per_thread, *extents, bits),
        finish.of_threads(elements, elements, bits),
        gather,
    )


_EXTENTS = ("input_size", "output_size", "grad_stride", "grid_stride")


@planned
def _scattering(
    how: Sampling, dtype: torch.dtype, dims: int
) -> tuple[UnsizedLaunch, UnsizedLaunch, UnsizedLaunch]:
    """The launches of the input's gradient without their sizes."""
    entry = f"grid_sampler_scatter<{ctype(dtype)}, {dims}, {TAPS[how.interpolation]}>"
    open = ("groups", "per_thread", *_EXTENTS, "headroom")
    fixed = {"padding": how.padding, "align_corners": how.align_corners}
    return (
        UnsizedLaunch(SOURCE, entry, open, sums=None, **fixed),
        UnsizedLaunch(SOURCE, entry, open, **fixed),
        UnsizedLaunch(SOURCE, f"finish_sums<{ctype(dtype)}>", ("n", "headroom")),
    )


@planned
def _gathering(how: Sampling, dtype: torch.dtype, dims: int, runs: int) -> UnsizedLaunch:
    """The launch of the grid's gradient without its sizes."""
    entry = f"grid_sampler_grad_grid<{ctype(dtype)}, {dims}, {TAPS[how.interpolation]}>"
    return UnsizedLaunch(
        SOURCE, entry, ("run", *_EXTENTS, "input_stride"), (THREADS // runs, runs),
        padding=how.padding, align_corners=how.align_corners,
    )  # fmt: skip
