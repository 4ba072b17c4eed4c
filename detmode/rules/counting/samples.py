"""Samples of counts."""

from typing import Any

import torch

from detmode.sample import Maker, Sample


def _bincount(make: Maker, weighted: bool) -> dict[str, Any]:
    return {"self": make.integers(0, 5, 300), "weights": make.normal(300) if weighted else None}


_HISTC, _BINCOUNT = "aten::histc", "aten::bincount"
_WEIGHTS = (torch.float32, torch.float64, torch.int64)

SAMPLES = (
    Sample(
        name="few_bins",
        op=_HISTC,
        make=lambda make: {"self": make.normal(300), "bins": 3},
        dtypes=(torch.bfloat16, torch.float32, torch.float64),
        covers=("collisions",),
    ),
    Sample(
        name="integers",
        op=_HISTC,
        make=lambda make: {"self": make.normal(300), "bins": 3},
        dtypes=(torch.int32, torch.int64),
    ),
    Sample(
        name="weights",
        op=_BINCOUNT,
        make=lambda make: _bincount(make, weighted=True),
        dtypes=_WEIGHTS,
        covers=("collisions",),
    ),
    Sample(name="no_weights", op=_BINCOUNT, make=lambda make: _bincount(make, weighted=False)),
    Sample(
        name="host",
        op=_BINCOUNT,
        make=lambda make: _bincount(make, weighted=True),
        device="cpu",
    ),
)
