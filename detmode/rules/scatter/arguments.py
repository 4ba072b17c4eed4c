"""Arguments for the samples of scattered elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import torch

from detmode.table.samples import Maker


def onto(
    make: Maker,
    shape: Sequence[int],
    dim: int,
    index: Sequence[int],
    src: Sequence[int] | None = None,
    spread: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """An index of the shape ``index`` into the first ``spread`` positions of ``dim``."""
    size = shape[dim] if shape else 1
    arguments = {"self": make.normal(*shape), "dim": dim}
    arguments["index"] = make.integers(0, min(spread or size, size), *index)
    return {**arguments, "src": make.normal(*(index if src is None else src)), **more}


def expanded(
    make: Maker, shape: Sequence[int], dim: int, rows: int, spread: int | None = None, **more: Any
) -> dict[str, Any]:
    """One index for a whole row, expanded to the shape of ``src``."""
    src = list(shape)
    src[dim] = rows
    index = make.integers(
        0, spread or shape[dim], *(rows if d == dim else 1 for d in range(len(src)))
    )
    arguments = {"self": make.normal(*shape), "dim": dim, "index": index.expand(src)}
    return {**arguments, "src": make.normal(*src), **more}


def batched(make: Maker) -> dict[str, Any]:
    """One index for a row of the last dimension, another one in each batch."""
    index = make.integers(0, 6, 3, 70, 1).expand(3, 70, 24)
    return {"self": make.normal(3, 6, 24), "dim": 1, "index": index, "src": make.normal(3, 70, 24)}


def strided(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with all tensors stored back to front."""

    def reverse(tensor: torch.Tensor) -> torch.Tensor:
        back = tuple(reversed(range(tensor.dim())))
        return tensor.permute(back).contiguous().permute(back)

    return {**arguments, **{name: reverse(arguments[name]) for name in ("self", "index", "src")}}


def last(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with self and src in channels_last."""
    form = torch.channels_last
    return {
        **arguments,
        **{n: arguments[n].contiguous(memory_format=form) for n in ("self", "src")},
    }


def narrow(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with an int32 index."""
    return {**arguments, "index": arguments["index"].int()}


def special(arguments: dict[str, Any], make: Maker) -> dict[str, Any]:
    """The same with values that not every sum keeps."""
    arguments["src"].view(-1)[1:14:2] = make.tensor([nan, 1.0, inf, 2.0, -inf, -0.0, 1e-40])
    return arguments
