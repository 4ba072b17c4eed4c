"""A pooling along one axis, as kernels take it; checks that poolings share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from detmode.cuda import magic_number
from detmode.cuda.checks import check_implemented
from detmode.cuda.dtypes import FLOATING


class Window(NamedTuple):
    """The windows of an axis, whatever its size: ``pooling_window`` of ``pooled_axis.cuh``."""

    stride: int
    stride_magic: int
    padding: int
    dilation: int
    step: int
    whole: int
    part: int

    @property
    def holding(self) -> int:
        """The most windows that hold one input."""
        return -(-(self.whole + (self.part > 0)) // self.step)


def window_of(kernel: int, stride: int, padding: int, dilation: int = 1) -> Window:
    """The windows of an axis.

    From its first input to its last, a window has ``whole`` strides and ``part`` positions more;
    windows that hold one input are ``step`` apart.
    """
    step = dilation // math.gcd(dilation, stride)
    parts = divmod((kernel - 1) * dilation + 1, stride)
    return Window(stride, magic_number(stride), padding, dilation, step, *parts)


def pooled_size(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int | None:
    """The windows along an axis, without those that begin behind it and its first padding.

    ``None`` where ATen has none: the kernel is longer than the axis, or half of it is padding.
    """
    if kernel > size or 2 * padding > kernel:
        return None
    behind = size + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)
    last = behind // stride
    return last if ceil_mode and last * stride >= size + padding else last + 1


def triple(operator: str, name: str, values: Sequence[int]) -> tuple[int, int, int]:
    """Return an argument of a 3-d pooling, which may be given once for all axes.

    Raises:
        RuntimeError: there are neither one nor three.
    """
    if len(values) not in (1, 3):
        raise RuntimeError(f"{operator}: {name} must be a single int, or a tuple of three ints")
    t, h, w = values if len(values) == 3 else (*values,) * 3
    return int(t), int(h), int(w)


def check_adaptive_dtypes(name: str, grad_output: Tensor, self: Tensor) -> None:
    """Check the dtypes of an adaptive pooling's backward operator.

    Raises:
        RuntimeError: the two are not the same.
        NotImplementedError: they are not floating point.
    """
    if grad_output.dtype != self.dtype:
        raise RuntimeError(
            f"{name}(): Expected dtype {self.dtype} for `grad_output` but got dtype "
            f"{grad_output.dtype}"
        )
    check_implemented(f"{name}_cuda", self.dtype, FLOATING)


def check_adaptive_sizes(name: str, out_shape: Sequence[int]) -> None:
    """Raise RuntimeError where a dimension of its ``grad_output`` but the batch has size 0."""
    if 0 in out_shape[1:]:
        raise RuntimeError(
            f"{name}(): Expected grad_output to have non-zero size for non-batch dimensions, but "
            f"grad_output has sizes {list(out_shape)}"
        )
