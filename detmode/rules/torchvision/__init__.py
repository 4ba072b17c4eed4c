"""Backward of torchvision's operators on regions, and of deformable convolution.

The rows sleep until torchvision is imported.

## What varies

Regions that overlap add their gradients to the pixels they share with a float ``atomicAdd``, and
so do the displaced taps of a deformable convolution.

## What happens instead

PyTorch's error, with torchvision's caller names. ``torchvision.ops.roi_align`` is no exception
where the operator is called: under the flag torchvision itself takes a slow decomposition that is
deterministic.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. Recent versions of torchvision alert in Python, above the dispatcher:
there ``detmode.allow`` and ``overrides`` come too late. On MPS deformable convolution does not
alert.
"""

from detmode.conditions import on
from detmode.rule import Allow, Refuse, Rule

_REGIONS = {
    "torchvision::_roi_align_backward": "roi_align_backward_kernel",
    "torchvision::_roi_pool_backward": "roi_pool_backward_kernel",
    "torchvision::_ps_roi_align_backward": "ps_roi_align_backward_kernel",
    "torchvision::_ps_roi_pool_backward": "ps_roi_pool_backward_kernel",
}

RULES = (
    *(
        Rule(
            op=op,
            when=on("cuda", "mps"),
            action=Refuse(),
            alert=alert,
            because="regions that overlap add their gradients with a float atomicAdd",
        )
        for op, alert in _REGIONS.items()
    ),
    Rule(
        op="torchvision::_deform_conv2d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert="compute_grad_input",
        because="displaced taps near one pixel add their gradients with a float atomicAdd",
    ),
    *(
        Rule(op=op, action=Allow(), because="the CPU kernels walk the regions in order")
        for op in (*_REGIONS, "torchvision::_deform_conv2d_backward")
    ),
)
