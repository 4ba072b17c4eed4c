"""Hand-written compositions for additions and assignments by index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.table.compositions import assigned, reduced


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
