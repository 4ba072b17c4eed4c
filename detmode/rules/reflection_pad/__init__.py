"""Backward of reflection padding: ``reflection_pad1d_backward``, ``_2d_`` and ``_3d_``.

## What varies

An input element that is mirrored into the padding gets gradient from several outputs; the CUDA
kernels of 1d and 3d add them with a float ``atomicAdd``.

## What happens instead

1d and 3d: PyTorch's error. 2d has a deterministic kernel in PyTorch, which the flag selects: each
input element gathers its mirror images in a fixed order. PyTorch's documentation lists
``ReflectionPad2d`` among the operators that raise; it does not.

## Cost

2d, natively: the gradient is read and written once, as by the atomic kernel.

## Limits

There is no substitute for 1d and 3d yet.
"""

from detmode.conditions import on
from detmode.rule import RUN_TO_RUN, Allow, Native, Refuse, Rule

RULES = (
    Rule(
        op="aten::reflection_pad1d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert="reflection_pad1d_backward_out_cuda",
        because="mirror images of an element add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::reflection_pad1d_backward",
        action=Allow(),
        because="the CPU kernel walks the outputs of a channel in order",
    ),
    Rule(
        op="aten::reflection_pad2d_backward",
        when=on("cuda"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="under the flag each element gathers its mirror images in order",
    ),
    Rule(
        op="aten::reflection_pad2d_backward",
        action=Allow(),
        because="the CPU kernel walks the outputs of a channel in order",
    ),
    Rule(
        op="aten::reflection_pad3d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert="reflection_pad3d_backward_out_cuda",
        because="mirror images of an element add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::reflection_pad3d_backward",
        action=Allow(),
        because="the CPU kernel walks the outputs of a channel in order",
    ),
)
