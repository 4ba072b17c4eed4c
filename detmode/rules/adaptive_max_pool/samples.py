"""Samples of the backward of adaptive max pooling."""

from typing import Any

import torch

from detmode.sample import Maker, Sample


def _pooled(make: Maker, sizes: tuple[int, ...], outputs: tuple[int, ...]) -> dict[str, Any]:
    input = make.normal(2, 3, *sizes)
    pool = {2: torch.ops.aten.adaptive_max_pool2d, 3: torch.ops.aten.adaptive_max_pool3d}
    _, indices = pool[len(sizes)](input, outputs)
    return {"grad_output": make.normal(2, 3, *outputs), "self": input, "indices": indices}


_2D, _3D = "aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward"

SAMPLES = (
    Sample(
        name="overlapping_windows",
        op=_2D,
        make=lambda make: _pooled(make, (7, 5), (3, 3)),
        covers=("collisions",),
    ),
    Sample(name="metal", op=_2D, make=lambda make: _pooled(make, (7, 5), (3, 3)), device="mps"),
    Sample(name="host", op=_2D, make=lambda make: _pooled(make, (7, 5), (3, 3)), device="cpu"),
    Sample(
        name="overlapping_windows",
        op=_3D,
        make=lambda make: _pooled(make, (4, 7, 4), (2, 3, 2)),
        covers=("collisions",),
    ),
    Sample(name="even_windows", op=_3D, make=lambda make: _pooled(make, (4, 6, 4), (2, 3, 2))),
)
