"""Plans the gradient of the input: its sums are added in memory, or in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from detmode.cuda import UnsizedLaunch, ctype, headroom, planned, sum_in_any_order
from detmode.rules.grid_sampler.sampling import EXTENTS, SOURCE, TAPS, Sampling

MANY = 2**18
"""Threads from which more channels a thread are worth more than more threads."""
MOST_CHANNELS = 8
"""Channels that a thread of the sum serves at most: it computes its weights once for them."""
FEWEST_BLOCKS, MOST_STRIPS = 64, 6
"""Blocks from which sums in shared memory are worth it, and strips of a channel up to which they
are: a block looks at all samples of its channel, which no other helps it with."""
RESERVED = 1024
"""Bytes of shared memory that a GPU takes for itself, for each block."""


def plan_sums(
    how: Sampling,
    dims: int,
    dtype: torch.dtype,
    n: int,
    channels: int,
    pixels: int,
    samples: int,
    extents: Sequence[tuple[int, ...]],
    most_shared: int,
) -> Callable[..., None]:
    """Plan the launches that fill ``result``, called with it, ``grad_output`` and ``grid``.

    Args:
        how: the input is sampled.
        dims: of an image.
        dtype: of the input.
        n: images.
        channels: of each image.
        pixels: of each channel.
        samples: likewise.
        extents: the kernels' :data:`~.sampling.EXTENTS`.
        most_shared: bytes of shared memory that a block may have.
    """
    bits = headroom(samples * TAPS[how.interpolation] ** dims)
    numel, planes = n * channels * samples, n * channels
    cut = _strips(planes, pixels, 20 if dtype is torch.float64 else 12, most_shared)
    if cut is not None and numel:
        strips, share = cut
        blocks = min(planes * strips, 2**16)
        run = _in_blocks(how, dims, dtype, most_shared, share).launch_blocks
        return partial(run, blocks, -(-pixels // strips), strips, *extents, bits)
    per_thread = 1 if numel < MANY else min(numel // MANY, MOST_CHANNELS)
    groups = -(-channels // per_thread)
    add, finish = _in_memory(how, dims, dtype)
    return partial(
        _add_up,
        add.of_threads(n * samples * groups, groups, per_thread, *extents, bits),
        # Packed at each call: that takes half a microsecond, and a plan more than one.
        partial(finish.launch, -(-planes * pixels // 2), planes * pixels, bits),
    )


def _strips(planes: int, pixels: int, bytes_each: int, most_shared: int) -> tuple[int, int] | None:
    """Into how many strips a channel is cut, and how many blocks share a GPU's shared memory.

    None where the sums are better added in memory.
    """
    strips = -(-pixels // (most_shared // bytes_each))
    if not 0 < strips <= MOST_STRIPS or planes * strips < FEWEST_BLOCKS:
        return None
    share = 4
    while share > 1 and -(-pixels // strips) * bytes_each > _share_of(most_shared, share):
        share //= 2
    return strips, share


def _share_of(most_shared: int, share: int) -> int:
    """Bytes of each of so many blocks of a multiprocessor."""
    return (most_shared + RESERVED) // share - RESERVED


def _add_up(
    add: Callable[..., None],
    finish: Callable[..., None],
    /,
    *,
    result: Tensor,
    grad_output: Tensor,
    grid: Tensor,
) -> None:
    add = partial(add, grad_output=grad_output, grid=grid)
    sum_in_any_order(result, partial(add, sums=None), add, finish)


@planned
def _in_memory(how: Sampling, dims: int, dtype: torch.dtype) -> tuple[UnsizedLaunch, UnsizedLaunch]:
    """The launches of the input's gradient without their sizes."""
    entry = f"grid_sampler_scatter<{ctype(dtype)}, {dims}, {TAPS[how.interpolation]}>"
    open = ("groups", "per_thread", *EXTENTS, "headroom")
    fixed = {"padding": how.padding, "align_corners": how.align_corners}
    return (
        UnsizedLaunch(SOURCE, entry, open, **fixed),
        UnsizedLaunch(SOURCE, f"finish_sums<{ctype(dtype)}>", ("n", "headroom")),
    )


@planned
def _in_blocks(
    how: Sampling, dims: int, dtype: torch.dtype, most_shared: int, share: int
) -> UnsizedLaunch:
    """The launch of the input's gradient in shared memory without its sizes."""
    taps = TAPS[how.interpolation]
    return UnsizedLaunch(
        SOURCE, f"grid_sampler_strips<{ctype(dtype)}, {dims}, {taps}>",
        ("strip", "strips", *EXTENTS, "headroom"),
        (1024 if taps < 4 else 512) // share, _share_of(most_shared, share),
        padding=how.padding, align_corners=how.align_corners,
    )  # fmt: skip
