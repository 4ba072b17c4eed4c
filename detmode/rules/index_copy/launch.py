"""Launches index_copy."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.assign import assign_rows
from detmode.cuda.rows.indexed import move_indexed
from detmode.cuda.rows.positions import axis_of


@raises_like_aten
def index_copy(
    self: Tensor, dim: int, index: Tensor, source: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """``aten::index_copy``: ``self[.., index[i], ..] = source[.., i, ..]``, of duplicates the last.

    Args:
        self: contiguous, of any dtype that is not quantized.
        dim: the dimension whose positions ``index`` names.
        index: int64, one dimension or none.
        source: of the dtype of ``self``, and of its shape but for ``dim``.
        out: contiguous, where the result goes; ``self`` for the in-place variant.

    Raises:
        IndexError, RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    dim = axis_of(self, dim)
    if index.dtype != torch.int64:
        raise RuntimeError(
            f"index_copy_(): Expected a long tensor for index, but got {index.dtype}"
        )
    if source.dtype != self.dtype:
        raise RuntimeError(
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            f"{self.dtype} and (source) {source.dtype}"
        )
    # PyTorch 2.8's meta function looks neither at this nor at the shapes.
    if index.dim() > 1:
        raise IndexError(f"index_copy_(): Index should have dimension 1 or 0 (got {index.dim()})")
    return move_indexed(self, dim, index, source, out, assign_rows, _check_shapes)


def _check_shapes(self_shape: torch.Size, dim: int, n: int, source_shape: torch.Size) -> None:
    if self_shape and source_shape and len(self_shape) != len(source_shape):
        raise IndexError(
            "index_copy_(): When source and destination are not scalars, their dimensionality must "
            f"match. Source dimensionality ({len(source_shape)}), destination dimensionality "
            f"({len(self_shape)})"
        )
    rows = source_shape[dim] if source_shape else 1
    if n != rows:
        raise IndexError(
            f"index_copy_(): Number of indices ({n}) should be equal to source.size(dim) ({rows})"
        )
    self_sizes, source_sizes = list(self_shape or (1,)), list(source_shape or (1,))
    if self_sizes[:dim] + self_sizes[dim + 1 :] != source_sizes[:dim] + source_sizes[dim + 1 :]:
        raise RuntimeError(
            "index_copy_(): Source/destination tensor must have same slice shapes apart from "
            f"dimension {dim}, but got {self_sizes} and {source_sizes}"
        )
