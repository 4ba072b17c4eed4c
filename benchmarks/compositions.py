"""What a user writes today where an operator has no deterministic kernel: other torch operators.

Each composition takes the operator's arguments by schema name, stays on their device, and runs
under PyTorch's flag. Sums by index are a stable sort and a segmented reduction; assignments find
the last source of each place; what is linear along each dimension is a matrix product with its
weights, which are what the forward makes of the unit vectors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten


def _reduced(
    positions: Tensor, values: Tensor, size: int, reduce: str = "sum"
) -> tuple[Tensor, Tensor]:
    """Of the values (n, ...) those of each position below ``size``, reduced; and how many."""
    positions, order = positions.sort(stable=True)
    bounds = torch.arange(size + 1, device=positions.device, dtype=positions.dtype)
    offsets = torch.searchsorted(positions, bounds)
    found = torch.segment_reduce(values[order], reduce, offsets=offsets, axis=0, unsafe=True)
    return found, offsets.diff()


def _combined(self: Tensor, found: Tensor, count: Tensor, reduce: str, with_self: bool) -> Tensor:
    """``self`` (size, ...) with what came to each of its places."""
    count = count.view(-1, *[1] * (self.dim() - 1))
    if not with_self:
        return torch.where(count > 0, found / count if reduce == "mean" else found, self)
    if reduce == "mean":
        return (self + found) / (count + 1)
    both = {"sum": torch.add, "prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}
    return torch.where(count > 0, both[reduce](self, found), self)


_SEGMENT = {"mean": "sum", "amax": "max", "amin": "min", "add": "sum", "multiply": "prod"}


def _flat(index: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    """Where the elements of a scatter's index lie in a contiguous tensor of this shape."""
    place = torch.zeros_like(index)
    for d, size in enumerate(shape):
        own = torch.arange(index.shape[d], device=index.device)
        own = own.view([-1 if other == d else 1 for other in range(index.dim())])
        place = place * size + (index if d == dim % len(shape) else own)
    return place.flatten()


def _matching(src: Tensor, index: Tensor) -> Tensor:
    return src[tuple(slice(size) for size in index.shape)].flatten()


def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    sums, _ = _reduced(index, source.movedim(dim, 0), self.shape[dim])
    return self.add(sums.movedim(0, dim), alpha=alpha)


def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    rows = self.movedim(dim, 0)
    found = _reduced(index, source.movedim(dim, 0), len(rows), _SEGMENT.get(reduce, reduce))
    return _combined(rows, *found, reduce, include_self).movedim(0, dim)


def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    places, values = _flat(index, dim, self.shape), _matching(src, index)
    found = _reduced(places, values, self.numel(), _SEGMENT.get(reduce, reduce))
    reduce = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    return _combined(self.flatten(), *found, reduce, include_self).view(self.shape)


def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter_reduce(self, dim, index, src, "sum")


def _assigned(self: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """``self`` (size, ...) with the last of the values (n, ...) that goes to each place."""
    numbers = torch.arange(len(places), device=places.device)
    none = torch.full(self.shape[:1], -1, device=places.device)
    # A maximum of integers does not depend on the order.
    last = none.scatter_reduce(0, places, numbers, "amax")
    there = (last >= 0).view(-1, *[1] * (self.dim() - 1))
    return torch.where(there, values[last.clamp(min=0)], self)


def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    found = _assigned(self.flatten(), _flat(index, dim, self.shape), _matching(src, index))
    return found.view(self.shape)


def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _assigned(self.movedim(dim, 0), index, source.movedim(dim, 0)).movedim(0, dim)


def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    places, flat = (index % max(self.numel(), 1)).flatten(), self.flatten()
    if not accumulate:
        return _assigned(flat, places, source.flatten()).view(self.shape)
    return (flat + _reduced(places, source.flatten(), self.numel())[0]).view(self.shape)


def index_put(
    self: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool, unsafe: bool = False
) -> Tensor:
    """For indices of the leading dimensions."""
    place = torch.zeros((), dtype=torch.int64, device=self.device)
    for size, index in zip(self.shape, indices):
        place = place * size + index % size
    rows = self.flatten(0, len(indices) - 1)
    values = values.expand(*place.shape, *rows.shape[1:]).flatten(0, place.dim() - 1)
    if not accumulate:
        return _assigned(rows, place.flatten(), values).view(self.shape)
    return (rows + _reduced(place.flatten(), values, len(rows))[0]).view(self.shape)


def embedding_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    rows = grad_output.flatten(0, indices.dim() - 1)
    sums, count = _reduced(indices.flatten(), rows, num_weights)
    if scale_grad_by_freq:
        sums = sums / count.clamp(min=1)[:, None]
    if padding_idx >= 0:
        sums[padding_idx] = 0
    return sums


def bag_of_maxima_backward(
    grad: Tensor, maximum_indices: Tensor, bag_size: Tensor, num_weights: int, **_: Any
) -> Tensor:
    """An empty bag has no maximum: what it would give goes to a row that is cut off."""
    rows = torch.where(bag_size[:, None] > 0, maximum_indices, num_weights).long()
    into = grad.new_zeros(num_weights + 1, grad.shape[1])
    return scatter_add(into, 0, rows, grad)[:-1]


def max_pool_backward(
    grad_output: Tensor, self: Tensor, indices: Tensor, *, dims: int, **_: Any
) -> Tensor:
    """Each gradient goes to the element of its plane that was the largest."""
    into = torch.zeros_like(self, memory_format=torch.contiguous_format).flatten(-dims)
    found = scatter_add(into, -1, indices.flatten(-dims), grad_output.flatten(-dims))
    return found.view(self.shape)


def unpool(self: Tensor, indices: Tensor, output_size: Sequence[int], **_: Any) -> Tensor:
    dims = len(output_size)
    into = self.new_zeros(*self.shape[:-dims], math.prod(output_size))
    found = scatter(into, -1, indices.flatten(-dims), self.flatten(-dims))
    return found.view(*self.shape[:-dims], *output_size)


def histc(self: Tensor, bins: int, min: float, max: float) -> Tensor:
    low, high = (float(self.min()), float(self.max())) if min == max else (min, max)
    low, high = (low - 1, high + 1) if low == high else (low, high)
    inside = self[(self >= low) & (self <= high)]
    place = ((inside - low) * bins / (high - low)).long().clamp(max=bins - 1)
    return torch.bincount(place, minlength=bins).to(self.dtype)


def bincount(self: Tensor, weights: Tensor | None, minlength: int) -> Tensor:
    assert weights is not None  # counts alone are integers, which do not vary
    values = weights.to(torch.promote_types(weights.dtype, torch.float32))
    values = values if weights.dtype is torch.float32 else values.double()
    return _reduced(self, values, max(int(self.max()) + 1, minlength))[0]


Forward = Callable[[Tensor, int], Tensor]
"""Maps (n, size) to (n, out), along the dimension of this number."""


def _transposed(grad: Tensor, sizes: Sequence[int], forward: Forward) -> Tensor:
    """The backward of what works along each of the last dimensions by itself."""
    for number, size in enumerate(sizes):
        unit = torch.eye(size, dtype=torch.float32, device=grad.device)
        weights = forward(unit.to(torch.promote_types(grad.dtype, torch.float32)), number)
        dim = grad.dim() - len(sizes) + number
        grad = (grad.movedim(dim, -1) @ weights.to(grad.dtype).T).movedim(-1, dim)
    return grad


def linear_backward(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    **scales: float | None,
) -> Tensor:
    factors = list(scales.values())

    def forward(unit: Tensor, number: int) -> Tensor:
        out = [output_size[number]]
        return aten.upsample_linear1d(unit[None], out, align_corners, factors[number])[0]

    return _transposed(grad_output, input_size[2:], forward)


def _planar(upsample: Callable[..., Tensor]) -> Callable[..., Tensor]:
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

        return _transposed(grad_output, input_size[2:], forward)

    return backward


def adaptive_avg_backward(grad_output: Tensor, self: Tensor, *, dims: int) -> Tensor:
    def forward(unit: Tensor, number: int) -> Tensor:
        return F.adaptive_avg_pool1d(unit[None], grad_output.shape[number - dims])[0]

    return _transposed(grad_output, self.shape[-dims:], forward)


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

    found = _transposed(grad_output, self.shape[-3:], forward)
    return found if divisor_override is None else found / divisor_override


def replication_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """Along each dimension the border is added to the edge."""
    grad = grad_output.clone()
    for number, (before, after) in enumerate(zip(padding[::2], padding[1::2])):
        dim = grad.dim() - 1 - number
        size = self.shape[dim]
        kept = grad.narrow(dim, before, size).clone()
        kept.narrow(dim, 0, 1).add_(grad.narrow(dim, 0, before).sum(dim, keepdim=True))
        behind = grad.narrow(dim, before + size, after).sum(dim, keepdim=True)
        kept.narrow(dim, size - 1, 1).add_(behind)
        grad = kept
    return grad


def reflection_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """Along each dimension the border is turned round and added beside the edge."""
    grad = grad_output.clone()
    for number, (before, after) in enumerate(zip(padding[::2], padding[1::2])):
        dim = grad.dim() - 1 - number
        size = self.shape[dim]
        kept = grad.narrow(dim, before, size).clone()
        kept.narrow(dim, 1, before).add_(grad.narrow(dim, 0, before).flip(dim))
        behind = grad.narrow(dim, before + size, after).flip(dim)
        kept.narrow(dim, size - 1 - after, after).add_(behind)
        grad = kept
    return grad


def nll_loss2d(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """For a sum or a mean."""
    counts = target != ignore_index
    target = torch.where(counts, target, 0)
    weights = counts.to(self.dtype) if weight is None else torch.where(counts, weight[target], 0)
    losses = torch.where(counts, -self.gather(1, target[:, None])[:, 0] * weights, 0)
    total = weights.sum()
    return (losses.sum() / total if reduction == 1 else losses.sum()), total


def _scan(
    scan: Callable[..., Tensor], combine: Callable[[Tensor, Tensor], Tensor], neutral: float
) -> Callable[..., Tensor]:
    """Of one row: rows of a fixed length scanned by themselves, then the row of their ends."""

    def composed(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
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

    return composed


BLOCK = 1024
"""Elements of a row that is scanned by itself."""


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
    wanted = [input.detach().requires_grad_(), grid.detach().requires_grad_()]
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


COMPOSITIONS: dict[str, Callable[..., Any]] = {
    "aten::index_add": index_add,
    "aten::index_copy": index_copy,
    "aten::index_put": index_put,
    "aten::index_reduce": index_reduce,
    "aten::put": put,
    "aten::scatter.reduce": scatter_reduce,
    "aten::scatter.src": scatter,
    "aten::scatter_add": scatter_add,
    "aten::scatter_reduce.two": scatter_reduce,
    "aten::bincount": bincount,
    "aten::histc": histc,
    "aten::embedding_dense_backward": embedding_backward,
    "aten::_embedding_bag_backward": bag_of_maxima_backward,
    "aten::grid_sampler_2d_backward": grid_sampler_backward,
    "aten::grid_sampler_3d_backward": grid_sampler_backward,
    "aten::adaptive_max_pool2d_backward": partial(max_pool_backward, dims=2),
    "aten::adaptive_max_pool3d_backward": partial(max_pool_backward, dims=3),
    "aten::fractional_max_pool2d_backward": partial(max_pool_backward, dims=2),
    "aten::fractional_max_pool3d_backward": partial(max_pool_backward, dims=3),
    "aten::max_pool3d_with_indices_backward": partial(max_pool_backward, dims=3),
    "aten::max_unpool2d": unpool,
    "aten::max_unpool3d": unpool,
    "aten::_adaptive_avg_pool2d_backward": partial(adaptive_avg_backward, dims=2),
    "aten::_adaptive_avg_pool3d_backward": partial(adaptive_avg_backward, dims=3),
    "aten::avg_pool3d_backward": avg_pool3d_backward,
    "aten::upsample_linear1d_backward": linear_backward,
    "aten::upsample_bilinear2d_backward": linear_backward,
    "aten::upsample_trilinear3d_backward": linear_backward,
    "aten::upsample_bicubic2d_backward": _planar(aten.upsample_bicubic2d),
    "aten::_upsample_bilinear2d_aa_backward": _planar(aten._upsample_bilinear2d_aa),
    "aten::_upsample_bicubic2d_aa_backward": _planar(aten._upsample_bicubic2d_aa),
    "aten::reflection_pad1d_backward": reflection_pad_backward,
    "aten::reflection_pad3d_backward": reflection_pad_backward,
    "aten::replication_pad1d_backward": replication_pad_backward,
    "aten::replication_pad2d_backward": replication_pad_backward,
    "aten::replication_pad3d_backward": replication_pad_backward,
    "aten::nll_loss2d_forward": nll_loss2d,
    "aten::cumsum": _scan(torch.cumsum, torch.add, 0.0),
    "aten::cumprod": _scan(torch.cumprod, torch.mul, 1.0),
    "aten::logcumsumexp": _scan(torch.logcumsumexp, torch.logaddexp, -math.inf),
    "aten::median.dim": median,
    "aten::nanmedian.dim": partial(median, ignore_nan=True),
}
"""By operator; the others are moved to the CPU, or left as they are."""
