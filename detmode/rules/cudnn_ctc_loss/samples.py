"""Samples of cuDNN's CTC loss; it has no CPU kernel."""

from functools import partial
from typing import Any

import torch

from detmode.table.samples import Maker, Sample, Samples


def _call(make: Maker, deterministic: bool, in_tensors: bool) -> dict[str, Any]:
    lengths: dict[str, Any] = {"input_lengths": [9, 9], "target_lengths": [3, 2]}
    if in_tensors:
        lengths = {name: torch.tensor(values, device="cpu") for name, values in lengths.items()}
    return {
        "log_probs": make.normal(9, 2, 5).log_softmax(2),
        "targets": torch.tensor([1, 2, 1, 3, 3], dtype=torch.int32, device="cpu"),
        **lengths,
        "blank": 0,
        "deterministic": deterministic,
        "zero_infinity": False,
    }


SAMPLES = Samples(
    cases=tuple(
        Sample(
            name="deterministic" if deterministic else "varying",
            op=op,
            make=partial(_call, deterministic=deterministic, in_tensors=op.endswith("Tensor")),
        )
        for op in ("aten::_cudnn_ctc_loss", "aten::_cudnn_ctc_loss.Tensor")
        for deterministic in (False, True)
    ),
)
