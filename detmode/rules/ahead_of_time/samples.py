"""Samples of programs compiled ahead of time: the tensors that they are given."""

from typing import Any

import torch

from detmode.table.markers import AHEAD_OF_TIME_PROGRAM
from detmode.table.samples import Maker, Samples, sample


def _inputs(make: Maker) -> dict[str, Any]:
    return {"inputs": [make.normal(3, 4), make.integers(0, 3, 4)]}


SAMPLES = Samples(
    cases=(
        sample(
            "inputs",
            _inputs,
            op=AHEAD_OF_TIME_PROGRAM,
            dtypes=(torch.float32,),
            variants=("cpu",),
        ),
    ),
)
