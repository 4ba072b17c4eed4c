"""The norm of all gradients together, from an exact sum of squares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.distributed.exact_sums import power_of_two
from detmode.distributed.rank_group import RankGroup

_DIGITS, _BITS = 3, 28
"""Squares are cut into so many digits of so many bits, which up to 2**35 of them add in int64."""

_PART = 1 << 20
"""Elements whose squares are there at a time."""


def exact_norm(tensors: Sequence[Tensor], device: torch.device, parts: RankGroup | None) -> Tensor:
    """Return the 2-norm of tensors as if they were one vector: float64, a scalar.

    Squares are exact in float64, and are added as integers: the norm does not depend on the number
    of tensors, their shapes, or their order. Its relative error is below 2**-48.

    Args:
        tensors: of float32, bfloat16 or float16.
        device: of the tensors.
        parts: the ranks, if each has a part of the vector.
    """
    zero = torch.zeros((), dtype=torch.float32, device=device)
    largest = [tensor.abs().amax().float() for tensor in tensors if tensor.numel()]
    maximum = torch.stack([zero, *largest]).amax()
    # Backends differ in what they make of a NaN.
    extremes = torch.stack([maximum.nan_to_num(nan=0.0, posinf=float("inf")), maximum.isnan()])
    if parts is not None:
        parts.max(extremes)
    maximum = extremes[0].masked_fill(extremes[1] != 0, float("nan")).double()
    exponent = torch.frexp(maximum).exponent
    scale = power_of_two(exponent, 0, -1)
    totals = torch.zeros(_DIGITS, dtype=torch.int64, device=device)
    for tensor in tensors:
        for part in tensor.reshape(-1).split(_PART):
            rest = part.double().mul_(scale).square_()  # at most 1
            for number in range(_DIGITS):
                digits = rest.mul_(1 << _BITS).trunc()
                totals[number] += digits.to(torch.int64).sum()
                rest.sub_(digits)
    if parts is not None:
        parts.sum(totals)
    square = torch.zeros_like(maximum)
    for number in reversed(range(_DIGITS)):
        square = (square + totals[number]) / (1 << _BITS)
    norm = square.sqrt() / scale
    return torch.where(maximum.isfinite(), norm, maximum)
