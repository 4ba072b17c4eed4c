"""Backward of fractional max pooling: ``fractional_max_pool2d_backward`` and ``_3d_``.

## What varies

Pooling regions may overlap at their edges; the CUDA kernels add the gradients of all regions that
chose an element with a float ``atomicAdd``.

## What happens instead

PyTorch's error.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. The regions themselves are drawn from the random generator: without a
seed they differ from run to run, and no rule concerns that.
"""

from detmode.conditions import on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::fractional_max_pool2d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert="fractional_max_pool2d_backward_cuda",
        because="regions that overlap add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::fractional_max_pool2d_backward",
        action=Allow(),
        because="the CPU kernel walks the regions of a channel in order",
    ),
    Rule(
        op="aten::fractional_max_pool3d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert=("fractional_max_pool3d_backward_cuda", "fractional_max_pool3d_backward_out_cuda"),
        because="regions that overlap add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::fractional_max_pool3d_backward",
        action=Allow(),
        because="the CPU kernel walks the regions of a channel in order",
    ),
)
