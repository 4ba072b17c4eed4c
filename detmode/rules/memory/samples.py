"""Samples of uninitialised memory."""

import warnings
from typing import Any

import torch

from detmode.sample import Maker, Sample


def _quantized(make: Maker) -> dict[str, Any]:
    with warnings.catch_warnings():
        # Quantized tensors are deprecated since 2.13.
        warnings.simplefilter("ignore", UserWarning)
        values = torch._empty_affine_quantized([4], scale=1.0, zero_point=0, dtype=torch.quint8)
    return {"self": values, "size": [9]}


_MAKE = {
    "aten::empty.memory_format": lambda make: {"size": [3, 4], "dtype": make.dtype},
    "aten::empty_like": lambda make: {"self": make.normal(3, 4)},
    "aten::empty_permuted": lambda make: {"size": [3, 4], "physical_layout": [1, 0]},
    "aten::empty_strided": lambda make: {"size": [3, 4], "stride": [4, 1]},
    "aten::new_empty": lambda make: {"self": make.normal(3), "size": [3, 4]},
    "aten::new_empty_strided": lambda make: {
        "self": make.normal(3),
        "size": [3, 4],
        "stride": [4, 1],
    },
    "aten::resize": lambda make: {"self": make.normal(3), "size": [5, 5]},
}

SAMPLES = (
    *(
        Sample(name=name, op=op, make=make, dtypes=(torch.float32, torch.int64), device=device)
        for op, make in _MAKE.items()
        for name, device in (("filled", "cuda"), ("filled_on_host", "cpu"), ("no_data", "meta"))
    ),
    Sample(name="quantized", op="aten::resize", make=_quantized, device="cpu"),
)
