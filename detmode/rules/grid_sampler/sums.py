"""Plans the gradient of the input: its sums are added in memory, or in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from detmode.cuda import UnsizedLaunch, ctype, headroom, planned, sum_in_any_order
from detmode.rules.grid_sampler.checks import check_how
from detmode.rules.grid_sampler.sampling import EXTENTS, SOURCE, TAPS, Sampling
from detmode.rules.grid_sampler.ways import GradientWay


class Sampled(NamedTuple):
    """The sizes of what is sampled.

    Args:
        images: in the input.
        channels: of an image.
        pixels: of a channel.
        samples: of a channel, in the output.
        extents: the kernels' :data:`~.sampling.EXTENTS`.
    """

    images: int
    channels: int
    pixels: int
    samples: int
    extents: Sequence[tuple[int, ...]]


def plan_sums(
    launches: tuple[UnsizedLaunch, UnsizedLaunch],
    how: Sampling,
    dims: int,
    dtype: torch.dtype,
    sampled: Sampled,
    way: GradientWay,
) -> Callable[..., None]:
    """Plan the launches that fill ``result``, called with it, ``grad_output`` and ``grid``.

    Args:
        launches: by :func:`in_memory`.
        how: the input is sampled.
        dims: of an image.
        dtype: of the input.
        sampled: the sizes.
        way: in which they are added up.
    """
    images, channels, pixels, samples, extents = sampled
    bits = headroom(samples * TAPS[how.interpolation] ** dims)
    if way.strips is not None:
        blocks, threads, shared, strip, strips = way.strips
        run = _in_blocks(how, dims, dtype, threads, shared).launch_blocks
        return partial(run, blocks, strip, strips, *extents, bits)
    (add, finish), numel = launches, images * channels * pixels
    groups = -(-channels // way.per_thread)
    return partial(
        _add_up,
        add.of_threads(images * samples * groups, groups, way.per_thread, *extents, bits),
        # Packed at each call: that takes half a microsecond, and a plan more than one.
        partial(finish.launch, -(-numel // 2), numel, bits),
    )


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
def in_memory(
    name: str,
    how: Sampling,
    dims: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
) -> tuple[UnsizedLaunch, UnsizedLaunch]:
    """The launches of the input's gradient, and of its sums, without their sizes.

    Args:
        name: of the kernel, in messages.
        how: the input is sampled.
        dims: of an image.
        dtypes: of the input, the grid and ``grad_output``: all the same.

    Raises:
        Exception: as ATen, for modes and dtypes.
    """
    check_how(name, how, dtypes)
    dtype = dtypes[0]
    entry = f"grid_sampler_scatter<{ctype(dtype)}, {dims}, {TAPS[how.interpolation]}>"
    unset = ("groups", "per_thread", *EXTENTS, "headroom")
    fixed = {"padding": how.padding, "align_corners": how.align_corners}
    return (
        UnsizedLaunch(SOURCE, entry, unset, **fixed),
        UnsizedLaunch(SOURCE, f"finish_sums<{ctype(dtype)}>", ("n", "headroom")),
    )


@planned
def _in_blocks(
    how: Sampling, dims: int, dtype: torch.dtype, threads: int, shared: int
) -> UnsizedLaunch:
    """The launch of the input's gradient in shared memory without its sizes."""
    return UnsizedLaunch(
        SOURCE, f"grid_sampler_strips<{ctype(dtype)}, {dims}, {TAPS[how.interpolation]}>",
        ("strip", "strips", *EXTENTS, "headroom"), threads, shared,
        padding=how.padding, align_corners=how.align_corners,
    )  # fmt: skip
