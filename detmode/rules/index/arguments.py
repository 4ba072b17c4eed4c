"""Arguments for the samples of this family and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import torch

from detmode.table.samples import Maker


def zipf(make: Maker, n: int, size: int) -> torch.Tensor:
    """Positions below ``size``, a few of which are asked for most: the k-th about 1/k often."""
    weights = 1 / torch.arange(1, size + 1, dtype=torch.float64)
    drawn = torch.searchsorted(
        weights.cumsum(0) / weights.sum(), make.normal(n, dtype=torch.float64).cpu().sigmoid()
    )
    return drawn.clamp(max=size - 1).to(make.device)


def add(
    make: Maker, shape: Sequence[int], dim: int, rows: int, spread: int | None = None, **more: Any
) -> dict[str, Any]:
    """index_add of ``rows`` rows to the first ``spread`` positions of ``dim``."""
    source = list(shape)
    source[dim] = rows
    index = make.integers(0, min(spread or shape[dim], shape[dim]), rows)
    arguments = {"self": make.normal(*shape), "dim": dim, "index": index}
    return {**arguments, "source": make.normal(*source), **more}


Assigned = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""What an assignment writes to, where each element goes (row-major), and the elements."""


def places(tensor: torch.Tensor) -> torch.Tensor:
    """The row-major position of each element."""
    return torch.arange(tensor.numel()).view(tensor.shape)


def assigned(
    self: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool, **unread: Any
) -> Assigned | None:
    """Return the assignment of ``index_put``; ``None`` if it adds."""
    to = torch.ops.aten.index(places(self), indices)
    return None if accumulate else (self, to, values.expand(to.shape))


def reverse(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, stored back to front."""
    back = tuple(reversed(range(tensor.dim())))
    return tensor.permute(back).contiguous().permute(back)


def strided(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """The same with the tensors ``names`` stored back to front."""
    return {**arguments, **{name: reverse(arguments[name]) for name in names}}


def shifted(arguments: dict[str, Any], name: str = "source") -> dict[str, Any]:
    """The same with a tensor that begins one element into its storage."""
    tensor = arguments[name]
    storage = torch.cat([tensor.flatten()[:1], tensor.flatten()])
    return {**arguments, name: storage[1:].view(tensor.shape)}


def last(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """The same with the tensors ``names`` in channels_last."""
    form = torch.channels_last
    return {**arguments, **{name: arguments[name].contiguous(memory_format=form) for name in names}}


def narrow(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with an int32 index."""
    return {**arguments, "index": arguments["index"].int()}


def put(
    make: Maker, shape: Sequence[int], indices: Sequence[Any], *values: int, accumulate: bool = True
) -> dict[str, Any]:
    """index_put of values of the shape ``values``."""
    arguments = {"self": make.normal(*shape), "indices": list(indices)}
    return {**arguments, "values": make.normal(*values), "accumulate": accumulate}


def special(arguments: dict[str, Any], make: Maker, name: str = "source") -> dict[str, Any]:
    """The same with values that not every sum keeps."""
    values = arguments[name].view(-1)
    values[1:14:2] = make.tensor([nan, 1.0, inf, 2.0, -inf, -0.0, 1e-40])
    return arguments


def mask(make: Maker, *shape: int) -> torch.Tensor:
    """About half True."""
    return make.integers(0, 2, *shape, dtype=torch.bool)


def assign(make: Maker, values: int) -> dict[str, Any]:
    """index_put of so many values to nine positions, without accumulation."""
    return put(make, [6], [make.integers(0, 6, 9)], values, accumulate=False)


def masked(make: Maker, rows: int = 80, columns: int = 4) -> dict[str, Any]:
    """_unsafe_masked_index_put_accumulate, with indices out of range where the mask is False."""
    return {
        "self": make.normal(6, 5),
        "mask": mask(make, rows, 1),
        "indices": [make.integers(-9, 9, rows, 1), make.integers(0, 5, columns)],
        "values": make.normal(rows, columns),
    }


def one_masked(make: Maker) -> dict[str, Any]:
    """The same with a single value."""
    return masked(make, 1, 1)
