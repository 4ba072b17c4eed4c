"""Linear and cubic interpolation backward. grad_input has the memory format that ATen gives it."""

from __future__ import annotations

from functools import partial

import torch

from detmode.cuda.rows.interpolation import interpolation_backward
from detmode.cuda.rows.interpolation_tables import SOURCE, Interpolation

LINEAR = Interpolation(SOURCE, "Linear", lambda size, scale: 2, clamps=True)
CUBIC = Interpolation(SOURCE, "Cubic", lambda size, scale: 4, clamps=True)

_backward = partial(interpolation_backward, __name__)
upsample_linear1d_backward = _backward("upsample_linear1d_backward", LINEAR)
upsample_bilinear2d_backward = _backward("upsample_bilinear2d_backward", LINEAR)
upsample_trilinear3d_backward = _backward("upsample_trilinear3d_backward", LINEAR)
upsample_bicubic2d_backward = _backward(
    "upsample_bicubic2d_backward", CUBIC, memory_format=torch.contiguous_format
)
