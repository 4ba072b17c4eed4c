"""Comparing the bytes of two tensors: whether they are the same, and how they differ if not.

Everything that compares tensors bit for bit is built on this: probing, ``detmode verify``, the
repeats of a test, and the dumps of two runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""The methods that give the strided tensors a sparse one is made of, by its layout."""


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
    ours, others = parts(one), parts(other)
    if one.shape != other.shape or ours.keys() != others.keys():
        return Difference(max(one.numel(), other.numel()), None)
    found = [_of_strided(ours[name], others[name]) for name in ours]
    differing = [each for each in found if each is not None]
    if not differing:
        return None
    sizes = [each.largest for each in differing]
    known = [size for size in sizes if size is not None]
    return Difference(
        sum(each.elements for each in differing), max(known) if len(known) == len(sizes) else None
    )


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether dtype, shape and bytes are the same; equal NaNs are, 0.0 and -0.0 are not."""
    ours, others = parts(one), parts(other)
    return (
        (one.dtype, one.shape) == (other.dtype, other.shape)
        and ours.keys() == others.keys()
        and all(
            ours[name].shape == others[name].shape and unequal(ours[name], others[name]) is None
            for name in ours
        )
    )


def parts(tensor: Tensor) -> dict[str, Tensor]:
    """The strided tensors that a tensor is made of, by name; "" for one that is strided itself."""
    if tensor.layout in SPARSE_PARTS:
        return {name.lstrip("_"): getattr(tensor, name)() for name in SPARSE_PARTS[tensor.layout]}
    if tensor.is_nested:
        return {"sizes": tensor._nested_tensor_size(), "values": tensor.contiguous().values()}
    if tensor.is_quantized:
        return {"": tensor.int_repr()}
    return {"": tensor if tensor.layout == torch.strided else tensor.to_dense()}


def unequal(one: Tensor, other: Tensor) -> Tensor | None:
    """Which elements of two strided tensors differ in a bit, in row-major order.

    Args:
        one: of any dtype.
        other: of the same dtype and shape, on the same device.

    Returns:
        bool of shape (n,), on their device; ``None`` where none differs.
    """
    bytes_of_one, bytes_of_other = as_bytes(one), as_bytes(other)
    if torch.equal(bytes_of_one, bytes_of_other):
        return None
    return (bytes_of_one != bytes_of_other).any(1)


def gaps(one: Tensor, other: Tensor, where: Tensor) -> Tensor | None:
    """The absolute differences of the elements that ``where`` (bool of shape (n,)) marks.

    Returns:
        float64 of shape (k,); ``None`` for packed dtypes, which have no numbers to subtract.
    """
    wide = torch.complex128 if one.is_complex() else torch.float64
    try:
        # Widened before it is indexed: not every dtype can be.
        a, b = (plain(each).to(wide)[where] for each in (one, other))
    except (RuntimeError, TypeError):
        return None
    return (a - b).abs()


def plain(tensor: Tensor) -> Tensor:
    """The elements in row-major order, contiguous, conjugated and negated where that was due."""
    found = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Of one element the stride may be anything, and only a stride of 1 can be viewed as bytes.
    return found.as_strided((found.numel(),), (1,))


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of the elements in row-major order: uint8 of shape (n, bytes of one)."""
    return plain(tensor).view(torch.uint8).reshape(tensor.numel(), tensor.itemsize)


def _of_strided(one: Tensor, other: Tensor) -> Difference | None:
    if one.shape != other.shape or one.dtype != other.dtype:
        return Difference(max(one.numel(), other.numel()), None)
    where = unequal(one, other)
    if where is None:
        return None
    found = gaps(one, other, where)
    largest = math.nan if found is None else float(found.max())
    return Difference(int(where.sum()), largest if math.isfinite(largest) else None)
