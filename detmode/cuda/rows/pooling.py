"""A pooling along one axis, as kernels take it."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from detmode.cuda import magic_numbers


class Pooling(NamedTuple):
    """What ``pooled_axis.cuh`` says of one axis; windows that hold one input are ``step`` apart.

    A window has ``whole`` strides and ``part`` positions more, from its first input to its last.
    """

    size: int
    size_magic: int
    out: int
    stride: int
    stride_magic: int
    padding: int
    dilation: int
    step: int
    whole: int
    part: int

    @classmethod
    @lru_cache(maxsize=4096)
    def of(
        cls, size: int, out: int, kernel: int, stride: int, padding: int, dilation: int = 1
    ) -> Pooling:
        """A pooling of ``size`` inputs to ``out`` outputs."""
        whole, part = divmod((kernel - 1) * dilation + 1, stride)
        size_magic, stride_magic = magic_numbers(size, stride)
        step = dilation // math.gcd(dilation, stride)
        return cls(
            size, size_magic, out, stride, stride_magic, padding, dilation, step, whole, part
        )
