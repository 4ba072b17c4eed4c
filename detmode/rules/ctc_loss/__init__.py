"""Backward of the connectionist temporal classification loss: ``_ctc_loss_backward``.

## What varies

A target label that occurs several times in a sequence collects one gradient for each position; the
CUDA kernel adds them with a float ``atomicAdd``.

## What happens instead

PyTorch's error, for both overloads (lengths as lists and as tensors).

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. cuDNN's loss (``_cudnn_ctc_loss``: int32 targets on the CPU, blank 0,
input lengths all equal) always runs cuDNN's deterministic algorithm, is not in the table, and is
the way round where it applies.
"""

from detmode.conditions import on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::_ctc_loss_backward",
        when=on("cuda"),
        action=Refuse(),
        alert="ctc_loss_backward_gpu",
        because="positions with the same label add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::_ctc_loss_backward",
        action=Allow(),
        because="the CPU kernel walks the positions of a sequence in order",
    ),
    Rule(
        op="aten::_ctc_loss_backward.Tensor",
        when=on("cuda"),
        action=Refuse(),
        alert="ctc_loss_backward_gpu",
        because="positions with the same label add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::_ctc_loss_backward.Tensor",
        action=Allow(),
        because="the CPU kernel walks the positions of a sequence in order",
    ),
)
