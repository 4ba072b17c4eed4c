"""Plans the launches of the backward kernels that all operators of grid sampling share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TypeAlias

import torch

from detmode.cuda import UnsizedLaunch, ctype, planned
from detmode.cuda.rows.extents import sizes_of, strides_of
from detmode.rules.grid_sampler.checks import matched
from detmode.rules.grid_sampler.sampling import EXTENTS, NEAREST, SOURCE, TAPS, Sampling
from detmode.rules.grid_sampler.sums import Sampled, in_memory, plan_sums
from detmode.rules.grid_sampler.ways import GradientWay, choose

THREADS = 256
"""Of a block, the same in kernels.cu."""

Layout: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape of a tensor, and its strides."""


Plan: TypeAlias = tuple[Callable[..., None], "Callable[..., None] | None"]
"""Functions that fill the gradients of the input and of the grid, as ``result`` and ``grad_grid``;
None for the latter where it is zero: for nearest, and without channels."""


def plan(
    name: str,
    how: Sampling,
    dims: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    input: Layout,
    grid: Layout,
    grad: Layout,
    most_shared: int,
    way: GradientWay | None,
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
        most_shared: bytes of shared memory that a block may have.
        way: None for the one that :func:`~.ways.choose` chooses.

    Raises:
        Exception: as ATen, for what does not go together.
    """
    launches = in_memory(name, how, dims, dtypes)
    # Plain tuples are cut quicker than a torch.Size.
    input_size, output_size, by_grid = tuple(input[0]), tuple(grad[0]), grid[1]
    n, channels, sizes, places = matched(dims, input_size, tuple(grid[0]), output_size)
    per_image = prod(places)
    samples = n * per_image
    # The coordinates are the grid's channels.
    grid_stride = strides_of((by_grid[0], by_grid[-1]) + by_grid[1:-1])
    extents = sizes_of(input_size), sizes_of(output_size), strides_of(grad[1]), grid_stride
    sampled, dtype = Sampled(n, channels, prod(sizes), per_image, extents), dtypes[0]
    way = way or choose(dtype, TAPS[how.interpolation], *sampled[:4], most_shared)
    scatter = plan_sums(launches, how, dims, dtype, sampled, way)
    gather = None
    if how.interpolation != NEAREST and samples * channels:
        blocks = -(-samples * way.runs // THREADS)
        # Of two numbers, min takes several times as long.
        blocks = blocks if blocks < 2**16 else 2**16
        unsized, run = _gathering(how, dims, dtype, way.runs), -(-channels // way.runs)
        gather = partial(unsized.launch_blocks, blocks, run, *extents, strides_of(input[1]))
    return scatter, gather


@planned
def _gathering(how: Sampling, dims: int, dtype: torch.dtype, runs: int) -> UnsizedLaunch:
    """The launch of the grid's gradient without its sizes."""
    entry = f"grid_sampler_grad_grid<{ctype(dtype)}, {dims}, {TAPS[how.interpolation]}>"
    return UnsizedLaunch(
        SOURCE, entry, ("run", *EXTENTS, "input_stride"), (THREADS // runs, runs),
        padding=how.padding, align_corners=how.align_corners,
    )  # fmt: skip
