"""Backward of fractional max pooling: ``fractional_max_pool2d_backward`` and ``_3d_``.

``nn.FractionalMaxPool2d`` and ``nn.FractionalMaxPool3d`` call them.

## What varies

Pooling regions may overlap; the CUDA kernels add the gradients of all regions that chose an element
with a float ``atomicAdd``, in an order that varies between runs.

## What happens instead

One thread owns an element of ``grad_input``. It visits, in row-major order, the regions that may
contain the element, and adds the gradients of those whose index points at it, in float for float16
and bfloat16, each operation rounded explicitly, so any GPU gives the same bits. The rounding error
of the sum is tracked and added at the end, so the error is that of about one rounding; ATen rounds
each addition to the dtype.

The positions of the regions are drawn at random in the forward, and the backward does not know it.
But region ``o`` of an axis begins less than one position from ``o * (in - kernel) / (out - 1)``,
whatever was drawn, so a thread checks the regions there and slightly beyond, and counts the
gradients that it adds. If all threads together add fewer than there are regions, because the
indices are not the forward's, a second launch lets each thread check all regions of its plane,
which is slow but as accurate. Otherwise that launch ends at once.

## Cost

The floor is ``grad_output`` and ``indices`` read and ``grad_input`` written once: in float32 12
bytes for each region and 4 for each element. An element looks at (kernel + 9/8) / a + 1 regions of
an axis at most, where a is the distance of their beginnings: with regions of 2 by 2 and an
``output_ratio`` of 0.5 at 4 indices, 8 bytes each, shared with its neighbours and so mostly from
cache; it reads a gradient only where the index points at it. ATen reads the same 12 bytes for each
region, writes ``grad_input`` with zeros, and adds with one atomic for each region.

In total, 1.0 times the floor.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. ATen reads out of bounds
when the batch or the channels of ``grad_output`` or ``indices`` are not those of ``self``; here
that raises ``RuntimeError``. With indices that are not the forward's, or result from negative
samples given by hand, the work grows with the product of a plane's elements and its regions. The
regions themselves are drawn from the random generator: without a seed they differ between runs, and
no rule covers that.
"""

from detmode.rules.fractional_max_pool import launch
from detmode.table.chain import chain, on_cuda

RULES = tuple(
    rule
    for name, function, has_out_alert in (
        ("fractional_max_pool2d_backward", launch.fractional_max_pool2d_backward, False),
        ("fractional_max_pool3d_backward", launch.fractional_max_pool3d_backward, True),
    )
    for rule in chain(
        f"aten::{name}",
        on_cuda(function, traffic=1.0),
        alert=(f"{name}_cuda", f"{name}_out_cuda") if has_out_alert else f"{name}_cuda",
        because="regions that overlap add their gradients with a float atomicAdd",
        otherwise="the CPU kernel walks the regions of a channel in order",
    )
)
