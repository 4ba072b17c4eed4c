"""Counts: ``histc`` and ``bincount``.

## What varies

``histc`` of floating-point values counts in floats, and ``bincount`` with weights adds them, both
with a float ``atomicAdd`` on CUDA. Counts of whole numbers below the dtype's precision are exact
in any order; PyTorch alerts all the same.

## What happens instead

PyTorch's error. ``histc`` of integers and ``bincount`` without weights do not vary and pass.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. ``histogram`` and ``histogramdd`` run on the CPU only.
"""

import torch

from detmode.conditions import argument_given, dtype_in, on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::histc",
        when=on("cuda") & dtype_in("self", [torch.bfloat16, torch.float32, torch.float64]),
        action=Refuse(),
        alert="_histc_cuda with floating point input",
        because="blocks add their counts, which are floats, with a float atomicAdd",
    ),
    Rule(
        op="aten::histc",
        action=Allow(),
        because="integer counts are exact in any order, and the CPU counts in order",
    ),
    Rule(
        op="aten::bincount",
        when=on("cuda") & argument_given("weights"),
        action=Refuse(),
        alert="_bincount_cuda",
        because="weights are added with a float atomicAdd",
    ),
    Rule(
        op="aten::bincount",
        action=Allow(),
        because="integer counts are exact in any order, and the CPU counts in order",
    ),
)
