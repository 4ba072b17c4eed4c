"""Launches that add up the gradient of the input of a smooth grid, in tiles of the input.

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
from detmode.rules.grid_sampler.sampling import TAPS
from detmode.table.conditions import FLOATING

SOURCE = Source(
    __file__,
    "tiles.cu",
    entries=tuple(
        f"grid_sampler_{kernel}<{ctype(dtype)}, {dims}, {taps}>"
        for kernel in ("boxes", "tiles")
        for dtype in FLOATING
        for dims in (2, 3)
        for taps in TAPS.values()
    ),
)

SIDE = {2: 32, 3: 16}
"""Elements of a tile along each axis, by the number of axes, as in tiles.cu."""
BOX = {2: (4, 8), 3: (2, 2, 8)}
"""Samples of a box along the axes: those of a warp."""
MOST_BOXES = {2: 2**16, 3: 2**10}
"""Along an axis, whose numbers a list holds."""
THREADS = 512
"""Of a block, the same in tiles.cu."""
BLOCKS = 2**16
MOST_TOGETHER = 8
"""Channels of a block at most, for which it finds its samples' taps once."""
FEWEST = 2**20
"""Samples of all channels from which the launches are worth it."""
FEWEST_BLOCKS = 128
SPARSEST = 8
"""Elements for each sample up to which they are."""
SLACK = 4
"""How many times as many boxes as the average tile's a list holds, and some more: those that meet
several tiles."""
SPARE = 64


class Tiles(NamedTuple):
    """A way to add.

    Args:
        tiles: of all images.
        boxes: of all images.
        listed: boxes that a tile's list holds.
        together: channels of a block.
        shared: bytes of shared memory of a block.
    """

    tiles: int
    boxes: int
    listed: int
    together: int
    shared: int


def worth_tiles(
    n: int, channels: int, sizes: Sequence[int], places: Sequence[int], strips: int
) -> bool:
    """Whether tiles are expected to be quicker, for a smooth grid.

    Args:
        n: images.
        channels: of each image.
        sizes: of each channel.
        places: sizes of the output.
        strips: of a channel that blocks would add in shared memory instead, or 0.
    """
    samples = prod(places)
    few = n * channels * samples < FEWEST or samples * SPARSEST < prod(sizes)
    # A block that has a channel for itself finds each sample's taps as often as a tile would.
    return not few and (strips != 1 or channels >= 4)


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
    each = bytes_of_sum(dtype) * SIDE[dims] ** dims
    boxes = [-(-length // side) for length, side in zip(places, BOX[dims])]
    tiles = prod(-(-size // SIDE[dims]) for size in sizes)
    if shared < each or max(boxes) > MOST_BOXES[dims] or not n * channels * prod(boxes):
        return None
    # Two blocks share a multiprocessor where they can.
    fits = max(shared // 2 // each, 1)
    groups = -(-channels // min(fits, MOST_TOGETHER))
    together = -(-channels // groups)
    listed = SLACK * -(-prod(boxes) // tiles) + SPARE
    return Tiles(n * tiles, n * prod(boxes), listed, together, together * each)


def add_in_tiles(
    result: Tensor, types: str, tiles: Tiles, addends: int, sampled: dict[str, Any]
) -> Tensor:
    """Fill ``result`` with sums, if the grid is smooth.

    Args:
        result: (N, C, H, W) or (N, C, D, H, W), contiguous.
        types: the arguments of the kernels' templates.
        tiles: the way.
        addends: of an element at most.
        sampled: what the kernels take of the samples.

    Returns:
        Integers, the first of which is 0 if ``result`` is filled.
    """
    counts = new_zeros(result, (1 + tiles.tiles,), torch.int32)
    lists = new_empty(result, (tiles.tiles * tiles.listed,), torch.int32)
    listed = {"counts": counts, "lists": lists, "most_boxes": tiles.listed}
    grid = {name: value for name, value in sampled.items() if not name.startswith("grad_")}
    launch(SOURCE, f"grid_sampler_boxes{types}", 32 * tiles.boxes, **listed, **grid)
    groups = -(-result.shape[1] // tiles.together)
    launch_blocks(
        SOURCE, f"grid_sampler_tiles{types}", min(tiles.tiles * groups, BLOCKS), THREADS,
        tiles.shared, result=result, together=tiles.together, headroom=headroom(addends),
        **listed, **sampled,
    )  # fmt: skip
    return counts
