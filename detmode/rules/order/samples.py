"""Samples of values in order."""

from typing import Any

import torch

from detmode.sample import Maker, Sample


def _ties(make: Maker, **arguments: object) -> dict[str, Any]:
    return {"self": make.integers(0, 3, 4, 63).to(make.dtype), **arguments}


_DIMS = ("aten::median.dim", "aten::nanmedian.dim")
_KTH, _TOPK = "aten::kthvalue", "aten::topk"

SAMPLES = (
    *(
        Sample(
            name=name,
            op=op,
            make=lambda make: _ties(make, dim=-1),
            dtypes=(torch.float32, torch.int64),
            covers=("collisions", "negative_dim"),
            device=device,
        )
        for op in _DIMS
        for name, device in (("ties", "cuda"), ("host", "cpu"))
    ),
    *(
        Sample(
            name=name,
            op=_KTH,
            make=lambda make: _ties(make, k=5),
            dtypes=(torch.float32, torch.int64),
            covers=("collisions",),
            device=device,
        )
        for name, device in (("ties", "cuda"), ("metal", "mps"), ("host", "cpu"))
    ),
    Sample(
        name="ties",
        op=_TOPK,
        make=lambda make: _ties(make, k=5),
        dtypes=(torch.bfloat16, torch.float32, torch.float64),
        covers=("collisions",),
    ),
)
