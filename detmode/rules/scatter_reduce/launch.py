"""Launchers of scatter_reduce, one for each kind of reduction."""

from __future__ import annotations

from torch import Tensor

from detmode.cuda.rows.extrema import extreme_rows
from detmode.cuda.rows.products import multiply_rows
from detmode.cuda.rows.scattered import reduce_scattered
from detmode.cuda.rows.sums import add_rows

__all__ = ["extremum", "product", "total"]


def total(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::scatter_reduce.two`` with ``reduce`` "sum" or "mean".

    Raises:
        RuntimeError: on the CPU, an index is out of range, as ATen raises.
    """
    options = {"include_self": include_self, "mean": reduce == "mean"}
    return reduce_scattered(self, dim, index, src, out, add_rows, **options)


def product(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::scatter_reduce.two`` with ``reduce`` "prod".

    Raises:
        RuntimeError: on the CPU, an index is out of range, as ATen raises.
    """
    return reduce_scattered(self, dim, index, src, out, multiply_rows, include_self=include_self)


def extremum(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::scatter_reduce.two`` with ``reduce`` "amax" or "amin", of floating-point numbers.

    Raises:
        RuntimeError: on the CPU, an index is out of range, as ATen raises.
    """
    options = {"include_self": include_self, "largest": reduce == "amax"}
    return reduce_scattered(self, dim, index, src, out, extreme_rows, **options)
