"""Arguments for the samples of this family."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import torch

from detmode.table.samples import Maker


def grid(make: Maker, *shape: int) -> torch.Tensor:
    """Eighths in [-4, 4]: their bins are the same in every dtype, on the edges too."""
    return make.integers(-32, 33, *shape).to(make.dtype) / 8


def histc(make: Maker, shape: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """A histc of such values."""
    return {"self": grid(make, *shape), **more}


def special(make: Maker) -> dict[str, Any]:
    """A histc of values that lie in no bin, on an edge, or in a bin by their sign."""
    call = histc(make, (97,), bins=8, min=-4, max=4)
    call["self"][:6] = make.tensor([nan, inf, -inf, -0.0, 1e-40, 4.0])
    return call


def counts(
    make: Maker,
    n: int,
    bins: int,
    dtype: torch.dtype = torch.int64,
    weights: torch.dtype | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A bincount of n weights in up to ``bins`` bins."""
    return {
        "self": make.integers(0, bins, n, dtype=dtype),
        "weights": make.normal(n, dtype=weights or make.dtype),
        **more,
    }


def strided(make: Maker) -> dict[str, Any]:
    """A bincount of every second element."""
    call = counts(make, 600, 9)
    return {"self": call["self"][::2], "weights": call["weights"][1::2]}


def special_weights(make: Maker) -> dict[str, Any]:
    """A bincount with values that not every sum keeps."""
    call = counts(make, 300, 12)
    values = [nan, 1.0, inf, 2.0, -inf, -0.0, 1e-40, -0.0]
    for bin, value in enumerate(values):
        call["weights"][call["self"] == bin] = value
    call["weights"][:2], call["self"][:2] = make.tensor([inf, -inf]), 11
    return call


def wrong(make: Maker, **changed: Any) -> dict[str, Any]:
    """A bincount with an argument changed."""
    return {**counts(make, 6, 5), **changed}
