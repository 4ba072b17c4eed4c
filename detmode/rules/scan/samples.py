"""Samples of scans."""

import torch

from detmode.conditions import COMPLEX, FLOATING
from detmode.sample import Sample

_OPS = ("aten::cumsum", "aten::cumprod", "aten::logcumsumexp")

SAMPLES = (
    *(
        Sample(
            name="one_row",
            op=op,
            make=lambda make: {"self": make.normal(1, 1000, 1), "dim": -2},
            dtypes=FLOATING + COMPLEX,
            covers=("negative_dim", "odd_sizes"),
            device=device,
        )
        for op in _OPS
        for device in ("cuda", "mps")
    ),
    *(
        Sample(name="rows", op=op, make=lambda make: {"self": make.normal(7, 63), "dim": 1})
        for op in _OPS
    ),
    *(
        Sample(
            name="integers",
            op=op,
            make=lambda make: {"self": make.normal(100), "dim": 0},
            dtypes=(torch.int64,),
        )
        for op in _OPS[:2]
    ),
    *(
        Sample(
            name="integers_as_floats",
            op=op,
            make=lambda make: {
                "self": make.normal(100, dtype=torch.int64),
                "dim": 0,
                "dtype": make.dtype,
            },
        )
        for op in _OPS[:2]
    ),
)
