"""Hand-written compositions for scans: rows of a fixed length, then the row of ends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 1024
"""Elements of a row that is scanned by itself."""


def composed(
    scan: Callable[..., Tensor], combine: Callable[[Tensor, Tensor], Tensor], neutral: float
) -> Callable[..., Tensor]:
    """The scan of one row; ``scan`` along a dimension, ``combine`` of what comes before."""

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
