"""Linear and cubic interpolation backward. grad_input has the memory format that ATen gives it.

Each launcher takes its operator's arguments, which are those of ``gather_backward``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from detmode.cuda.rows.interpolation import gather_backward
from detmode.cuda.rows.interpolation_tables import SOURCE, Interpolation

LINEAR = Interpolation(SOURCE, "upsample_tables<Linear, {}>", lambda size, scale: 2, clamps=True)
CUBIC = Interpolation(SOURCE, "upsample_tables<Cubic, {}>", lambda size, scale: 4, clamps=True)


def upsample_linear1d_backward(*call: Any, **named: Any) -> Tensor:
    """The gradient of ``aten::upsample_linear1d``; always contiguous."""
    return gather_backward(LINEAR, *call, **named, contiguous=True)


def upsample_bilinear2d_backward(*call: Any, **named: Any) -> Tensor:
    """The gradient of ``aten::upsample_bilinear2d``, in grad_output's memory format."""
    return gather_backward(LINEAR, *call, **named)


def upsample_bicubic2d_backward(*call: Any, **named: Any) -> Tensor:
    """The gradient of ``aten::upsample_bicubic2d``; always contiguous."""
    return gather_backward(CUBIC, *call, **named, contiguous=True)


def upsample_trilinear3d_backward(*call: Any, **named: Any) -> Tensor:
    """The gradient of ``aten::upsample_trilinear3d``, in grad_output's memory format."""
    return gather_backward(LINEAR, *call, **named)
