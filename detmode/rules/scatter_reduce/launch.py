"""Launcher of scatter_reduce."""

from __future__ import annotations

from torch import Tensor

from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.extrema import extreme_rows
from detmode.cuda.rows.scattered import reduce_scattered
from detmode.cuda.rows.sums import add_rows, multiply_rows


@raises_like_aten
def scatter_reduce(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::scatter_reduce.two``; "amax" and "amin" of floating-point numbers.

    Raises:
        RuntimeError: on the CPU, an index is out of range, as ATen raises.
    """
    options = {"include_self": include_self}
    if reduce == "prod":
        return reduce_scattered(self, dim, index, src, out, multiply_rows, **options)
    if reduce in ("sum", "mean"):
        options["mean"] = reduce == "mean"
        return reduce_scattered(self, dim, index, src, out, add_rows, **options)
    options["largest"] = reduce == "amax"
    return reduce_scattered(self, dim, index, src, out, extreme_rows, **options)
