"""Backward of max pooling: ``max_pool3d_with_indices_backward``, and 2d on MPS.

## What varies

Where windows overlap, the CUDA kernel of 3d adds the gradients of all windows that chose an
element with a float ``atomicAdd``. 2d gathers on CUDA and does not vary; on MPS both add
atomically.

## What happens instead

PyTorch's error. ``F.max_pool3d(..., return_indices=True)`` is no way round: under the flag PyTorch
decomposes it, and its backward becomes ``index_put``; without ``return_indices`` the backward
alerts.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. The MPS kernels' caller names are read from the binary except for those
of ``max_pool2d`` and ``max_pool3d``, which are taken from the operators' names.
"""

from detmode.conditions import on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::max_pool3d_with_indices_backward",
        when=on("cuda"),
        action=Refuse(),
        alert=(
            "max_pool3d_with_indices_backward_cuda",
            "max_pool3d_with_indices_backward_out_cuda",
        ),
        because="windows that overlap add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::max_pool3d_with_indices_backward",
        when=on("mps"),
        action=Refuse(),
        alert="max_pool3d_with_indices_backward",
        since="2.15",
        because="windows that overlap add their gradients atomically",
    ),
    Rule(
        op="aten::max_pool3d_with_indices_backward",
        action=Allow(),
        because="the CPU kernel walks the windows of a channel in order",
    ),
    Rule(
        op="aten::max_pool2d_with_indices_backward",
        when=on("mps"),
        action=Refuse(),
        alert="max_pool2d_with_indices_backward",
        since="2.15",
        because="windows that overlap add their gradients atomically",
    ),
    Rule(
        op="aten::max_pool2d_with_indices_backward",
        action=Allow(),
        because="the CUDA kernel gathers: each input element sums its windows in order",
    ),
)
