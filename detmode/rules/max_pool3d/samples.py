"""Samples of the backward of max pooling."""

from typing import Any

import torch

from detmode.sample import Maker, Sample


def _pooled(make: Maker, *sizes: int, stride: int = 1) -> dict[str, Any]:
    input = make.normal(2, 3, *sizes)
    n = len(sizes)
    pool = {2: torch.ops.aten.max_pool2d_with_indices, 3: torch.ops.aten.max_pool3d_with_indices}
    window = {
        "kernel_size": [3] * n,
        "stride": [stride] * n,
        "padding": [1] * n,
        "dilation": [1] * n,
        "ceil_mode": False,
    }
    output, indices = pool[n](input, **window)
    return {
        "grad_output": make.normal(*output.shape),
        "self": input,
        **window,
        "indices": indices,
    }


_2D, _3D = "aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward"

SAMPLES = (
    Sample(
        name="overlapping_windows",
        op=_3D,
        make=lambda make: _pooled(make, 5, 4, 6),
        covers=("collisions",),
    ),
    Sample(name="metal", op=_3D, make=lambda make: _pooled(make, 5, 4, 6), device="mps"),
    Sample(name="host", op=_3D, make=lambda make: _pooled(make, 5, 4, 6), device="cpu"),
    Sample(name="overlapping_windows", op=_2D, make=lambda make: _pooled(make, 5, 6)),
    Sample(name="metal", op=_2D, make=lambda make: _pooled(make, 5, 6), device="mps"),
)
