"""Values in order, with their indices: ``median``, ``nanmedian``, ``kthvalue`` and ``topk``.

## What varies

Never the values; the index, where the value occurs more than once. The CUDA kernel of ``median``
and ``nanmedian`` with ``dim`` lets the threads that find the value race for the index. So did that
of ``kthvalue`` until PyTorch 2.9; since 2.10 the smallest index wins. ``topk`` has optional
kernels for recent GPUs since 2.13, whose ties vary without the flag.

## What happens instead

``median`` and ``nanmedian`` with ``dim``, and ``kthvalue`` until 2.9: PyTorch's error. ``topk``:
under the flag PyTorch takes the kernel with a fixed order of ties.

## Cost

``topk``, natively: a prefix sum in place of atomic slots, which PyTorch's authors put at 5 to 10
%.

## Limits

There is no substitute yet. ``torch.median(x)`` without ``dim`` returns no index and passes. On
ROCm the ties of ``topk`` may vary, which no row says.
"""

import torch

from detmode.conditions import dtype_in, on
from detmode.rule import RUN_TO_RUN, Allow, Native, Refuse, Rule

RULES = (
    *(
        rule
        for op in ("aten::median.dim", "aten::nanmedian.dim")
        for rule in (
            Rule(
                op=op,
                when=on("cuda"),
                action=Refuse(),
                alert="median CUDA with indices output",
                because="the threads that find the median race for its index",
            ),
            Rule(op=op, action=Allow(), because="the CPU kernel selects serially in each row"),
        )
    ),
    Rule(
        op="aten::kthvalue",
        when=on("cuda"),
        action=Refuse(),
        alert="kthvalue CUDA",
        until="2.9",
        because="the threads that find the value race for its index",
    ),
    Rule(
        op="aten::kthvalue",
        when=on("mps"),
        action=Refuse(),
        alert="kthvalue MPS",
        since="2.15",
        because="the threads that find the value race for its index",
    ),
    Rule(
        op="aten::kthvalue",
        action=Allow(),
        because="the smallest index wins on CUDA since 2.10, and the CPU selects serially",
    ),
    Rule(
        op="aten::topk",
        when=on("cuda") & dtype_in("self", [torch.bfloat16, torch.float32]),
        action=Native(),
        guarantee=RUN_TO_RUN,
        since="2.13",
        because="under the flag ties are told by a prefix sum instead of atomic slots",
    ),
    Rule(
        op="aten::topk",
        action=Allow(),
        because="the radix selection writes ties in a fixed order",
    ),
)
