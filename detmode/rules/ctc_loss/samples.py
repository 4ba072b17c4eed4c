"""Samples of the backward of the CTC loss."""

from functools import partial
from typing import Any

import torch

from detmode.sample import Maker, Sample


def _backward(make: Maker, *, as_tensors: bool) -> dict[str, Any]:
    log_probs = make.normal(9, 2, 4).log_softmax(2)
    # Repeated labels: their positions add to one gradient.
    targets = make.tensor([[1, 2, 1, 3], [2, 2, 2, 0]], dtype=torch.int64)
    inputs, lengths = [9, 8], [4, 3]
    loss, log_alpha = torch.ops.aten._ctc_loss(log_probs, targets, inputs, lengths)
    return {
        "grad": make.normal(2),
        "log_probs": log_probs,
        "targets": targets,
        "input_lengths": torch.tensor(inputs) if as_tensors else inputs,
        "target_lengths": torch.tensor(lengths) if as_tensors else lengths,
        "neg_log_likelihood": loss,
        "log_alpha": log_alpha,
        "blank": 0,
    }


SAMPLES = tuple(
    Sample(
        name=name,
        op=op,
        make=partial(_backward, as_tensors=as_tensors),
        covers=("collisions",),
        device=device,
    )
    for op, as_tensors in (
        ("aten::_ctc_loss_backward", False),
        ("aten::_ctc_loss_backward.Tensor", True),
    )
    for name, device in (("repeated_labels", "cuda"), ("host", "cpu"))
)
