"""Scattered elements with a reduction: ``scatter_reduce``.

Used by ``Tensor.scatter_reduce_``, and in graph libraries.

## What varies

ATen's CUDA kernels assign each element of ``src`` to a thread: elements that meet in one
destination are added and multiplied by atomics, in an order that varies between runs. PyTorch's
flag sends floating and complex sums and means to ``index_put``, which builds int64 coordinates for
every dimension, sorts them and adds duplicates one by one; it alerts for products. Where 0.0 and
-0.0 meet, a maximum or a minimum keeps the one that came first.

## What happens instead

Sums and means are substituted with the launches of the family ``index``, as ``scatter_add`` is (see
the family ``scatter``); products, and floating maxima and minima, with those of the family
``index_reduce``. A product of scattered elements sorts their destinations; where the index is
expanded along the dimensions behind ``dim``, as graph libraries make it, the index without its
repeats. Only shapes and the index's strides decide, and all roundings are explicit: any GPU gives
the same bits. A mean divides the unrounded sum by its number of addends, counted in integers.

Sums, maxima and minima of integers do not depend on the order.

## Cost

The floor is ``src`` and ``index`` read once and the destinations read and written once. Sums and
means cost what ``scatter_add`` costs, a mean 8 bytes more per destination. Products, maxima and
minima cost what they cost in ``index_reduce``; a product whose index is not expanded sorts every
element as a row of its own. A destination that is not contiguous, or larger than the index apart
from ``dim``, adds a copy each way of the part that the index covers.

In total, for 1,000,000 rows of 64 by an expanded index to 100,000: sums and means 1.2 times the
floor, products 1.3 times the floor, maxima and minima 2.0 times the floor.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. A sum or a product whose
intermediate values are beyond the dtype's range is exact up to rounding, where ATen may give an
infinity, a zero or a NaN. ATen's CUDA kernel has no complex and no bool products.
"""

from detmode.rules.scatter_reduce import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL, argument, dtype_in, nonempty, on
from detmode.table.rule import GPU_TO_GPU, Native, Substitute

_SUMS = dtype_in("self", FLOATING + COMPLEX)
_PRODUCTS = dtype_in("self", FLOATING + INTEGRAL)
_ADDED = RowFields(
    **on_cuda(launch.scatter_reduce, otherwise=Native(), traffic=1.2),
    because="elements with one destination are added by atomicAdd",
)

RULES = chain(
    "aten::scatter_reduce.two",
    on_mps(
        "scatter_reduce_mps",
        "elements with one destination are reduced by atomics",
        when=_SUMS & nonempty("index") & argument("reduce", "sum", "mean", "prod"),
    ),
    *(
        _ADDED
        | RowFields(
            when=on("cuda") & argument("reduce", reduce) & _SUMS,
            alert=f"scatter_reduce_cuda_{reduce}_",
            until="2.10",
        )
        for reduce in ("sum", "mean")
    ),
    _ADDED | RowFields(when=on("cuda") & argument("reduce", "sum", "mean") & _SUMS, since="2.11"),
    RowFields(
        when=on("cuda") & argument("reduce", "prod") & _PRODUCTS & nonempty("index"),
        action=Substitute(launch.scatter_reduce, traffic=1.3),
        guarantee=GPU_TO_GPU,
        alert="scatter_reduce_cuda_prod_",
        because="elements with one destination are multiplied by atomics",
    ),
    RowFields(
        when=on("cuda") & argument("reduce", "amax", "amin") & dtype_in("self", FLOATING),
        action=Substitute(launch.scatter_reduce, otherwise=Native(), traffic=2.0),
        guarantee=GPU_TO_GPU,
        because="of 0.0 and -0.0 the first to come wins",
    ),
    otherwise="integers do not depend on the order; the CPU goes in order",
)
