"""Samples of recurrent networks: they bind, and run on CUDA only."""

from typing import Any

import torch

from detmode.table.samples import Maker, Samples, sample


def _lstm(make: Maker) -> dict[str, Any]:
    weights = [make.normal(16, 3), make.normal(16, 4), make.normal(16), make.normal(16)]
    return {
        "input": make.normal(5, 2, 3),
        "weight": weights,
        "weight_stride0": 4,
        "weight_buf": torch.cat([weight.flatten() for weight in weights]),
        "hx": make.normal(1, 2, 4),
        "cx": make.normal(1, 2, 4),
        "mode": 2,
        "hidden_size": 4,
        "proj_size": 0,
        "num_layers": 1,
        "batch_first": False,
        "dropout": 0.0,
        "train": True,
        "bidirectional": False,
        "batch_sizes": [],
        "dropout_state": None,
    }


def _backward(make: Maker) -> dict[str, Any]:
    return {
        **_lstm(make),
        "output": make.normal(5, 2, 4),
        "grad_output": make.normal(5, 2, 4),
        "grad_hy": make.normal(1, 2, 4),
        "grad_cy": make.normal(1, 2, 4),
        "reserve": make.integers(0, 9, 100, dtype=torch.uint8),
        "output_mask": [True, True, True, True],
    }


SAMPLES = Samples(
    cases=tuple(
        sample("lstm", make, op=op, variants=("cpu",))
        for op, make in (("aten::_cudnn_rnn", _lstm), ("aten::_cudnn_rnn_backward", _backward))
    ),
)
