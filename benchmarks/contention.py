"""Indices that meet at few destinations or at many, in the place of a sample's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detmode.rules.index.arguments import zipf
from detmode.sample import Maker

KINDS = ("distinct", "zipf", "one")
"""All destinations as often as one another, the k-th about 1/k as often, a single one."""

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Index:
    """Where an operator has its index.

    Args:
        name: the argument; a tensor, or a list of tensors that index together.
        destinations: how many destinations there are.
        dim: the dimension of the index along which it goes to other destinations; ``None`` where
            all of its elements share the destinations.
    """

    name: str
    destinations: Callable[[Arguments], int]
    dim: Callable[[Arguments], int] | None = None


def _along_dim(arguments: Arguments) -> int:
    own = arguments["self"]
    return int(own.shape[arguments["dim"]]) if own.dim() else 1


_ELEMENTS = Index("index", _along_dim, lambda arguments: int(arguments["dim"]))
_ROWS = Index("index", _along_dim)
INDICES: dict[str, Index] = {
    "aten::scatter_add": _ELEMENTS,
    "aten::scatter.reduce": _ELEMENTS,
    "aten::scatter.src": _ELEMENTS,
    "aten::scatter_reduce.two": _ELEMENTS,
    "aten::index_add": _ROWS,
    "aten::index_copy": _ROWS,
    "aten::index_reduce": _ROWS,
    "aten::put": Index("index", lambda arguments: int(arguments["self"].numel())),
    "aten::index_put": Index(
        "indices", lambda each: math.prod(each["self"].shape[: len(each["indices"])])
    ),
    "aten::embedding_dense_backward": Index("indices", lambda each: int(each["num_weights"])),
    "aten::bincount": Index("self", lambda arguments: int(arguments["self"].max()) + 1),
}
"""The operators whose contention is varied."""


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
        return {**arguments, where.name: [place.to(index[0].dtype) for place in places]}
    if index.numel() == 0:
        return arguments
    if where.dim is None or index.dim() == 0:
        values = _values(kind, index.numel(), size).view(index.shape)
    else:
        dim = where.dim(arguments) % index.dim()
        values = _values(kind, index.shape[dim], size)
        values = values.view([-1 if d == dim else 1 for d in range(index.dim())])
    return {**arguments, where.name: _stored_like(index, values.expand(index.shape))}


def _values(kind: str, n: int, size: int) -> Tensor:
    make = Maker(torch.float32, seed=1)
    if kind == "distinct":
        order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
        return order % size
    if kind == "zipf":
        return zipf(make, n, size)
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
