"""Backward of adaptive max pooling: ``adaptive_max_pool2d_backward`` and ``_3d_``.

``nn.AdaptiveMaxPool1d`` runs the 2d operator.

## What varies

Where the input size is no multiple of the output size, windows overlap, and the CUDA kernels add
the gradients of all windows that chose an element with a float ``atomicAdd``. PyTorch alerts for
2d always, also where no windows overlap and nothing varies, and never for 3d.

## What happens instead

2d raises PyTorch's error. 3d warns, in detmode's words, where windows overlap.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. Pooling to a multiple of the output size by ``max_pool2d`` gives the
same values and has a deterministic backward.
"""

from detmode.conditions import on, uneven_windows
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::adaptive_max_pool2d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert="adaptive_max_pool2d_backward_cuda",
        because="windows that overlap add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::adaptive_max_pool2d_backward",
        when=on("mps"),
        action=Refuse(),
        alert="adaptive_max_pool2d_backward",
        since="2.15",
        because="windows that overlap add their gradients atomically",
    ),
    Rule(
        op="aten::adaptive_max_pool2d_backward",
        action=Allow(),
        because="the CPU kernel walks the windows of a channel in order",
    ),
    Rule(
        op="aten::adaptive_max_pool3d_backward",
        when=on("cuda") & uneven_windows("self", "grad_output"),
        action=Refuse(),
        because="windows that overlap add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::adaptive_max_pool3d_backward",
        action=Allow(),
        because="windows that do not overlap write each element at most once",
    ),
)
