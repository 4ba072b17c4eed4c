"""Indices that meet at few destinations or at many, in the place of a sample's own."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detmode.table.samples import Maker

KINDS = ("distinct", "zipf", "one")
"""All destinations as often as one another, the k-th about 1/k as often, a single one."""

Arguments = dict[str, Any]


Destinations = Callable[[Arguments], int]


@dataclass(frozen=True)
class Index:
    """The place of an operator's index.

    Args:
        name: the argument; a tensor, or a list of tensors that index together.
        destinations: the number of destinations.
        dim: the dimension of the index along which it goes to other destinations; ``None`` where
            all of its elements share the destinations.
        planes: the number of leading dimensions that have destinations of their own.
        written: writes destinations into the argument, if not as they are; given the arguments
            and int64 destinations of the argument's shape.
    """

    name: str
    destinations: Destinations
    dim: Destinations | None = None
    planes: Destinations | None = None
    written: Callable[[Arguments, Tensor], Tensor] | None = None


def _along_dim(arguments: Arguments) -> int:
    own = arguments["self"]
    return int(own.shape[arguments["dim"]]) if own.dim() else 1


def _unpooled(dims: int) -> Index:
    """Indices into planes of ``dims`` dimensions."""
    return Index(
        "indices",
        lambda each: math.prod(each["output_size"]),
        planes=lambda each: int(each["indices"].dim()) - dims,
    )


def _sampled(arguments: Arguments, pixels: Tensor) -> Tensor:
    """The positions of pixels from -1 to 1, x first; between pixels, so that all corners count."""
    *sizes, corners = *arguments["input"].shape[2:], arguments["align_corners"]
    axes = torch.unravel_index(pixels, sizes)[::-1]
    places = [
        2 * (place + 0.25) / max(size - 1, 1) - 1 if corners else (2 * place + 1.5) / size - 1
        for place, size in zip(axes, sizes[::-1])
    ]
    return torch.stack(places, -1)


def _binned(arguments: Arguments, bins: Tensor) -> Tensor:
    """The values in the middle of bins."""
    low, high = arguments.get("min", 0), arguments.get("max", 0)
    if low == high:
        low, high = float(arguments["self"].min()), float(arguments["self"].max())
    return low + (bins + 0.5) * ((high - low) / arguments.get("bins", 100))


_ELEMENTS = Index("index", _along_dim, lambda arguments: int(arguments["dim"]))
_ROWS = Index("index", _along_dim)
_PIXELS = Index(
    "grid",
    lambda arguments: math.prod(arguments["input"].shape[2:]),
    planes=lambda arguments: 1,
    written=_sampled,
)
INDICES: dict[str, Index] = {
    "aten::scatter_add": _ELEMENTS,
    "aten::scatter.src": _ELEMENTS,
    "aten::scatter_reduce.two": _ELEMENTS,
    "aten::index_add": _ROWS,
    "aten::index_copy": _ROWS,
    "aten::put": Index("index", lambda arguments: int(arguments["self"].numel())),
    "aten::index_put": Index(
        "indices", lambda each: math.prod(each["self"].shape[: len(each["indices"])])
    ),
    "aten::embedding_dense_backward": Index("indices", lambda each: int(each["num_weights"])),
    "aten::_embedding_bag_backward": Index(
        "maximum_indices", lambda each: int(each["num_weights"]), dim=lambda each: 0
    ),
    "aten::bincount": Index("self", lambda arguments: int(arguments["self"].max()) + 1),
    "aten::histc": Index("self", lambda each: int(each.get("bins", 100)), written=_binned),
    "aten::grid_sampler_2d_backward": _PIXELS,
    "aten::grid_sampler_3d_backward": _PIXELS,
    "aten::max_unpool2d": _unpooled(2),
    "aten::max_unpool3d": _unpooled(3),
}
"""The operators whose contention is varied. Of the other poolings an index is in the window that
it belongs to, so that no more meet than windows overlap; ``index_reduce`` and ``scatter.reduce``
multiply in ATen by comparing and swapping, which at one destination takes minutes."""


def contended(op: str, arguments: Arguments, kind: str) -> Arguments:
    """The arguments with other values in the index, of the same shape, strides and dtype.

    Raises:
        ValueError: ``kind`` is none of :data:`KINDS`.
    """
    where = INDICES[op]
    index = arguments[where.name]
    size = where.destinations(arguments)
    if isinstance(index, (list, tuple)):
        together = torch.broadcast_tensors(*index)[0]
        flat = _values(kind, together.numel(), size).view(together.shape)
        places = torch.unravel_index(flat, arguments["self"].shape[: len(index)])
        return {**arguments, where.name: [place.to(index[0]) for place in places]}
    if index.numel() == 0:
        return arguments
    values = _shaped(where, arguments, kind, size)
    if where.written is not None:
        values = where.written(arguments, values)
    return {**arguments, where.name: _stored_like(index, values.expand(index.shape))}


def _shaped(where: Index, arguments: Arguments, kind: str, size: int) -> Tensor:
    """The destinations, in a shape that expands to the index's."""
    # A grid's last dimension is the coordinates of one destination.
    shape = arguments[where.name].shape[: -1 if where is _PIXELS else None]
    if where.planes is not None:
        planes = where.planes(arguments)
        values = _values(kind, math.prod(shape[planes:]), size)
        return values.view(shape[planes:]).expand(shape)
    if where.dim is None or not shape:
        return _values(kind, math.prod(shape), size).view(shape)
    dim = where.dim(arguments) % len(shape)
    values = _values(kind, shape[dim], size)
    return values.view([-1 if d == dim else 1 for d in range(len(shape))])


def _values(kind: str, n: int, size: int) -> Tensor:
    make = Maker(torch.float32, seed=1)
    if kind == "distinct":
        order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
        return order % size
    if kind == "zipf":
        return make.zipf(n, size)
    if kind == "one":
        return torch.zeros(n, dtype=torch.int64)
    raise ValueError(f"contention is one of {', '.join(KINDS)}, not {kind!r}")


def _stored_like(index: Tensor, values: Tensor) -> Tensor:
    """The values with the strides of ``index``, expanded where it is."""
    stored = index
    for dim, (size, stride) in enumerate(zip(index.shape, index.stride())):
        if size > 1 and stride == 0:
            stored, values = stored.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    return torch.empty_like(stored).copy_(values).expand(index.shape)
