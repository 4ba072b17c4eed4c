"""Launches that add up the gradient of the input of linear samples in a smooth grid, in tiles.

A block owns a tile of some channels, and looks at the samples that meet it: a grid's samples are
cut into boxes, of which each tile has a list. Whether a grid is smooth enough for that is found on
the GPU, which goes on the way that it went before where it is not. Both have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from detmode.cuda import (
    Source,
    bytes_of_sum,
    ctype,
    headroom,
    launch,
    launch_blocks,
    new_empty,
    new_zeros,
)
from detmode.table.conditions import FLOATING

SOURCE = Source(
    __file__,
    "tiles.cu",
    entries=tuple(
        f"grid_sampler_{kernel}<{ctype(dtype)}, {dims}>"
        for kernel in ("boxes", "tiles")
        for dtype in FLOATING
        for dims in (2, 3)
    ),
)

SIDES = {2: (32, 32), 3: (8, 16, 16)}
"""Elements of a tile along the axes, by their number, as in tiles.cu."""
PLACES = {2: 32 * 40, 3: 8 * 336}
"""Of a tile in shared memory, for a channel: its rows are apart."""
BOX = {2: (4, 8), 3: (2, 4, 4)}
"""Samples of a box along the axes: those of a warp."""
WARP = 32
RUN = 4
"""Boxes in a row that a warp cuts, as in tiles.cu."""
LONGEST = {2: 2**16 - 2, 3: 2**10 - 2}
"""Elements, and boxes, along an axis, whose numbers share 32 bits."""
THREADS = 512
"""Of a block, as in tiles.cu."""
ENOUGH_BLOCKS = 2**8
MOST_BLOCKS = 2**16
MOST_TOGETHER = 8
"""Channels of a block at most."""
FEWEST = 2**20
"""Samples of all channels from which the launches are worth it."""
SPARSEST = 4
"""Elements for each sample up to which they are."""
SLACK = {2: 2, 3: 4}
"""A list holds so many times the average tile's boxes, by the number of axes, as boxes that meet
several tiles are on several lists; and some more, for an input of few tiles."""
SPARE = 40


class Tiles(NamedTuple):
    """A way to add.

    Args:
        tiles: of all images.
        runs: of boxes in a row, of all images.
        boxes: of all images.
        listed: boxes that a tile's list holds.
        together: channels of a block.
        shared: bytes of shared memory of a block.
    """

    tiles: int
    runs: int
    boxes: int
    listed: int
    together: int
    shared: int


def worth_tiles(channels: int, sizes: Sequence[int], places: Sequence[int], strips: int) -> bool:
    """Say whether tiles are expected to be quicker, for many samples of a smooth grid.

    Args:
        channels: of each image.
        sizes: of each channel.
        places: sizes of the output.
        strips: of a channel that blocks would add in shared memory instead, or 0.
    """
    # A block with a channel for itself finds each sample's taps as often as tiles and their boxes.
    shared = channels >= 3 or not 0 < strips <= len(sizes)
    return shared and prod(places) * SPARSEST >= prod(sizes)


def tiles_of(
    dtype: torch.dtype,
    n: int,
    channels: int,
    sizes: Sequence[int],
    places: Sequence[int],
    shared: int,
) -> Tiles | None:
    """Cut images into tiles; None where they are too large, or a tile for the shared memory.

    Args:
        dtype: of the input.
        n: images.
        channels: of each image.
        sizes: of each channel.
        places: sizes of the output.
        shared: bytes of shared memory that a block may have. No bit depends on it.
    """
    dims = len(sizes)
    channel = bytes_of_sum(dtype) * PLACES[dims]
    boxes = [-(-length // side) for length, side in zip(places, BOX[dims])]
    of_image = prod(-(-size // side) for size, side in zip(sizes, SIDES[dims]))
    if shared < channel or max(*boxes, *sizes) > LONGEST[dims] or not n * channels * prod(boxes):
        return None
    # Two blocks share a multiprocessor where they can.
    together = min(
        max(shared // 2 // channel, 1),
        max(n * of_image * channels // ENOUGH_BLOCKS, 1),
        MOST_TOGETHER,
        channels,
    )
    runs = n * prod(boxes[:-1]) * -(-boxes[-1] // RUN)
    listed = SLACK[dims] * -(-prod(boxes) // of_image) + SPARE
    return Tiles(n * of_image, runs, n * prod(boxes), listed, together, together * channel)


def add_in_tiles(result: Tensor, tiles: Tiles, addends: int, sampled: dict[str, Any]) -> Tensor:
    """Fill ``result`` with sums, if the grid is smooth.

    Args:
        result: (N, C, H, W) or (N, C, D, H, W), contiguous.
        tiles: the way.
        addends: of an element at most.
        sampled: the kernels' arguments that describe the samples.

    Returns:
        Integers, the first of which is 0 if ``result`` is filled.
    """
    types = f"<{ctype(result.dtype)}, {result.dim() - 2}>"
    counts = new_zeros(result, (1 + tiles.tiles,), torch.int32)
    lists = new_empty(result, (tiles.tiles * tiles.listed,), torch.int32)
    wide = torch.float64 if result.dtype is torch.float64 else torch.float32
    records = new_empty(result, (tiles.boxes * WARP * 4,), wide)
    listed = {
        "counts": counts, "lists": lists, "records": records, "most_boxes": tiles.listed,
        "input_size": sampled["input_size"], "output_size": sampled["output_size"],
    }  # fmt: skip
    in_grid = ("grid", "grid_stride", "padding", "align_corners")
    launch(
        SOURCE, f"grid_sampler_boxes{types}", WARP * tiles.runs,
        **listed, **{name: sampled[name] for name in in_grid},
    )  # fmt: skip
    groups = -(-result.shape[1] // tiles.together)
    launch_blocks(
        SOURCE, f"grid_sampler_tiles{types}", min(tiles.tiles * groups, MOST_BLOCKS), THREADS,
        tiles.shared, result=result, together=tiles.together, headroom=headroom(addends),
        grad_output=sampled["grad_output"], grad_stride=sampled["grad_stride"], **listed,
    )  # fmt: skip
    return counts
