"""The bytes of its storage from a tensor's first element to its last."""

from __future__ import annotations

from torch import Tensor


def extent_of(tensor: Tensor) -> tuple[int, int]:
    """Return where a strided tensor's elements begin and end, in bytes of its storage.

    Gaps between the elements count. Of a tensor without elements both are where it would begin.

    Example:
        >>> extent_of(torch.arange(10, dtype=torch.int16)[3:8:2])
        (6, 16)
    """
    size = tensor.itemsize
    begin = int(tensor.storage_offset()) * size
    if not tensor.numel():
        return begin, begin
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    return begin, begin + (int(last) + 1) * size
