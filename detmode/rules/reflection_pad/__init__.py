"""Backward of reflection padding: ``reflection_pad1d_backward``, ``_2d_`` and ``_3d_``.

1d and 3d alert on CUDA. 2d has a deterministic kernel in PyTorch, which the flag selects.

## What varies

An input element that is mirrored into the padding gets gradient from several outputs; ATen's CUDA
kernels of 1d and 3d assign each output to a thread, which adds with an atomic, in an order that
varies between runs.

## What happens instead

1d and 3d: one thread owns an element of ``grad_input`` and adds its images, on each axis the one
before the input, the element itself and the one behind the input, in row-major order: at most
three, in 3d at most 27. It adds in float for float16 and bfloat16, each operation rounded
explicitly, so any GPU gives the same bits, and the rounding error of the sum is tracked and added
at its end. ``grad_input`` is contiguous, as ATen's CUDA kernels make it. Negative padding crops:
cropped elements get zero. The kernel is that of replication padding.

2d: PyTorch's own kernel, in which each input element gathers its mirror images in a fixed order.
PyTorch's documentation lists ``ReflectionPad2d`` among the operators that raise; it does not.

## Cost

1d and 3d: ``grad_output`` is read and ``grad_input`` written once, which is the floor. ATen's
kernels fill ``grad_input`` with zeros and then read and write an element once for each of its
images. A ``grad_output`` that is not contiguous is copied first. Native 2d: the gradient is read
and written once, as by the atomic kernel.

In total, 1.0 times the floor.

## Limits

Sums start from +0.0, so a gradient of -0.0 gives +0.0, as in ATen. ATen does not check that
``grad_output`` has the batch and channels of ``self``, nor in 3d that a padding is less than the
size it pads; here a mismatch raises ``RuntimeError``.
"""

from detmode.rules.reflection_pad import launch
from detmode.table.chain import chain, on_cuda
from detmode.table.conditions import on
from detmode.table.rule import RUN_TO_RUN, Native

RULES = (
    *chain(
        "aten::reflection_pad1d_backward",
        on_cuda(launch.reflection_pad1d_backward, traffic=1.0),
        alert="reflection_pad1d_backward_out_cuda",
        because="mirror images of an element add their gradients with a float atomicAdd",
        otherwise="the CPU kernel walks the outputs of a channel in order",
    ),
    *chain(
        "aten::reflection_pad2d_backward",
        when=on("cuda"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="under the flag each element gathers its mirror images in order",
        otherwise="the CPU kernel walks the outputs of a channel in order",
    ),
    *chain(
        "aten::reflection_pad3d_backward",
        on_cuda(launch.reflection_pad3d_backward, traffic=1.0),
        alert="reflection_pad3d_backward_out_cuda",
        because="mirror images of an element add their gradients with a float atomicAdd",
        otherwise="the CPU kernel walks the outputs of a channel in order",
    ),
)
