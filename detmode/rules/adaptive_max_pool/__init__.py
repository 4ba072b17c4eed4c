"""Backward of adaptive max pooling: ``adaptive_max_pool2d_backward`` and ``_3d_``.

``nn.AdaptiveMaxPool1d`` runs the 2d operator.

## What varies

Where the input size is not a multiple of the output size, windows overlap, and the CUDA kernels add
the gradients of all windows that chose an element with a float ``atomicAdd``, in an order that
varies between runs. PyTorch always alerts for 2d, even where no windows overlap and nothing varies,
and never for 3d.

## What happens instead

A thread owns elements of ``grad_input``. Integer arithmetic finds the windows that cover one; it
visits them in row-major order and adds the gradients of those whose index points at it, in float
for float16 and bfloat16, each operation rounded explicitly, so any GPU gives the same bits. The
rounding error of the sum is tracked and added at the end, so the error is that of about one
rounding; ATen rounds each addition to the dtype. ``grad_input`` is channels last where ATen gives
that (2d only), else contiguous.

Where a plane has 16 elements or more for each window, ``grad_input`` is filled with zeros, and a
thread has a window instead: the first one that chose an element adds up all that did, in the same
order and with the same bits, and writes.

Where no windows overlap, 2d has the substitute too, because PyTorch alerts, and 3d runs ATen's
kernel. With ``substitute=False`` 2d raises PyTorch's error, and 3d warns, in detmode's words, where
windows overlap.

## Cost

``grad_output`` and ``indices`` are read and ``grad_input`` is written once, which is the floor: in
float32 12 bytes for each window and 4 for each element. Each element looks at the indices of its
windows, which come from cache, and a gradient is read only where the index points at the element.
Where a plane has 16 elements or more for each window, and all planes 2**18, the chosen elements are
written once more, and only windows look at indices. ATen reads the
same 12 bytes for each window, fills ``grad_input`` with zeros, and then reads and writes an element
once for each window that chose it; where 2d is channels last it works on contiguous copies of
``grad_output`` and ``indices`` and copies the result back. A ``grad_output`` or ``indices`` in
another memory format than ``grad_input`` is copied first.

In total, 1.0 times the floor.

## Limits

Indices from the forward operators lie in their windows. ATen scatters to an index wherever it
points, also out of bounds; here a gradient whose index lies outside its window is left out, and
nothing is read or written out of bounds. ATen reads beyond ``grad_output`` or ``indices`` when
their shapes do not go with ``self``; here that raises ``RuntimeError``. ATen's 3d takes ``indices``
as contiguous even where they are not; here their strides count. There is no substitute on MPS.
"""

from detmode.rules.adaptive_max_pool import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps
from detmode.table.conditions import on, uneven_windows
from detmode.table.rule import GPU_TO_GPU, Refuse, Substitute

RULES = (
    *chain(
        "aten::adaptive_max_pool2d_backward",
        RowFields(
            **on_cuda(launch.adaptive_max_pool2d_backward, traffic=1.0),
            alert="adaptive_max_pool2d_backward_cuda",
            because="windows that overlap add their gradients with a float atomicAdd",
        ),
        on_mps(
            "adaptive_max_pool2d_backward", "windows that overlap add their gradients atomically"
        ),
        otherwise="the CPU kernel walks the windows of a channel in order",
    ),
    *chain(
        "aten::adaptive_max_pool3d_backward",
        when=on("cuda") & uneven_windows("self", "grad_output"),
        action=Substitute(launch.adaptive_max_pool3d_backward, otherwise=Refuse(), traffic=1.0),
        guarantee=GPU_TO_GPU,
        because="windows that overlap add their gradients with a float atomicAdd",
        otherwise="windows that do not overlap write each element at most once",
    ),
)
