"""Launches the backward kernels that all operators of grid sampling share."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor

from detmode.cuda import (
    bytes_of_sum,
    ctype,
    headroom,
    launch_blocks,
    most_shared,
    new_empty,
    new_zeros,
    sum_to_zeros,
)
from detmode.cuda.checks import check_devices, check_implemented, check_scalar_type
from detmode.cuda.rows.extents import sizes_of, strides_of
from detmode.rules.grid_sampler.sampling import NEAREST, SOURCE, TAPS, matched
from detmode.rules.grid_sampler.tiles import add_in_tiles
from detmode.rules.grid_sampler.ways import FEW, SLOTS, GradientWay, choose
from detmode.table.conditions import FLOATING

THREADS = 256
"""Of a block, the same in kernels.cu."""
MOST_BLOCKS = 2**16
FEW_THREADS = 2**20
"""More than a GPU holds at once."""
PLACE = 4
"""Bytes of what says which pixel a slot is for."""


def backward(
    name: str,
    dims: int,
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
    way: GradientWay | None = None,
) -> tuple[Tensor | None, Tensor]:
    """The gradients of an input and a grid.

    Args:
        name: of the kernel, in messages.
        dims: of an image.
        grad_output: (N, C, H_out, W_out) or (N, C, D_out, H_out, W_out).
        input: (N, C, H, W) or (N, C, D, H, W).
        grid: (N, H_out, W_out, 2) or (N, D_out, H_out, W_out, 3).
        interpolation_mode: a key of :data:`TAPS`.
        padding_mode: 0 for zeros, 1 for the border, 2 for reflection.
        align_corners: whether -1 and 1 are the centres of the outermost pixels, or their edges.
        output_mask: whether the input's gradient is asked for; the grid's always is.
        way: None for the one that :func:`~.ways.choose` chooses.

    Raises:
        Exception: as ATen, for what does not go together.
    """
    check_devices(name, input, grid, grad_output)
    if interpolation_mode not in TAPS or padding_mode not in range(3):
        raise RuntimeError(
            "grid_sampler(): expected an interpolation mode and a padding mode from 0 to 2, but "
            f"got {interpolation_mode} and {padding_mode}"
        )
    check_implemented(name, input.dtype, FLOATING)
    check_scalar_type(input.dtype, grid.dtype, grad_output.dtype)
    n, channels, sizes, places = matched(dims, input.shape, grid.shape, grad_output.shape)
    samples, taps = prod(places), TAPS[interpolation_mode]
    way = way or choose(input.dtype, dims, taps, n, channels, sizes, places, most_shared(input))
    by_grid = grid.stride()
    types = f"<{ctype(input.dtype)}, {dims}, {taps}>"
    sampled: dict[str, Any] = {
        "grad_output": grad_output, "grid": grid,
        "input_size": sizes_of(input.shape), "output_size": sizes_of(grad_output.shape),
        "grad_stride": strides_of(grad_output.stride()),
        # The coordinates are the grid's channels.
        "grid_stride": strides_of((by_grid[0], by_grid[-1], *by_grid[1:-1])),
        "padding": padding_mode, "align_corners": align_corners,
    }  # fmt: skip
    asks_for_input, _ = output_mask
    of_input = None
    if asks_for_input:
        of_input = new_empty(input, input.shape)
        _add_up(of_input, types, way, samples, samples * taps**dims, sampled)
    if interpolation_mode == NEAREST or not n * samples * channels:
        return of_input, new_zeros(grid, grid.shape)
    of_grid = new_empty(grid, grid.shape)
    launch_blocks(
        SOURCE, f"grid_sampler_grad_grid{types}",
        min(-(-n * samples * way.runs // THREADS), MOST_BLOCKS), (THREADS // way.runs, way.runs),
        input=input, grad_grid=of_grid, run=-(-channels // way.runs),
        input_stride=strides_of(input.stride()), **sampled,
    )  # fmt: skip
    return of_input, of_grid


def _add_up(
    result: Tensor,
    types: str,
    way: GradientWay,
    samples: int,
    addends: int,
    sampled: dict[str, Any],
) -> None:
    """Fill ``result`` with sums, in shared memory or in memory, of so many addends at most."""
    n, channels = result.shape[:2]
    if way.few_taps:
        shared = SLOTS * (bytes_of_sum(result.dtype) + PLACE)
        launch_blocks(
            SOURCE, f"grid_sampler_few_taps{types}", min(n * channels, MOST_BLOCKS), FEW, shared,
            result=result, headroom=headroom(addends), **sampled,
        )  # fmt: skip
        return
    needed = None
    if way.tiles is not None:
        needed = add_in_tiles(result, way.tiles, addends, sampled)
    if way.strips is not None:
        blocks, threads, shared, strip, strips = way.strips
        launch_blocks(
            SOURCE, f"grid_sampler_strips{types}", blocks, threads, shared,
            result=result, strip=strip, strips=strips, headroom=headroom(addends), needed=needed,
            **sampled,
        )  # fmt: skip
        return
    groups = -(-channels // way.per_thread)
    threads = n * samples * groups
    if needed is not None:
        # Of a launch that has nothing to do, each block takes time.
        threads = min(threads, FEW_THREADS)
    sum_to_zeros(
        SOURCE, f"grid_sampler_scatter{types}", threads, result=result, addends=addends,
        groups=groups, per_thread=way.per_thread, needed=needed, **sampled,
    )  # fmt: skip
