"""Samples of the backward of fractional max pooling."""

from functools import partial
from typing import Any

import torch

from detmode.sample import Maker, Sample


def _pooled(make: Maker, sizes: tuple[int, ...]) -> dict[str, Any]:
    input = make.normal(2, 3, *sizes)
    n = len(sizes)
    pool = {2: torch.ops.aten.fractional_max_pool2d, 3: torch.ops.aten.fractional_max_pool3d}
    starts = make.integers(0, 100, 2, 3, n).to(input.dtype) / 100
    output, indices = pool[n](input, [2] * n, [3] * n, starts)
    return {
        "grad_output": make.normal(*output.shape),
        "self": input,
        "kernel_size": [2] * n,
        "output_size": [3] * n,
        "indices": indices,
    }


SAMPLES = tuple(
    Sample(
        name=name,
        op=f"aten::fractional_max_pool{len(sizes)}d_backward",
        make=partial(_pooled, sizes=sizes),
        device=device,
    )
    for sizes in ((5, 6), (5, 6, 7))
    for name, device in (("overlapping_regions", "cuda"), ("host", "cpu"))
)
