"""Arguments of the backward of grid sampling, as the samples and the tests make them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detmode.rules.grid_sampler.sampling import BILINEAR
from detmode.table.samples import Maker

ZEROS, BORDER, REFLECTION = range(3)


def grid_of(
    m: Maker, size: Sequence[int], shape: Sequence[int], align_corners: bool, reach: int = 2
) -> Tensor:
    """A grid that reaches ``reach`` pixels beyond an input of ``size``.

    Its positions are odd sixteenths of a pixel: far from where another pixel becomes the nearest,
    or the first of a pair, so that roundings do not decide it. Where ``size`` is a power of two,
    with ``align_corners`` one more, small positions are exact in every dtype.
    """
    axes = []
    for pixels in reversed(size):
        whole = m.integers(-reach, pixels + reach, *shape).double()
        position = whole + (2 * m.integers(0, 8, *shape).double() + 1) / 16
        if align_corners:
            axes.append(2 * position / max(pixels - 1, 1) - 1)
        else:
            axes.append((2 * position + 1) / pixels - 1)
    return torch.stack(axes, -1).to(m.dtype)


def near_identity(m: Maker, size: Sequence[int], shape: Sequence[int]) -> Tensor:
    """The identity's grid, moved by up to two pixels, neighbours alike, as a motion field does."""
    lines = [
        torch.linspace(-1, 1, length, dtype=torch.float64, device="cpu") for length in shape[1:]
    ]
    axes = [axis.to(m.device) for axis in torch.meshgrid(*lines, indexing="ij")]
    images = shape[0], *(1,) * len(axes)
    moved = []
    for axis, pixels in zip(axes, size):
        phase = m.integers(0, 64, *images).double() * (math.pi / 32)
        moved.append(axis + torch.sin(math.pi * sum(axes) + phase) * (4 / pixels))
    return torch.stack(moved[::-1], -1).to(m.dtype)


def backward(
    m: Maker,
    batch: Sequence[int],
    size: Sequence[int],
    out: Sequence[int],
    mode: int = BILINEAR,
    padding: int = ZEROS,
    align_corners: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """The arguments for sampling an input of ``batch`` (N, C) and ``size`` at ``out`` positions."""
    reach, smooth = more.pop("reach", 2), more.pop("smooth", False)
    shape = (batch[0], *out)
    grid = (
        near_identity(m, size, shape) if smooth else grid_of(m, size, shape, align_corners, reach)
    )
    return {
        "grad_output": m.normal(*batch, *out),
        "input": m.normal(*batch, *size),
        "grid": grid,
        "interpolation_mode": mode,
        "padding_mode": padding,
        "align_corners": align_corners,
        "output_mask": [True, True],
        **more,
    }


def cudnn(m: Maker, batch: Sequence[int], size: Sequence[int], out: Sequence[int]) -> Any:
    """The arguments of cuDNN's operator for the same."""
    call = backward(m, batch, size, out, align_corners=True)
    return {"self": call["input"], "grid": call["grid"], "grad_output": call["grad_output"]}


def exact(m: Maker, mode: int, padding: int, align_corners: bool) -> dict[str, Any]:
    """Positions on pixels, on borders and halfway, which all of the dtypes hold."""
    call = backward(m, (1, 2), (5, 5) if align_corners else (4, 4), (6, 6), mode, padding)
    steps = m.integers(-12, 13, 1, 6, 6, 2).double() / 8
    return call | {"grid": steps.to(m.dtype), "align_corners": align_corners}
