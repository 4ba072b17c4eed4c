"""``scatter`` with a source tensor: assignment.

Met as ``Tensor.scatter_``, and in the backward of ``max``, ``min``, ``median``, ``mode``, ``sort``,
``topk`` and ``kthvalue`` along a dimension.

## What varies

Of elements of `src` that meet in one destination, whichever thread of ATen's CUDA kernel writes
last wins.

## What happens instead

Assignments run PyTorch's own deterministic path through `index_put`: the last duplicate wins.
Where a program turns the flag off inside the block, that path does not run and detmode warns in its
own words.

## Cost

What PyTorch's path costs: int64 coordinates for every dimension, and their sort.

## Limits

Duplicates are not looked for: a call without any takes the deterministic path too.
"""

from detmode.conditions import deterministic_flag, nonempty, on
from detmode.rule import RUN_TO_RUN, Allow, Native, Refuse, Rule

FORWARDS: tuple[str, ...] = tuple(
    f"aten::{name}"
    for name in ("kthvalue", "max", "median", "min", "mode", "nanmedian", "sort", "topk")
)

RULES: tuple[Rule, ...] = (
    Rule(
        op="aten::scatter.src",
        when=on("cuda") & deterministic_flag(False) & nonempty("index"),
        action=Refuse(),
        because="without the flag, elements of src with one destination race to write it",
    ),
    Rule(
        op="aten::scatter.src",
        when=on("cuda"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        alert="scatter_cuda_",
        because="elements with one destination race to write; under the flag index_put sorts them",
    ),
    Rule(
        op="aten::scatter.src",
        action=Allow(),
        because="the CPU writes along dim in order; elsewhere PyTorch has one path and no alert",
    ),
)
