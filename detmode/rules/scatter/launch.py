"""Launchers of scatter_add and of scatter with ``reduce=``."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.scattered import reduce_scattered
from detmode.cuda.rows.sums import add_rows, multiply_rows


@raises_like_aten
def scatter(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str = "add",
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::scatter_add``: ``self[.., index[.., i, ..], ..] += src[.., i, ..]``.

    ``aten::scatter.reduce`` with "add", of floating and complex numbers, is the same; with
    "multiply" it multiplies.

    Raises:
        RuntimeError: on the CPU, an index is out of range, as ATen raises.
    """
    reduce_rows = multiply_rows if reduce == "multiply" else add_rows
    return reduce_scattered(self, dim, index, src, out, reduce_rows)


def add_integers(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, out: Tensor | None = None
) -> Tensor:
    """``aten::scatter.reduce`` with "add", of integers and bools.

    ``aten::scatter_add`` does the same, and there PyTorch does not alert: integer additions give
    the same in any order.

    Raises:
        RuntimeError: on the CPU, an index is out of range, as ATen raises.
    """
    if out is None:
        return torch.scatter_add(self, dim, index, src)
    return out.scatter_add_(dim, index, src)
