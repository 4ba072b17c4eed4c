"""Launches the sums of pyg-lib, as those of scattered elements."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from detmode.cuda import contiguous, new_full, new_zeros
from detmode.cuda.rows.scattered import reduce_scattered
from detmode.cuda.rows.sums import add_rows, multiply_rows


def scatter_sum(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """``pyg::scatter_sum``: ``out[.., index[.., i, ..], ..] += src[.., i, ..]``.

    Args:
        src: of a floating dtype.
        index: int64, of the shape of ``src``.
        dim: along which ``index`` names destinations.
        out: is added to, and returned; zeros if ``None``.
        dim_size: the size of the result along ``dim``; if ``None``, the largest index and one.

    Raises:
        IndexError, RuntimeError: as for ``scatter_add``, and for an index of another shape.
    """
    return _scattered(src, index, dim, out, dim_size, 0, add_rows)


def scatter_mul(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
) -> Tensor:
    """``pyg::scatter_mul``: as :func:`scatter_sum`, with products that begin with one."""
    return _scattered(src, index, dim, out, dim_size, 1, multiply_rows)


def segment_sum_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """``pyg::segment_sum_coo``: sums of rows of ``src`` along the last dimension of ``index``.

    Args:
        src: of a floating dtype.
        index: int64, sorted along its last dimension; the others are those of ``src``, or 1.
        out: is added to, and returned; zeros if ``None``.
        dim_size: the number of segments; if ``None``, the largest index and one.
    """
    return scatter_sum(src, _expanded(index, src), index.dim() - 1, out, dim_size)


def segment_mean_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """``pyg::segment_mean_coo``: as :func:`segment_sum_coo`, divided by the number of rows."""
    sums = segment_sum_coo(src, index, out, dim_size)
    dim = index.dim() - 1
    index = index.expand(src.shape[: dim + 1])
    counts = new_zeros(index, sums.shape[: dim + 1])
    counts.scatter_add_(dim, index, new_full(index, index.shape, 1))
    counts = counts.clamp_(min=1).view(*counts.shape, *[1] * (src.dim() - dim - 1))
    return sums.div_(contiguous(counts, sums.dtype))


def _scattered(
    src: Tensor,
    index: Tensor,
    dim: int,
    out: Tensor | None,
    dim_size: int | None,
    start: int,
    reduce_rows: Callable[..., None],
) -> Tensor:
    if index.shape != src.shape:
        raise RuntimeError(
            f"index has the shape {list(index.shape)}, but src has {list(src.shape)}"
        )
    if out is None:
        if dim_size is None:
            dim_size = int(index.max()) + 1 if index.numel() else 0
        shape = list(src.shape)
        shape[dim] = dim_size
        out = new_full(src, shape, start)
    return reduce_scattered(out, dim, index, src, out, reduce_rows)


def _expanded(index: Tensor, src: Tensor) -> Tensor:
    if not 0 < index.dim() <= src.dim():
        raise RuntimeError(
            f"index has {index.dim()} dimensions; segments of src, which has {src.dim()}, need at "
            "least one and no more than that"
        )
    return index.view(*index.shape, *[1] * (src.dim() - index.dim())).expand(src.shape)
