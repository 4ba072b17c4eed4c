"""Hand-written compositions for the backward of grid sampling: indexing, and autograd."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def grid_sampler_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """Linear interpolation written by indexing; autograd adds by ``index_put``, which is sorted."""
    if interpolation_mode != 0:
        raise NotImplementedError("linear interpolation only")
    wanted = input.detach().requires_grad_(), grid.detach().requires_grad_()
    with torch.enable_grad():
        sampled = _grid_sampled(*wanted, padding_mode, align_corners)
        found = torch.autograd.grad(sampled, wanted, grad_output)
    return (found[0] if output_mask[0] else None), found[1]


def _grid_sampled(input: Tensor, grid: Tensor, padding_mode: int, align_corners: bool) -> Tensor:
    """(N, C, ...) sampled at (N, ..., dims), x first."""
    sizes = input.shape[2:]
    places = [
        _unnormalized(grid[..., -1 - number], size, padding_mode, align_corners)
        for number, size in enumerate(sizes)
    ]
    batch = torch.arange(len(input), device=input.device).view(-1, *[1] * (grid.dim() - 2))
    pixels = input.movedim(1, -1)
    total: Tensor | float = 0.0
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        index, weight = [batch], torch.ones_like(places[0])
        for place, side, size in zip(places, corner, sizes):
            low = place.floor().detach()
            own = low.long() + side
            weight = weight * (place - low if side else low + 1 - place)
            weight = torch.where((own >= 0) & (own < size), weight, 0)
            index.append(own.clamp(0, size - 1))
        total = total + pixels[tuple(index)] * weight[..., None]
    assert isinstance(total, Tensor)
    return total.movedim(-1, 1)


def _unnormalized(x: Tensor, size: int, padding_mode: int, align_corners: bool) -> Tensor:
    """From -1 to 1 into pixels, with what lies outside brought in as ``padding_mode`` says."""
    place = (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2
    if padding_mode == 2:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        turned = (place - low).abs() % (2 * span) if span else place * 0
        place = torch.minimum(turned, 2 * span - turned) + low
    if padding_mode == 0:
        return place
    # As in ATen no gradient comes from the border; that of clamp does.
    within = (place > 0) & (place < size - 1)
    return torch.where(within, place, place.detach().clamp(0, size - 1))
