"""Backward of reflection padding in one dimension: ``reflection_pad1d_backward``.

Met in the backward of ``F.pad(mode="reflect")`` and ``nn.ReflectionPad1d``.

## What varies

An input element that is mirrored into the padding gets gradient from several outputs. ATen's CUDA
kernel gives each output to a thread, which adds with a float ``atomicAdd``, in an order that
varies between runs.

## What happens instead

One thread owns an element of ``grad_input`` and adds its images from left to right: the one before
the input, the element itself and the one behind the input. It adds in float for float16 and
bfloat16, so any GPU gives the same bits. ``grad_input`` is contiguous.

## Cost

``grad_output`` is read and ``grad_input`` written once, which is the floor: in float32 4 bytes for
each output and 4 for each input. Images that two threads read come from cache. A ``grad_output``
that is not contiguous is copied first.

In all 1.0 times the floor.

## Limits

Sums start from +0.0, so a gradient of -0.0 gives +0.0, as in ATen.
"""

from detmode.rules.reflection_pad1d import launch
from detmode.table.chain import chain
from detmode.table.conditions import on
from detmode.table.rule import GPU_TO_GPU, Substitute

RULES = (
    *chain(
        "aten::reflection_pad1d_backward",
        when=on("cuda"),
        action=Substitute(launch.reflection_pad1d_backward, traffic=1.0),
        guarantee=GPU_TO_GPU,
        alert="reflection_pad1d_backward_out_cuda",
        because="mirror images of an element add their gradients with a float atomicAdd",
        otherwise="the CPU kernel walks the outputs of a channel in order",
    ),
)
