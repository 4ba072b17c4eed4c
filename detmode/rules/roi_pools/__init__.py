"""Backward of torchvision's pooling over regions: roi_align, roi_pool, ps_roi_align, ps_roi_pool.

``torchvision.ops.RoIAlign``, ``MultiScaleRoIAlign`` and the detection models call them. The rows
have no effect until torchvision is imported.

## What varies

Regions that overlap add their gradients to the pixels they share with a float ``atomicAdd``, in an
order that varies between runs; so do the samples and bins of one region.

## What happens instead

``roi_align``, ``ps_roi_align`` and ``ps_roi_pool`` gather. A block owns a tile of 8 by 32 pixels
and finds the regions that reach it; a thread owns a pixel, in 16 channels for ``roi_align``, and
adds up what their bins give it, regions in order, then bin rows, then bin columns. The weights of
all samples of a bin at a pixel are two sums, one over the grid's rows and one over its columns. The
rounding error of the sum is tracked and added at the end. ``roi_pool`` adds to the pixel that
``argmax`` names: a maximum of exponents per pixel, then the gradients as integers of that scale.
float16 is computed in float. All roundings are explicit: any GPU gives the same bits.

``torchvision.ops.roi_align``, which takes a slow decomposition under PyTorch's flag, calls the
plain operator in the mode, so that its backward comes here. Since 0.29 torchvision alerts in
Python, above the dispatcher: in the mode that alert is left to the rows below.

## Cost

Gathering reads ``grad`` and writes ``grad_input`` once, which is the floor; no zeros are written
first and there is no scratch. A block reads the 5 numbers of every region, from L2. What it adds
to a pixel grows with the regions that overlap there. ``ps_roi_align`` and ``ps_roi_pool`` read
``channel_mapping`` once more, to check it. ``roi_pool`` reads ``grad`` and ``argmax`` twice and
uses 12 bytes of scratch per element of ``grad_input`` (float64: 20), zeroed, written and read.
torchvision writes zeros, and reads and writes a pixel for each sample.

In total, 1.0 times the floor, and ``roi_pool`` 3.7 times the floor for 2000 regions.

## Limits

``channel_mapping`` must be what the forward returned; another one, an ``argmax`` outside of the
image, or a region of an image that does not exist, traps on a GPU, where torchvision reads and
writes out of bounds. Sample positions of ``roi_align`` in float16 are computed in float, where
torchvision rounds them to float16. For a box with coordinates that are not finite, versions of
torchvision differ; here a sample at such a position contributes nothing. There is no substitute on
MPS.
"""

from detmode.rules.roi_pools import launch
from detmode.table.chain import RowFields, chain, on_cuda
from detmode.table.conditions import on
from detmode.table.rule import Refuse

RULES = tuple(
    rule
    for name, function, traffic in (
        ("roi_align_backward", launch.roi_align_backward, 1.0),
        ("roi_pool_backward", launch.roi_pool_backward, 3.7),
        ("ps_roi_align_backward", launch.ps_roi_align_backward, 1.0),
        ("ps_roi_pool_backward", launch.ps_roi_pool_backward, 1.0),
    )
    for rule in chain(
        f"torchvision::_{name}",
        on_cuda(function, traffic=traffic),
        RowFields(when=on("mps"), action=Refuse()),
        alert=f"{name}_kernel",
        because="regions that overlap add their gradients with a float atomicAdd",
        otherwise="the CPU kernels walk the regions in order",
    )
)
