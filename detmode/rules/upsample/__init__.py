"""Backward of linear, bilinear, bicubic and trilinear interpolation: ``upsample_*_backward``.

``F.interpolate`` and ``nn.Upsample`` with ``mode="linear"``, ``"bilinear"``, ``"bicubic"`` and
``"trilinear"``, without ``antialias``, which is a separate family. Under PyTorch's flag the 2-D and
3-D modes take a decomposition whose backward goes through ``index_put`` (bicubic since 2.15);
inside a mode of detmode they call the plain operator.

## What varies

ATen's CUDA kernels assign each element of ``grad_output`` to a thread, which adds its share to 2,
4, 8 or 16 elements of ``grad_input`` with atomics. Neighbours add to the same elements, in an order
that varies between runs; in float16 and bfloat16 every one of these additions rounds.

## What happens instead

A small launch tabulates, for each dimension, the output positions that read an input position and
their weights, by ATen's own arithmetic, in memory of the call. Then
one thread owns an element of ``grad_input``, or a few neighbours, and gathers: output positions
ascending, the last dimension outermost, each dimension summed on its own, in float for float16 and
bfloat16. Where ``grad_input`` has less than 65,536 elements, each of which meets at most 64 of
``grad_output``, there is only one launch, in which each block first writes for itself the tables,
if they take at most 8 KiB, or what it needs of them for a strip of a row: for contiguous rows of at
least 128 elements, in at most 32 KiB.

Where more than 64 positions along the last dimension read one, as a vocoder's 256-fold
``upsample_linear1d``, a warp owns an element of a contiguous ``grad_input``: each of its 32 threads
adds every 32nd position, ascending, then neighbours add up in pairs. Above 4,096 it is a block of
256 threads. An image's last dimension has a launch of its own then, after the others.

Each operation is rounded explicitly and the order depends on the sizes alone, so any GPU gives the
same bits. ``grad_input`` has the memory format that ATen gives it, and is a copy where no dimension
changes its size.

## Cost

The floor is ``grad_output`` read and ``grad_input`` written once. The tables add ``out`` times (4 +
4 * taps) and ``in`` times 8 bytes for each dimension. Contiguous: a block sums the leading
dimensions of an output column once, coalesced, and shares it between the elements that read it, so
an element of ``grad_output`` is read at most once for each weight of the leading dimensions (twice
for bilinear, four times for bicubic and trilinear; rows that one thread owns share it), all but the
first time from cache; ATen fills ``grad_input`` with zeros and adds to it 4, 16 and 8 times for
each such element. channels_last: once for each weight of all dimensions, coalesced along the
channels. Where an element of ``grad_input`` meets more than 64 elements of ``grad_output``, in
channels_last, with a ``grad_input`` too small to fill a GPU, or all 64 along the last dimension,
this one gets a launch of its own, and the sums between the two are written and read once: 1 / (the
leading dimensions' enlargement) of ``grad_output``, in float.

In total, 1.0 times the floor, the tables of all but the smallest images being small.

## Limits

A dimension has less than 2**31 positions. An explicit scale that leads outside the input reads the
input's end, as on the CPU; ATen's CUDA kernels for the linear modes do not guard against it. In
channels_last a thread adds all that reach one channel's element along a dimension.
"""

from detmode.rules.upsample import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps
from detmode.table.conditions import nonempty

_ADDED = "output positions that read one input position add to it by atomicAdd"

RULES = (
    *(
        rule
        for name, function in (
            ("upsample_linear1d_backward", launch.upsample_linear1d_backward),
            ("upsample_bilinear2d_backward", launch.upsample_bilinear2d_backward),
        )
        for rule in chain(
            f"aten::{name}",
            on_cuda(function, traffic=1.0),
            alert=f"{name}_out_cuda",
            because=_ADDED,
            otherwise="the CPU adds a channel's output positions in order; PyTorch does not alert "
            "on MPS",
        )
    ),
    *(
        rule
        for name, alert, function in (
            ("bicubic2d", "bicubic2d", launch.upsample_bicubic2d_backward),
            ("trilinear3d", "trilinear", launch.upsample_trilinear3d_backward),
        )
        for rule in chain(
            f"aten::upsample_{name}_backward",
            RowFields(
                **on_cuda(function, traffic=1.0),
                alert=f"upsample_{name}_backward_out_cuda",
                because=_ADDED,
            ),
            on_mps(
                f"upsample_{alert}_backward",
                "output positions that read one input position add to it atomically",
                when=nonempty("grad_output"),
            ),
            otherwise="the CPU kernel adds a channel's output positions in order",
        )
    ),
)
