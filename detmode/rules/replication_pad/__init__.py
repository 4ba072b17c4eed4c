"""Backward of replication padding: ``replication_pad1d_backward``, ``_2d_`` and ``_3d_``.

All three alert on CUDA; ``F.pad(mode="replicate")`` and ``nn.ReplicationPad*d`` call them.

## What varies

Every padded output of an edge is a copy of one input element; ATen's CUDA kernels assign each
output to a thread, which adds its gradient to that element with an atomic, in an order that varies
between runs.

## What happens instead

One thread owns an element of ``grad_input`` and adds the outputs that copied it in row-major order,
in float for float16 and bfloat16, each operation rounded explicitly, so any GPU gives the same
bits. An element with more than 64 copies is added by the 32 lanes of a warp: each takes every 32nd
copy, and their sums are joined in a fixed order. The rounding error of each sum is tracked and
added at its end, so the error stays that of about one rounding. ``grad_input`` is contiguous, as
ATen's CUDA kernels make it. Negative padding crops: cropped elements get zero.

Under its flag PyTorch's Python replaces replication on CUDA by a decomposition whose backward is
``index_put``. Under the mode the plain operator is called, and its backward reaches this table.

## Cost

``grad_output`` is read and ``grad_input`` written once, which is the floor. ATen's kernels write
``grad_input`` with zeros and then read and write an element once for each of its copies. The
decomposition's ``index_put`` sorts one int64 index for each output element. A ``grad_output`` that
is not contiguous is copied first.

In total, 1.0 times the floor.

## Limits

Sums start from +0.0, so a gradient of -0.0 gives +0.0, as in ATen. In 1-D and 2-D ATen does not
check that ``grad_output`` has the batch and channels of ``self``; here other sizes raise
``RuntimeError``. One warp is the most that serves an element: an input of few elements with padding
far larger than itself (a single pixel spread over a plane) leaves most of the GPU idle.
"""

from detmode.rules.replication_pad import launch
from detmode.table.chain import chain, on_cuda

RULES = tuple(
    rule
    for name, function, has_out_alert in (
        ("replication_pad1d_backward", launch.replication_pad1d_backward, False),
        ("replication_pad2d_backward", launch.replication_pad2d_backward, True),
        ("replication_pad3d_backward", launch.replication_pad3d_backward, True),
    )
    for rule in chain(
        f"aten::{name}",
        on_cuda(function, traffic=1.0),
        alert=(f"{name}_cuda", f"{name}_out_cuda") if has_out_alert else f"{name}_cuda",
        because="copies of an edge element add their gradients with a float atomicAdd",
        otherwise="the CPU kernel walks the outputs of a channel in order",
    )
)
