"""Samples of the backward of causal-conv1d."""

from typing import Any

import torch

from detmode.table.samples import Maker, Samples, sample


def _sequence(make: Maker) -> dict[str, Any]:
    weights = {name: make.normal(8, 4) for name in ("weight", "dweight")}
    biases = {name: make.normal(8) for name in ("bias", "dbias")}
    sequences = {name: make.normal(2, 8, 32) for name in ("x", "dout", "dx")}
    absent = dict.fromkeys(("seq_idx", "initial_states", "dfinal_states", "dinitial_states"))
    return {**weights, **biases, **sequences, **absent, "silu_activation": True}


SAMPLES = Samples(
    cases=(
        sample(
            "sequence",
            _sequence,
            op="DaoAILab::_causal_conv1d_bwd_cpp",
            dtypes=(torch.float32,),
            variants=("cpu",),
        ),
    ),
)
