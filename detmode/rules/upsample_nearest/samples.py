"""Samples of the backward of nearest interpolation in 3-D."""

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples


def _backward(make: Maker, batch: int) -> dict[str, object]:
    return {
        "grad_output": make.normal(batch, 3, 4, 6, 8),
        "output_size": [4, 6, 8],
        "input_size": [batch, 3, 2, 3, 4],
    }


SAMPLES = Samples(
    cases=tuple(
        Sample(name=name, op=op, make=make, dtypes=dtypes, covers=covers, device=device)
        for op in ("aten::upsample_nearest3d_backward", "aten::_upsample_nearest_exact3d_backward")
        for name, make, dtypes, covers, device in (
            ("up", lambda make: _backward(make, 2), FLOATING, ("collisions",), "cuda"),
            ("host", lambda make: _backward(make, 2), (torch.float32,), (), "cpu"),
            ("mps", lambda make: _backward(make, 2), (torch.float32,), (), "mps"),
            ("mps_empty", lambda make: _backward(make, 0), (torch.float32,), ("empty",), "mps"),
        )
    ),
)
