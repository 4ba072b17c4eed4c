"""Launchers of index_add and index_put."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda import clone
from detmode.cuda.checks import check_factor, raises_like_aten
from detmode.cuda.rows.indexed import move_indexed
from detmode.cuda.rows.positions import axis_of, copy_if_overlapping, expand_masks, values_beside
from detmode.cuda.rows.sums import add_rows
from detmode.rules.index.put import add_named, assign_named


@raises_like_aten
def index_add(
    self: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: complex = 1,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::index_add``: ``self[.., index[i], ..] += alpha * source[.., i, ..]``.

    Raises:
        IndexError, RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    dim = axis_of(self, dim)
    _check(self, index, source, alpha)
    error = RuntimeError if self.dim() > 1 else IndexError
    return move_indexed(self, dim, index, source, out, add_rows, _check_shapes, error, alpha=alpha)


def _check(self: Tensor, index: Tensor, source: Tensor, alpha: complex) -> None:
    """Raise what ATen's kernels raise and its meta kernel does not."""
    if index.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(f"index_add_(): Expected dtype int32/int64 for index, got {index.dtype}")
    if index.dim() > 1:
        raise IndexError(f"index_add_(): Index should have dimension 1 or 0 (got {index.dim()})")
    if source.dtype != self.dtype:
        raise RuntimeError(
            f"index_add_(): self ({self.dtype}) and source ({source.dtype}) must have the same "
            "scalar type"
        )
    if alpha != 1:
        check_factor(alpha, self.dtype)


def _check_shapes(self_shape: torch.Size, dim: int, n: int, source_shape: torch.Size) -> None:
    if n != (source_shape[dim] if source_shape else 1):
        raise RuntimeError(
            f"index_add_(): Number of indices ({n}) should be the size of source, "
            f"{list(source_shape)}, in dimension {dim}"
        )
    if (
        len(self_shape) != len(source_shape)
        or self_shape[:dim] + self_shape[dim + 1 :] != source_shape[:dim] + source_shape[dim + 1 :]
    ):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(self_shape)} source.shape = {list(source_shape)}"
        )


@raises_like_aten
def index_put(
    self: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """``aten::index_put``: ``self[indices] = values``, of duplicates the last; or ``+=`` of all.

    To assign, ``self`` is contiguous. ``aten::_unsafe_index_put`` and ``aten::_index_put_impl`` are
    the same: ``unsafe`` promises indices in range, which are checked all the same. Boolean masks
    become indices by ``nonzero``, which waits for the GPU, as in ATen.

    Raises:
        IndexError, RuntimeError: as ATen; for indices out of range on the CPU only.
    """
    named = expand_masks(self if out is None else out, indices)
    is_new = out is None
    if out is None:
        out = clone(self)
    if not named:
        # ATen has its own ways with nothing to index by.
        return out.copy_(torch.ops.aten.index_put(self, indices, values, accumulate))
    values = values_beside(out, values)
    if not is_new:
        values = copy_if_overlapping(out, values)
    if accumulate:
        add_named(out, named, values)
    else:
        # A mask names no place twice.
        masks = [index.dtype in (torch.bool, torch.uint8) for index in indices if index is not None]
        assign_named(out, named, values, unique=masks == [True])
    return out


def unsafe_masked_index_put_accumulate(
    self: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    """``aten::_unsafe_masked_index_put_accumulate``: where ``mask`` is False, zero is added."""
    if self.numel() == 0:
        return clone(self)
    inside = [
        None if index is None else index.clamp(-size, size - 1)
        for index, size in zip(indices, self.shape)
    ]
    return index_put(self, inside, values.masked_fill(~mask, 0), True)
