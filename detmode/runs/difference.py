"""How two results of one call differ, bit by bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """Two tensors that are not the same to the byte.

    Args:
        elements: how many elements differ; all, where shapes or dtypes do.
        largest: the largest absolute difference; 0.0 between 0.0 and -0.0, ``None`` where one of
            the elements that differ is infinite or not a number, or shapes or dtypes differ.
    """

    elements: int
    largest: float | None


def difference(one: Tensor, other: Tensor) -> Difference | None:
    """How two tensors differ; ``None`` where dtype, shape and bytes are the same.

    Equal NaNs are the same, NaNs of another payload are not, nor are 0.0 and -0.0. Strides do not
    count.
    """
    parts, others = _parts(one), _parts(other)
    found = [_of_strided(a, b) for a, b in zip(parts, others)]
    if one.shape != other.shape or len(parts) != len(others):
        return Difference(max(one.numel(), other.numel()), None)
    differing = [each for each in found if each is not None]
    if not differing:
        return None
    sizes = [each.largest for each in differing]
    known = [size for size in sizes if size is not None]
    return Difference(
        sum(each.elements for each in differing), max(known) if len(known) == len(sizes) else None
    )


def _parts(tensor: Tensor) -> list[Tensor]:
    """The strided tensors that a tensor is made of."""
    if tensor.is_sparse:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    return [tensor.to_dense() if tensor.layout != torch.strided else tensor]


def _of_strided(one: Tensor, other: Tensor) -> Difference | None:
    if one.shape != other.shape or one.dtype != other.dtype:
        return Difference(max(one.numel(), other.numel()), None)
    one, other = _plain(one), _plain(other)
    bytes_of_one, bytes_of_other = one.view(torch.uint8), other.view(torch.uint8)
    if torch.equal(bytes_of_one, bytes_of_other):
        return None
    shape = (one.numel(), one.itemsize)
    where = (bytes_of_one.reshape(shape) != bytes_of_other.reshape(shape)).any(1)
    return Difference(int(where.sum()), _largest(one, other, where))


def _plain(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Of one element the stride may be anything, and only a stride of 1 can be viewed as bytes.
    return plain.as_strided((plain.numel(),), (1,))


def _largest(one: Tensor, other: Tensor, where: Tensor) -> float | None:
    wide = torch.complex128 if one.is_complex() else torch.float64
    try:
        # Widened before it is indexed: not every dtype can be.
        largest = float((one.to(wide)[where] - other.to(wide)[where]).abs().max())
    except (RuntimeError, TypeError):
        return None  # packed dtypes have no numbers to subtract
    return largest if math.isfinite(largest) else None
