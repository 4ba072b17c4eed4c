"""The choice of the way to compute both gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch

from detmode.cuda import bytes_of_sum
from detmode.cuda.strips import Strips, strips_of
from detmode.rules.grid_sampler.sampling import BILINEAR, TAPS

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
    """

    strips: Strips | None
    per_thread: int
    runs: int
    few_taps: bool = False


def choose(
    dtype: torch.dtype,
    dims: int,
    taps: int,
    n: int,
    channels: int,
    pixels: int,
    samples: int,
    shared: int,
) -> GradientWay:
    """Choose how gradients are added up.

    Args:
        dtype: of the input.
        dims: of an image.
        taps: along an axis, of a sample.
        n: images.
        channels: of each image.
        pixels: of each channel.
        samples: of each channel, in the output.
        shared: bytes of shared memory that a block may have. No bit depends on it.
    """
    planes, strips = n * channels, None
    numel = planes * samples
    few_taps = (
        0 < samples <= FEW
        and taps <= TAPS[BILINEAR]
        and samples * taps**dims <= MOST_TAPS
        and planes >= FEWEST_CHANNELS
        and FEWEST_PIXELS <= pixels < 2**31
    )
    if numel and not few_taps:
        # As in kernels.cu: 16 taps and more need more registers.
        threads = 1024 if taps < 4 else 512
        each = bytes_of_sum(dtype)
        strips = strips_of(planes, pixels, samples, each, shared, MOST_STRIPS, threads)
    per_thread = 1 if numel < MANY else min(numel // MANY, MOST_CHANNELS)
    runs = RUNS if channels >= 4 * RUNS and n * samples < MANY else 1
    return GradientWay(strips, per_thread, runs, few_taps)
