"""Scans of one row: ``cumsum``, ``cumprod`` and ``logcumsumexp``.

``torch.cumsum``, ``cumprod`` and ``logcumsumexp`` and their backward call them, and so does the
backward of ``prod`` over a dimension.

## What varies

Where all elements lie along the scanned dimension, ATen's CUDA scan is CUB's single-pass one, whose
tiles take their prefix from whichever neighbours have finished: floating-point results depend on
timing. Under the flag ``cumsum`` takes another path, which cuts the row into as many parts as the
GPU has multiprocessors: its bits depend on the GPU model. Several rows at once are scanned by other
kernels, in a fixed order. PyTorch has no alert for scans.

## What happens instead

The row is cut into tiles of at most 4096 elements, a size that depends on the dtype alone. A first
launch finds each tile's total; 32 tiles are a node of a tree, 32 nodes a node above, and a small
launch for each level finds the totals of the nodes. The last launch joins the totals of the
siblings before a tile on each level in order, and scans the tile from there. The order depends on
the number of elements alone, and every operation is rounded explicitly, so any GPU gives the same
bits. No block waits for another.

``cumsum`` adds 16-bit dtypes in float, float32 and complex64 in pairs of floats, and float64 and
complex128 in their own precision. ``cumprod`` stores the exponent of a product separately, so that
intermediate products neither overflow nor underflow; it multiplies complex numbers in double,
others in pairs. ``logcumsumexp`` keeps the largest element and a sum of exponentials relative to
it, complex ones in double; it has its own ``exp`` and ``log``, because CUDA's differ between GPUs.

Several rows at once, and integers, do not vary and are called unchanged.

## Cost

Each element is read twice and written once, by PyTorch's own path under the flag as well; CUB's
scan reads it once. A tile adds at most 32 bytes of total, written once and read by up to 31 others.
A row of one tile is read once, by one launch; one of up to 32 tiles takes two, and each level of
nodes one more: five for 2^28 floats. Elements that are not neighbours in memory are read where
they are, without a copy; ``dtype=`` converts first, as in ATen.

In total, 1.5 times the floor.

## Limits

``cumsum`` may overflow if the sum of a part of the row overflows, even if the running sum does not,
as in ATen. ``cumprod`` gives the finite product where ATen's overflows in an intermediate value. A
sum of -0.0 is 0.0, as on the CPU. The imaginary part of a complex ``logcumsumexp`` is that of the
largest element so far, by real part, plus an angle of at most pi; ATen's may differ from it by a
multiple of 2 pi that depends on its order. Its sine, cosine and arc tangent are CUDA's, in double:
another version of NVRTC may give other bits. Where several real parts are +inf, the angle is that
of the sum of their directions; ATen's CPU kernel gives a multiple of pi / 4 or NaN there.
``logcumsumexp`` with an ``out=`` of another floating dtype converts the result, where ATen raises.
"""

from detmode.rules.scan import launch
from detmode.table.chain import RowFields, chain
from detmode.table.conditions import COMPLEX, FLOATING, dtype_in, lies_along, on, result_dtype_in
from detmode.table.rule import GPU_TO_GPU, RUN_TO_RUN, Native, Refuse, Substitute

_FLOATS = FLOATING + COMPLEX

_SEVERAL = "several rows are scanned in a fixed order, and integers are exact"
_ON_MPS = RowFields(
    when=on("mps") & result_dtype_in("self", _FLOATS),
    action=Native(),
    guarantee=RUN_TO_RUN,
    since="2.15",
    because="under the flag PyTorch takes another route",
)

RULES = (
    *chain(
        "aten::cumsum",
        RowFields(
            when=on("cuda") & lies_along("self", "dim") & result_dtype_in("self", _FLOATS),
            action=Substitute(launch.cumsum, otherwise=Native(), traffic=1.5),
            guarantee=GPU_TO_GPU,
            because="the tiles of a single-pass scan combine in an order that depends on timing",
        ),
        _ON_MPS,
        otherwise=_SEVERAL,
    ),
    *(
        rule
        for op, function, floats in (
            ("aten::cumprod", launch.cumprod, result_dtype_in("self", _FLOATS)),
            ("aten::logcumsumexp", launch.logcumsumexp, dtype_in("self", _FLOATS)),
        )
        for rule in chain(
            op,
            RowFields(
                when=on("cuda") & lies_along("self", "dim") & floats,
                action=Substitute(function, otherwise=Refuse(), traffic=1.5),
                guarantee=GPU_TO_GPU,
                because="as for cumsum, and PyTorch has no other path",
            ),
            _ON_MPS,
            otherwise=_SEVERAL,
        )
    ),
)

# The backward of a product over a dimension is made of cumprod, that of a scan of scans.
FORWARDS = ("aten::cumsum", "aten::cumprod", "aten::logcumsumexp", "aten::prod")
