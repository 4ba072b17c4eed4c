"""The choice of the way to compute both gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

from detmode.cuda import bytes_of_sum
from detmode.cuda.rows.strips import Strips, strips_of
from detmode.rules.grid_sampler.sampling import BILINEAR, TAPS
from detmode.rules.grid_sampler.tiles import FEWEST, Tiles, tiles_of, worth_tiles

MANY = 2**18
"""Threads from which more channels a thread are worth more than more threads."""
MOST_CHANNELS = 8
"""Channels that a thread of the sum serves at most: it computes its weights once for them."""
MOST_STRIPS = 6
"""Into which a channel is cut at most whose sums are added in shared memory: each looks at all of
the channel's samples."""
RUNS = 8
"""Into how many a block cuts many channels."""
FEW = 128
"""Threads of a block that serves a channel of few samples, one each. The same in few_taps.cuh."""
SLOTS = 512
"""Pixels for which the block has a sum at a time. The same in few_taps.cuh."""
MOST_TAPS = SLOTS * 3 // 4
"""Of the channel, so that a free slot is near."""
FEWEST_PIXELS = 2 * SLOTS
"""Of a channel whose table is smaller than it: by count, where its instructions are fewer."""
FEWEST_CHANNELS = 64
"""Whose blocks write zeros as fast as all of a GPU writes zeros and scratch."""


class GradientWay(NamedTuple):
    """A way to add up the gradients.

    Args:
        strips: whose blocks add the input's in shared memory, the bits of sums in memory; or None.
        per_thread: the channels of a sample that a thread adds in memory.
        runs: into which the channels of a sample are cut for the grid's.
        few_taps: a channel has so few that a block adds them in a table, with the same bits.
        tiles: whose blocks add the input's where the grid is smooth, the same bits; or None.
    """

    strips: Strips | None
    per_thread: int
    runs: int
    few_taps: bool = False
    tiles: Tiles | None = None


def choose(
    dtype: torch.dtype,
    dims: int,
    taps: int,
    n: int,
    channels: int,
    sizes: Sequence[int],
    places: Sequence[int],
    shared: int,
) -> GradientWay:
    """Choose how gradients are added up.

    Args:
        dtype: of the input.
        dims: of an image.
        taps: along an axis, of a sample.
        n: images.
        channels: of each image.
        sizes: of each channel.
        places: sizes of the output.
        shared: bytes of shared memory that a block may have. No bit depends on it.
    """
    planes, samples, strips, tiles = n * channels, prod(places), None, None
    numel = planes * samples
    few_taps = (
        0 < samples <= FEW
        and taps <= TAPS[BILINEAR]
        and samples * taps**dims <= MOST_TAPS
        and planes >= FEWEST_CHANNELS
        and FEWEST_PIXELS <= prod(sizes) < 2**31
    )
    if numel and not few_taps:
        # As in kernels.cu: 16 taps and more need more registers.
        threads = 1024 if taps < 4 else 512
        strips = strips_of(
            planes, prod(sizes), samples, bytes_of_sum(dtype), shared, MOST_STRIPS, threads
        )
    per_thread = 1 if numel < MANY else min(numel // MANY, MOST_CHANNELS)
    runs = RUNS if channels >= 4 * RUNS and n * samples < MANY else 1
    if not few_taps and taps == 2 and numel >= FEWEST:
        of_channel = strips.strips if strips else 0
        if worth_tiles(channels, sizes, places, of_channel):
            tiles = tiles_of(dtype, n, channels, sizes, places, shared)
    return GradientWay(strips, per_thread, runs, few_taps, tiles)
