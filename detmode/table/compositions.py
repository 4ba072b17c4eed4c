"""Hand-written compositions of other torch operators, for operators that may vary.

Parts that several families' compositions share. Each stays on its tensors' device and runs under
PyTorch's flag. Sums by index are a stable sort and a segmented reduction; assignments find the
last source of each place; what is linear along each dimension is a matrix product with its
weights, which are what the forward makes of the unit vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
