"""Samples of xFormers' backward: the tensors that all its releases take."""

from typing import Any

import torch

from detmode.rules.xformers import OPS
from detmode.table.samples import Maker, Samples, sample


def _tensors(make: Maker) -> dict[str, Any]:
    return {name: make.normal(1, 8, 2, 4) for name in ("query", "key", "value", "out")}


SAMPLES = Samples(
    cases=tuple(
        sample("heads", _tensors, op=op, dtypes=(torch.float16,), variants=("cpu",)) for op in OPS
    ),
)
