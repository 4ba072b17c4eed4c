"""Comparing the bytes of two tensors, and describing how they differ.

All comparisons of tensors bit for bit use this: probing, ``detmode verify``, the repeats of a test,
and the dumps of two runs.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor

from detmode.bits.tensors import as_bytes, parts
from detmode.cuda.elements import once, plain

Difference: TypeAlias = tuple[int, float | None]
"""The elements in which two tensors differ, and the largest absolute difference.

What repeats in memory, as in an expanded tensor, counts once. The largest difference is 0.0 between
0.0 and -0.0, and ``None`` if one of the elements is infinite or NaN. If shapes or dtypes differ,
all elements do, and it is ``None``."""


def difference(first: Tensor, second: Tensor) -> Difference | None:
    """Return the difference of two tensors; ``None`` if dtype, shape and bytes are the same.

    NaNs with the same bits are equal; NaNs with different payloads differ, and so do 0.0 and -0.0.
    Strides do not count.
    """
    ours, others = parts(first), parts(second)
    if first.shape != second.shape or ours.keys() != others.keys():
        return max(first.numel(), second.numel()), None
    differences = [_of_strided(ours[name], others[name]) for name in ours]
    differing = [part for part in differences if part is not None]
    if not differing:
        return None
    elements, sizes = zip(*differing)
    return sum(elements), largest_of(*sizes)


def largest_of(*sizes: float | None) -> float | None:
    """Return the largest size; ``None`` if one of them is undefined."""
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether dtype, shape and bytes are the same (see :func:`difference`)."""
    return first.dtype == second.dtype and difference(first, second) is None


def unequal(first: Tensor, second: Tensor) -> Tensor | None:
    """Return a mask of the elements of two strided tensors that differ in a bit.

    Args:
        first: of any dtype.
        second: of the same dtype and shape, on the same device.

    Returns:
        bool of shape (n,), in row-major order, on their device; ``None`` if none differs.
    """
    bytes_of_one, bytes_of_other = as_bytes(first), as_bytes(second)
    if torch.equal(bytes_of_one, bytes_of_other):
        return None
    return (bytes_of_one != bytes_of_other).any(1)


def gaps(first: Tensor, second: Tensor, where: Tensor) -> Tensor | None:
    """Return the absolute differences of the elements that ``where`` (bool of shape (n,)) marks.

    Returns:
        float64 of shape (k,); ``None`` for packed dtypes, which have no numbers to subtract.
    """
    wide = torch.complex128 if first.is_complex() else torch.float64
    try:
        # Widened before indexing, because not every dtype can be indexed.
        a, b = (plain(tensor).to(wide)[where] for tensor in (first, second))
    except (RuntimeError, TypeError):
        return None
    return (a - b).abs()


def _of_strided(first: Tensor, second: Tensor) -> Difference | None:
    if first.shape != second.shape or first.dtype != second.dtype:
        return max(first.numel(), second.numel()), None
    if first.stride() == second.stride():
        first, second = once(first), once(second)
    where = unequal(first, second)
    if where is None:
        return None
    distances = gaps(first, second, where)
    largest = math.nan if distances is None else float(distances.max())
    return int(where.sum()), largest if math.isfinite(largest) else None
