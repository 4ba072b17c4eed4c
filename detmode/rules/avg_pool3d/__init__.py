"""Backward of average pooling in 3-D: ``avg_pool3d_backward``.

The 1-D and 2-D operators have deterministic CUDA kernels of their own; only the 3-D one alerts.

## What varies

Where the stride is smaller than the window, windows overlap. ATen's CUDA kernel assigns each window
to one thread, which adds its share to the elements of ``grad_input`` with atomics, in an order that
varies between runs. With stride 1 and no padding, and with windows that do not overlap, ATen has
other kernels that do not vary, but PyTorch alerts on every call.

## What happens instead

One thread owns an element of ``grad_input`` and adds the windows that cover it in row-major order,
in float for float16 and bfloat16, each operation rounded explicitly, so any GPU gives the same
bits. Where all windows have one divisor it divides the sum, else each share; a sum that overflows
is taken again share by share. The rounding error of the sum is tracked and added at the end, so the
error stays that of about one rounding. ``grad_input`` is contiguous, as ATen's CUDA kernel makes
it.

## Cost

``grad_output`` is read and ``grad_input`` written once, which is the floor; an element that k
windows cover reads k values, most of them shared with its neighbours and so from cache. ATen's
kernel for overlapping windows fills ``grad_input`` with zeros and then reads and writes an element
once for each window that covers it. A ``grad_output`` that is not contiguous is copied first, as in
ATen.

In total, 1.0 times the floor.

## Limits

Sums start from +0.0, so a share of -0.0 gives +0.0, as on the CPU; ATen's CUDA kernel for windows
that do not overlap keeps -0.0. ATen reads beyond ``grad_output`` when its batch is smaller than
that of ``self``; here that raises ``RuntimeError``. Large windows with stride 1 read each
neighbourhood in full: the work grows with the window's volume.
"""

from detmode.rules.avg_pool3d import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps

RULES = chain(
    "aten::avg_pool3d_backward",
    RowFields(
        **on_cuda(launch.avg_pool3d_backward, traffic=1.0),
        alert="avg_pool3d_backward_cuda",
        because="overlapping windows add to one element by atomicAdd, in the order they come",
    ),
    on_mps(
        "avg_pool3d_backward",
        "PyTorch alerts on MPS, where windows overlap or always: it is not known which",
    ),
    otherwise="on other devices PyTorch does not alert; the CPU adds a plane's windows in order",
)
