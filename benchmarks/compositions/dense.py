"""Compositions of operators that take no index.

What is linear along each dimension is a matrix product with its weights, which are what the forward
makes of the unit vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Forward = Callable[[Tensor, int], Tensor]
"""Maps (n, size) to (n, out), along the dimension of this number."""


def transposed(grad: Tensor, sizes: Sequence[int], forward: Forward) -> Tensor:
    """The backward of what works along each of the last dimensions by itself."""
    for number, size in enumerate(sizes):
        unit = torch.eye(size, dtype=torch.float32, device=grad.device)
        weights = forward(unit.to(torch.promote_types(grad.dtype, torch.float32)), number)
        dim = grad.dim() - len(sizes) + number
        grad = (grad.movedim(dim, -1) @ weights.to(grad.dtype).T).movedim(-1, dim)
    return grad


def resized_planes(upsample: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same of an operator that has a form for images only."""

    def backward(
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None,
        scales_w: float | None,
    ) -> Tensor:
        def forward(unit: Tensor, number: int) -> Tensor:
            out, scale = [1, output_size[number]], (scales_h, scales_w)[number]
            return upsample(unit[None, :, None], out, align_corners, None, scale)[0, :, 0]

        return transposed(grad_output, input_size[2:], forward)

    return backward


def adaptive_avg_pool_backward(grad_output: Tensor, self: Tensor, *, dims: int) -> Tensor:
    def forward(unit: Tensor, number: int) -> Tensor:
        return F.adaptive_avg_pool1d(unit[None], grad_output.shape[number - dims])[0]

    return transposed(grad_output, self.shape[-dims:], forward)


def avg_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    windows = [list(each) * (3 // len(each)) for each in (kernel_size, stride, padding) if each]
    windows = windows if stride else [windows[0], *windows]
    given = None if divisor_override is None else 1

    def forward(unit: Tensor, number: int) -> Tensor:
        kernel, step, border = ((1, each[number]) for each in windows)
        pool = F.avg_pool2d(
            *(unit[None, :, None], kernel, (1, step[1]), (0, border[1])),
            *(ceil_mode, count_include_pad, given),
        )
        return pool[0, :, 0]

    found = transposed(grad_output, self.shape[-3:], forward)
    return found if divisor_override is None else found / divisor_override


def upsample_linear_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    **scales: float | None,
) -> Tensor:
    factors = list(scales.values())

    def forward(unit: Tensor, number: int) -> Tensor:
        out = [output_size[number]]
        upsample = torch.ops.aten.upsample_linear1d
        found: Tensor = upsample(unit[None], out, align_corners, factors[number])[0]
        return found

    return transposed(grad_output, input_size[2:], forward)


def folded(fold: Callable[[Tensor, Tensor, Tensor, int], None]) -> Callable[..., Tensor]:
    """The backward that adds the border to the rest, along one dimension after the other.

    ``fold`` adds to the first tensor what was before it and behind it, along a dimension.
    """

    def backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
        grad = grad_output.clone()
        for number, (before, after) in enumerate(zip(padding[::2], padding[1::2])):
            dim = grad.dim() - 1 - number
            size = self.shape[dim]
            kept = grad.narrow(dim, before, size).clone()
            borders = grad.narrow(dim, 0, before), grad.narrow(dim, before + size, after)
            fold(kept, *borders, dim)
            grad = kept
        return grad

    return backward


def turned_round(kept: Tensor, before: Tensor, behind: Tensor, dim: int) -> None:
    """Each border is turned round and added beside the edge."""
    wide = behind.shape[dim]
    kept.narrow(dim, 1, before.shape[dim]).add_(before.flip(dim))
    kept.narrow(dim, kept.shape[dim] - 1 - wide, wide).add_(behind.flip(dim))


def added_to_the_edge(kept: Tensor, before: Tensor, behind: Tensor, dim: int) -> None:
    """Each border is added to the edge."""
    kept.narrow(dim, 0, 1).add_(before.sum(dim, keepdim=True))
    kept.narrow(dim, kept.shape[dim] - 1, 1).add_(behind.sum(dim, keepdim=True))


BLOCK = 1024
"""Elements of a row that are scanned by themselves."""


def scanned(
    scan: Callable[..., Tensor], combine: Callable[[Tensor, Tensor], Tensor], neutral: float
) -> Callable[..., Tensor]:
    """Scans of rows of a fixed length, combined with the scan of the row of their ends."""

    def scanned(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        row = self.to(dtype or self.dtype).reshape(-1)
        return _scanned(row)[: self.numel()].view(self.shape)

    def _scanned(row: Tensor) -> Tensor:
        # A row alone would be scanned as before: two at least.
        more = -len(row) % BLOCK if len(row) > BLOCK else 2 * BLOCK - len(row)
        inside = scan(F.pad(row, (0, more), value=neutral).view(-1, BLOCK), 1)
        if len(row) > BLOCK:
            rows = len(inside)
            before = F.pad(_scanned(inside[:, -1])[: rows - 1], (1, 0), value=neutral)
            inside = combine(inside, before[:, None])
        return inside.flatten()

    return scanned


def nll_loss2d_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """For a sum or a mean."""
    counts = target != ignore_index
    target = torch.where(counts, target, 0)
    weights = counts.to(self.dtype) if weight is None else torch.where(counts, weight[target], 0)
    losses = torch.where(counts, -self.gather(1, target[:, None])[:, 0] * weights, 0)
    total = weights.sum()
    return (losses.sum() / total if reduction == 1 else losses.sum()), total


def median(
    self: Tensor, dim: int, keepdim: bool = False, *, ignore_nan: bool = False
) -> tuple[Tensor, Tensor]:
    """A stable sort, NaN last; the index is that of one of the elements with the value."""
    values, indices = self.sort(dim=dim, stable=True)
    nan = self.isnan()
    n = (~nan).sum(dim, keepdim=True)
    middle = (n - 1).clamp(min=0) // 2
    if not ignore_nan:
        middle = torch.where(n < self.shape[dim], n, middle)
    found = values.gather(dim, middle), indices.gather(dim, middle)
    value, index = (each if keepdim else each.squeeze(dim) for each in found)
    return value, index
