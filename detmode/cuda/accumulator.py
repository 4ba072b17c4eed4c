"""The Python half of include/accumulator.cuh: the buffers and the headroom of a launch."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["accumulator_buffers", "headroom"]

_MAX_HEADROOM = 36


def headroom(addends: int) -> int:
    """Return the bits that a sum of `addends` addends can carry: `ceil(log2(addends + 1))`.

    Args:
        addends: an upper bound of the number of addends of any destination.

    Raises:
        ValueError: `addends` is negative, or 2^36 or more.
    """
    if addends < 0:
        raise ValueError(f"headroom(): addends must not be negative, but got {addends}")
    bits = addends.bit_length()
    if bits > _MAX_HEADROOM:
        raise ValueError(f"headroom(): addends must be below 2**{_MAX_HEADROOM}, but got {addends}")
    return bits


def accumulator_buffers(
    destinations: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return zeroed keys and sums for `destinations` elements of `dtype`, as accumulator.cuh needs.

    Returns:
        Keys, int32 `[destinations * components]`, and sums, int64 `[destinations * components *
        limbs]`: two components for a complex dtype, two limbs for float64 and complex128.
    """
    components = 2 if dtype.is_complex else 1
    limbs = 2 if dtype in (torch.float64, torch.complex128) else 1
    keys = torch.zeros(destinations * components, dtype=torch.int32, device=device)
    sums = torch.zeros(destinations * components * limbs, dtype=torch.int64, device=device)
    return keys, sums
