"""Forward of the negative log likelihood over images: ``nll_loss2d_forward``.

``F.nll_loss`` and ``F.cross_entropy`` run it for inputs of three or more dimensions, so that it is
in every segmentation loss. For one or two dimensions they run ``nll_loss_forward``, which does not
vary.

## What varies

With ``reduction="mean"`` or ``"sum"`` the CUDA kernel adds the blocks' partial losses and weights
with a float ``atomicAdd``.

## What happens instead

A number of blocks that follows from the number of pixels sums losses and weights, each thread its
pixels in ascending order and each block in a fixed tree; one block then sums the blocks' sums. The
additions are in double, for float64 with what rounding takes from them added at the end, each
operation rounded explicitly, so any GPU gives the same bits. The sums are rounded to the dtype
once; ATen rounds each block's sum before it adds it. The mean is the sum over the sum of weights:
NaN without pixels, or where all of them are ignored. ``reduction="none"`` does not vary and is
called unchanged.

## Cost

8 bytes for the target of each pixel, and the one element of ``self`` that it chooses (one read of
32 bytes where neighbours choose other classes); the weights come from cache. This is the floor, and
what ATen reads. ``self`` and ``target`` in another memory format are read where they lie; ATen
copies them first, all classes. Two launches, where ATen has three and two fills.

In total, 1.0 times the floor.

## Limits

A target that is not a class traps on a GPU, as in ATen, and raises on the host. In float16 a sum or
a total weight above 65504 is infinite, as in ATen; the mean is divided before it is rounded, so
that it need not be.
"""

from detmode.rules.nll_loss2d import launch
from detmode.table.chain import chain, on_cuda
from detmode.table.conditions import argument

RULES = chain(
    "aten::nll_loss2d_forward",
    on_cuda(launch.nll_loss2d_forward, traffic=1.0, when=argument("reduction", 1, 2)),
    alert="nll_loss2d_forward_out_cuda_template",
    because="blocks add their partial sums with a float atomicAdd",
    otherwise="without a reduction each pixel is written once, and the CPU adds in order",
)
