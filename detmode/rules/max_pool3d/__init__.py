"""Backward of max pooling: ``max_pool3d_with_indices_backward``, and 2d on MPS.

``nn.MaxPool3d`` and ``F.max_pool3d`` call the 3d operator.

## What varies

Where windows overlap, the CUDA kernel of 3d adds the gradients of all windows that chose an element
with a float ``atomicAdd``, in an order that varies between runs. PyTorch alerts on every call, even
where no windows overlap. 2d gathers on CUDA and does not vary; on MPS both add atomically.

## What happens instead

One thread owns an element of ``grad_input``. It visits, in row-major order, the windows that
contain the element, and adds the gradients of those whose index points at it, in float for float16
and bfloat16, each operation rounded explicitly, so any GPU gives the same bits. The rounding error
of the sum is tracked and added at the end, so the error is that of about one rounding; ATen rounds
each addition to the dtype. ``grad_input`` is channels last where ATen gives that, else contiguous.

Where 8 windows hold an element, as of 3 by 3 by 3 that are 2 apart, and there are 8 elements for
each window, ``grad_input`` is filled with zeros, and a thread has a window instead: the first one
that chose an element adds up all that did, in the same order and with the same bits, and writes.

``F.max_pool3d(..., return_indices=True)``, which PyTorch decomposes under its flag, calls the plain
operator in the mode, so that its backward comes here.

## Cost

``grad_output`` and ``indices`` are read and ``grad_input`` is written once, which is the floor: in
float32 12 bytes for each window and 4 for each element. An element that k windows hold reads k
indices, 8 bytes each, shared with its neighbours and so mostly from cache; it reads a gradient only
where the index points at it. Where a thread has a window, elements look at no index, and those that
are chosen, 7 % of them in a ResNet's stem, are written once more. ATen reads the same 12 bytes for
each window, fills ``grad_input`` with zeros, and then reads and writes an element once for each
window that chose it. A ``grad_output`` or ``indices`` in another memory format than ``self`` is
copied first, as in ATen.

In total, 1.0 times the floor.

## Limits

Indices from the forward operator lie in their windows. ATen scatters to an index wherever it
points, also out of bounds; here a gradient whose index lies outside its window is left out, and
nothing is read or written out of bounds. The same holds for a window that has no element at all
(dilation wider than the input), to which ATen gives an index outside. For an unbatched input that
is channels last, ATen on CUDA adds a dimension of size 1 to ``grad_input``; here it has the shape
of ``self`` and is contiguous, as PyTorch's shape rules say. ATen reads beyond ``grad_output`` when
its batch is smaller than that of ``self``; here that raises ``RuntimeError``. Large windows with
stride 1 read each neighbourhood in full: the work grows with the window's volume. There is no
substitute on MPS. The MPS kernels' caller names are read from the binary except for those of
``max_pool2d`` and ``max_pool3d``, which are taken from the operators' names.
"""

from detmode.rules.max_pool3d import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps

RULES = (
    *chain(
        "aten::max_pool3d_with_indices_backward",
        RowFields(
            **on_cuda(launch.max_pool3d_with_indices_backward, traffic=1.0),
            alert=(
                "max_pool3d_with_indices_backward_cuda",
                "max_pool3d_with_indices_backward_out_cuda",
            ),
            because="windows that overlap add their gradients with a float atomicAdd",
        ),
        on_mps(
            "max_pool3d_with_indices_backward",
            "windows that overlap add their gradients atomically",
        ),
        otherwise="the CPU kernel walks the windows of a channel in order",
    ),
    *chain(
        "aten::max_pool2d_with_indices_backward",
        on_mps(
            "max_pool2d_with_indices_backward",
            "windows that overlap add their gradients atomically",
        ),
        otherwise="the CUDA kernel gathers: each input element sums its windows in order",
    ),
)
