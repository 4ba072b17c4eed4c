"""Compositions of operators that reduce or assign by index.

Sums by index are a stable sort and a segmented reduction; assignments find the last source of each
place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor


def reduced(
    positions: Tensor, values: Tensor, size: int, reduce: str = "sum"
) -> tuple[Tensor, Tensor]:
    """Of the values (n, ...) those of each position below ``size``, reduced; and how many."""
    positions, order = positions.sort(stable=True)
    bounds = torch.arange(size + 1, device=positions.device, dtype=positions.dtype)
    offsets = torch.searchsorted(positions, bounds)
    found = torch.segment_reduce(values[order], reduce, offsets=offsets, axis=0, unsafe=True)
    return found, offsets.diff()


def combined(self: Tensor, found: Tensor, count: Tensor, reduce: str, with_self: bool) -> Tensor:
    """``self`` (size, ...) with what came to each of its places."""
    count = count.view(-1, *[1] * (self.dim() - 1))
    if not with_self:
        return torch.where(count > 0, found / count if reduce == "mean" else found, self)
    if reduce == "mean":
        return (self + found) / (count + 1)
    both: dict[str, Callable[[Tensor, Tensor], Tensor]]
    both = {"sum": torch.add, "prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}
    return torch.where(count > 0, both[reduce](self, found), self)


def sparse_product(one: Tensor, other: Tensor) -> Tensor:
    """The product of a sparse matrix and a strided tensor, in either order."""
    if one.layout is torch.strided:
        return sparse_product(other.t(), one.t()).t()
    entries = one.to_sparse_coo()
    rows, columns = entries._indices()
    values = entries._values().view(-1, *[1] * (other.dim() - 1))
    product, _ = reduced(rows, values * other[columns], one.shape[0])
    return product


SEGMENT = {"mean": "sum", "amax": "max", "amin": "min", "add": "sum", "multiply": "prod"}
"""Names of reductions in ``torch.segment_reduce``."""


def _flat(index: Tensor, dim: int, shape: Sequence[int]) -> Tensor:
    """Places of the elements of a scatter's index in a contiguous tensor of this shape."""
    place = torch.zeros_like(index)
    for d, size in enumerate(shape):
        own = torch.arange(index.shape[d], device=index.device)
        own = own.view([-1 if other == d else 1 for other in range(index.dim())])
        place = place * size + (index if d == dim % len(shape) else own)
    return place.flatten()


def _matching(src: Tensor, index: Tensor) -> Tensor:
    return src[tuple(slice(size) for size in index.shape)].flatten()


def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """As ``torch.scatter_reduce``, and with scatter's names of reductions."""
    places, values = _flat(index, dim, self.shape), _matching(src, index)
    found = reduced(places, values, self.numel(), SEGMENT.get(reduce, reduce))
    reduce = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    return combined(self.flatten(), *found, reduce, include_self).view(self.shape)


def assigned(self: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """``self`` (size, ...) with the last of the values (n, ...) that goes to each place."""
    numbers = torch.arange(len(places), device=places.device)
    none = torch.full(self.shape[:1], -1, device=places.device)
    # A maximum of integers does not depend on the order.
    last = none.scatter_reduce(0, places, numbers, "amax")
    there = (last >= 0).view(-1, *[1] * (self.dim() - 1))
    return torch.where(there, values[last.clamp(min=0)], self)


def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """As ``torch.scatter`` on the CPU: of several elements for a place the last one stays."""
    found = assigned(self.flatten(), _flat(index, dim, self.shape), _matching(src, index))
    return found.view(self.shape)


def max_pool_backward(
    grad_output: Tensor, self: Tensor, indices: Tensor, *, dims: int, **_: Any
) -> Tensor:
    """Each gradient goes to the element of its plane that was the largest."""
    into = torch.zeros_like(self, memory_format=torch.contiguous_format).flatten(-dims)
    found = scatter_reduce(into, -1, indices.flatten(-dims), grad_output.flatten(-dims), "sum")
    return found.view(self.shape)


def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    """As ``torch.index_add``."""
    sums, _ = reduced(index, source.movedim(dim, 0), self.shape[dim])
    return self.add(sums.movedim(0, dim), alpha=alpha)


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
        return assigned(rows, place.flatten(), values).view(self.shape)
    return (rows + reduced(place.flatten(), values, len(rows))[0]).view(self.shape)


def index_copy(self: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return assigned(self.movedim(dim, 0), index, source.movedim(dim, 0)).movedim(0, dim)


def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    rows = self.movedim(dim, 0)
    found = reduced(index, source.movedim(dim, 0), len(rows), SEGMENT.get(reduce, reduce))
    return combined(rows, *found, reduce, include_self).movedim(0, dim)


def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    places, flat = (index % max(self.numel(), 1)).flatten(), self.flatten()
    if not accumulate:
        return assigned(flat, places, source.flatten()).view(self.shape)
    return (flat + reduced(places, source.flatten(), self.numel())[0]).view(self.shape)


def embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    rows = grad_output.flatten(0, indices.dim() - 1)
    sums, count = reduced(indices.flatten(), rows, num_weights)
    if scale_grad_by_freq:
        sums = sums / count.clamp(min=1)[:, None]
    if padding_idx >= 0:
        sums[padding_idx] = 0
    return sums


def embedding_bag_backward(
    grad: Tensor, maximum_indices: Tensor, bag_size: Tensor, num_weights: int, **_: Any
) -> Tensor:
    """An empty bag has no maximum: what it would give goes to a row that is cut off."""
    rows = torch.where(bag_size[:, None] > 0, maximum_indices, num_weights).long()
    into = grad.new_zeros(num_weights + 1, grad.shape[1])
    return scatter_reduce(into, 0, rows, grad, "sum")[:-1]


def max_unpool(self: Tensor, indices: Tensor, output_size: Sequence[int], **_: Any) -> Tensor:
    dims = len(output_size)
    into = self.new_zeros(*self.shape[:-dims], prod(output_size))
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
    return reduced(self, values, max(int(self.max()) + 1, minlength))[0]


def sparse_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, beta: float, alpha: float) -> Tensor:
    product = alpha * sparse_product(mat1, mat2)
    return product if beta == 0 else beta * self + product
