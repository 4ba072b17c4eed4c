"""The backward of grid sampling in float64, with the special values of ATen's CUDA kernels.

ATen's CPU kernels are no reference there: a NaN in the grid makes some read out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import torch
from torch import Tensor

from detmode.rules.grid_sampler.arguments import BORDER, REFLECTION
from detmode.rules.grid_sampler.sampling import BICUBIC, BILINEAR, NEAREST


@dataclass(frozen=True)
class _Tap:
    """A pixel along one axis, for each sample; an index of -1 lies outside the input."""

    index: Tensor
    weight: Tensor
    slope: Tensor


def cudnn_backward(self: Tensor, grid: Tensor, grad_output: Tensor) -> tuple[Tensor | None, Tensor]:
    """Compute cuDNN's operator: bilinear, zero padding, ``align_corners=True``."""
    return backward(grad_output, self, grid, BILINEAR, 0, True, (True, True))


def backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """The operator, for two or three spatial dimensions; all tensors are float64."""
    sizes = input.shape[:1:-1]
    axes = [
        _taps(grid[..., axis].flatten(1), size, interpolation_mode, padding_mode, align_corners)
        for axis, size in enumerate(sizes)
    ]
    pixels, gradients = input.flatten(2), grad_output.flatten(2)
    grad_input = torch.zeros_like(pixels, memory_format=torch.contiguous_format)
    parts = [torch.zeros(grid.shape[:-1], dtype=grid.dtype, device="cpu").flatten(1) for _ in sizes]
    for taps in product(*(axis for axis, _ in axes)):
        inside = torch.stack([tap.index >= 0 for tap in taps]).all(0)
        place = sum(tap.index * math.prod(sizes[:axis]) for axis, tap in enumerate(taps))
        place = torch.where(inside, place, 0)[:, None].expand_as(gradients)
        inside = inside[:, None]
        weight = torch.stack([tap.weight for tap in taps]).prod(0)[:, None]
        grad_input.scatter_add_(2, place, torch.where(inside, weight * gradients, 0))
        values = torch.where(inside, pixels.gather(2, place), 0)
        for axis in range(len(sizes)):
            factors = [tap.slope if i == axis else tap.weight for i, tap in enumerate(taps)]
            terms = values * torch.stack(factors).prod(0)[:, None] * gradients
            if interpolation_mode != BICUBIC:
                terms = torch.where(inside, terms, 0)
            parts[axis] += terms.sum(1)
    if interpolation_mode == NEAREST:
        grad_grid = torch.zeros(grid.shape, dtype=grid.dtype, device="cpu")
    else:
        scaled = [scale * part for (_, scale), part in zip(axes, parts)]
        grad_grid = torch.stack(scaled, -1).reshape(grid.shape)
    return (grad_input.reshape(input.shape) if output_mask[0] else None), grad_grid


def _taps(
    x: Tensor, size: int, mode: int, padding: int, align_corners: bool
) -> tuple[list[_Tap], Tensor]:
    """The taps along one axis, and the derivative of the position."""
    span = size - 1 if align_corners else size
    # As ATen's CUDA kernels round it, which far outside picks the pixel: product and difference
    # are one operation.
    edges = _fused(x + 1, size) / 2
    position = (x + 1) / 2 * span if align_corners else edges
    scale = torch.full_like(x, span / 2)
    if mode == BICUBIC:
        return list(_cubic(position, size, span, padding)), scale
    if padding == REFLECTION:
        position, sign = _reflected(position, size, span)
        scale = scale * sign
    if padding in (BORDER, REFLECTION):
        scale = torch.where((position <= 0) | (position >= size - 1), scale * 0, scale)
        # torch.clamp keeps NaN.
        position = position.clamp(0, size - 1)
    position = _in_int_range(position)
    if mode == NEAREST:
        one = torch.ones_like(x)
        return [_Tap(_inside(position.round(), size), one, 0 * one)], scale
    first = position.floor()
    one = torch.ones_like(x)
    return [
        _Tap(_inside(first, size), first + 1 - position, -one),
        _Tap(_inside(first + 1, size), position - first, one),
    ], scale


def _cubic(position: Tensor, size: int, span: int, padding: int) -> Iterator[_Tap]:
    first = position.floor()
    t = position - first
    for k in range(-1, 3):
        pixel = first + k
        if padding == REFLECTION:
            pixel = _reflected(pixel, size, span)[0]
        if padding in (BORDER, REFLECTION):
            pixel = pixel.nan_to_num(0.0, torch.inf, -torch.inf).clamp(0, size - 1)
        away, sign = (t - k).abs(), (t - k).sign()
        near = (1.25 * away - 2.25) * away**2 + 1
        far = ((-0.75 * away + 3.75) * away - 6) * away + 3
        near_slope = (3.75 * away - 4.5) * away
        far_slope = (-2.25 * away + 7.5) * away - 6
        is_near = k in (0, 1)
        slope = sign * (near_slope if is_near else far_slope)
        yield _Tap(_inside(_in_int_range(pixel).trunc(), size), near if is_near else far, slope)


def _fused(x: Tensor, size: int) -> Tensor:
    """``x * size - 1``, rounded once."""
    fused = (x.double() * size - 1).to(x.dtype)
    if x.dtype is not torch.float64:
        return fused
    # The nearer ones are off by a rounding at most, which moves no tap.
    far = (x.abs() > 2.0**40) & (fused.abs() < torch.inf)
    exact = [float(Fraction(value) * size - 1) for value in x[far].tolist()]
    fused[far] = torch.tensor(exact, dtype=x.dtype, device="cpu")
    return fused


def _reflected(position: Tensor, size: int, span: int) -> tuple[Tensor, Tensor]:
    """Folded at the ends of ``span``; past 2^31 folds, which an int does not count, once more."""
    if span == 0:
        return torch.zeros_like(position), torch.zeros_like(position)
    low = -(span - size + 1) / 2
    away = position - low
    sign = torch.where(away < 0, -1.0, 1.0).to(away.dtype)
    away = away.abs()
    rest, folds = away.fmod(span), (away / span).floor().double().clamp(max=2.0**31 - 1)
    odd = folds.fmod(2) == 1
    return torch.where(odd, span - rest, rest) + low, torch.where(odd, -sign, sign)


def _in_int_range(position: Tensor) -> Tensor:
    holds = (position <= 2.0**31 - 2) & (position >= -(2.0**31))
    return torch.where(holds, position, -100.0)


def _inside(index: Tensor, size: int) -> Tensor:
    return torch.where((index >= 0) & (index < size), index, -1).long()
