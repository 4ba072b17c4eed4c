"""Backward of fractional max pooling: ``fractional_max_pool2d_backward`` and ``_3d_``.

``nn.FractionalMaxPool2d`` and ``nn.FractionalMaxPool3d`` meet them.

## What varies

Pooling regions may overlap; the CUDA kernels add the gradients of all regions that chose an
element with a float ``atomicAdd``, in an order that changes from run to run.

## What happens instead

The gradients are added with the launches of the room `index`, plane by plane: a maximum of
exponents per element of ``grad_input``, then the gradients as integers of that scale, or, where few
regions meet large planes, a stable sort of the indices. Integer additions give the same bits in any
order, and each sum is rounded once, where ATen rounds each addition to the dtype. The shapes alone
choose the way, and all roundings are explicit: any GPU gives the same bits.

Where regions lie is known to the forward alone, from its random samples, so the backward does not
look for the regions that hold an element. It goes wherever an index points, as ATen does.

## Cost

The floor is ``grad_output`` and ``indices`` read and ``grad_input`` written once: in float32 12
bytes for each region and 4 for each element. Here a region costs 24 bytes, an integer maximum and
an integer addition; an element costs 40: 12 bytes of scratch (float64: 20) zeroed, written and
read, and its zero. ATen reads the same 12 bytes for each region, writes ``grad_input`` with zeros,
and adds with one atomic for each region. At 4 elements for each region, as in 2d with an
``output_ratio`` of 0.5, that is 184 bytes and two atomics beside ATen's 28 and one.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. ATen reads out of bounds
when the batch or the channels of ``grad_output`` or ``indices`` are not those of ``self``; here
that is a ``RuntimeError``. A sum of intermediate values beyond the dtype's range gives the sum
where ATen may give an infinity. The regions themselves are drawn from the random generator: without
a seed they differ from run to run, and no rule concerns that.
"""

from detmode.conditions import on
from detmode.rule import GPU_TO_GPU, Allow, Rule, Substitute
from detmode.rules.fractional_max_pool import launch

RULES: tuple[Rule, ...] = (
    Rule(
        op="aten::fractional_max_pool2d_backward",
        when=on("cuda"),
        action=Substitute(launch.fractional_max_pool2d_backward),
        guarantee=GPU_TO_GPU,
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
        action=Substitute(launch.fractional_max_pool3d_backward),
        guarantee=GPU_TO_GPU,
        alert=("fractional_max_pool3d_backward_cuda", "fractional_max_pool3d_backward_out_cuda"),
        because="regions that overlap add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::fractional_max_pool3d_backward",
        action=Allow(),
        because="the CPU kernel walks the regions of a channel in order",
    ),
)
