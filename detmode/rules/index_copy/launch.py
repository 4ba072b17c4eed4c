"""Launches index_copy."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda.checks import checks_all
from detmode.cuda.rows.assign import assign_rows
from detmode.cuda.rows.indexed import indexed_rows
from detmode.cuda.rows.positions import axis_of


@checks_all
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
    _check_numbers(self, dim, index, source)
    own, other = list(self.shape) or [1], list(source.shape) or [1]
    if own[:dim] + own[dim + 1 :] != other[:dim] + other[dim + 1 :]:
        raise RuntimeError(
            "index_copy_(): Source/destination tensor must have same slice shapes apart from "
            f"dimension {dim}, but got {own} and {other}"
        )
    return indexed_rows(self, dim, index, source, out).run(assign_rows)


def _check_numbers(self: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """Raise what ATen raises for the numbers of dimensions and of indices.

    PyTorch 2.8's meta function looks at neither these nor the sizes.
    """
    if index.dim() > 1:
        raise IndexError(f"index_copy_(): Index should have dimension 1 or 0 (got {index.dim()})")
    if self.dim() and source.dim() and self.dim() != source.dim():
        raise IndexError(
            "index_copy_(): When source and destination are not scalars, their dimensionality must "
            f"match. Source dimensionality ({source.dim()}), destination dimensionality "
            f"({self.dim()})"
        )
    given = source.shape[dim] if source.dim() else 1
    if index.numel() != given:
        raise IndexError(
            f"index_copy_(): Number of indices ({index.numel()}) should be equal to "
            f"source.size(dim) ({given})"
        )
