"""Sums and means of scattered elements: ``scatter_add`` and ``scatter_reduce``.

Met as ``Tensor.scatter_add_`` and ``Tensor.scatter_reduce_``, in graph libraries, and in the
backward of ``gather``, ``take_along_dim``, ``cummax`` and ``cummin``.

## What varies

ATen's CUDA kernels give each element of `src` to a thread: sums and products of elements that meet
in one destination are made by atomics, in an order that changes from run to run. PyTorch's flag
sends floating and complex sums to `index_put`, which builds int64 coordinates for every dimension,
sorts them and adds duplicates one by one.

## What happens instead

Floating and complex sums and means are substituted, with the launches of the room `index`. Sums of
scattered elements: a maximum of exponents per destination, then the addends as integers of that
scale. Where the index is expanded along the dimensions behind `dim`, as graph libraries and
`gather` of rows make it, or is much smaller than `self`: a stable sort of the index without its
repeats, then the rows in pieces of 64. Only shapes and the index's strides decide, and all
roundings are explicit: any GPU gives the same bits. A mean divides the unrounded sum by its number
of addends, counted in integers.

Products are refused, as by PyTorch. Integers, amax and amin do not depend on the order.

## Cost

The floor is `src` and `index` read once and the destinations read and written once. Scattered
elements are read twice with their indices, and use 12 bytes of scratch per destination (float64:
20, complex twice that; a mean 8 more), zeroed, written and read, with an integer maximum and an
integer addition per addend. Expanded indices cost what `index_add` costs, see the room `index`. A
destination that is not contiguous, or larger than the index apart from `dim`, adds a copy each way
of the part that the index covers.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. A sum of intermediate
values beyond the dtype's range gives the sum where ATen may give an infinity.
"""

from detmode.conditions import COMPLEX, FLOATING, argument, dtype_in, nonempty, on
from detmode.rule import GPU_TO_GPU, Allow, Native, Refuse, Rule, Substitute
from detmode.rules.scatter import launch

FORWARDS: tuple[str, ...] = ("aten::gather", "aten::cummax", "aten::cummin")

_SUMS = dtype_in("self", FLOATING + COMPLEX)
_MPS = on("mps") & _SUMS & nonempty("index")

RULES: tuple[Rule, ...] = (
    Rule(
        op="aten::scatter_add",
        when=_MPS,
        action=Refuse(),
        alert="scatter_reduce_mps",
        since="2.15",
        because="elements with one destination are added by atomics",
    ),
    Rule(
        op="aten::scatter_add",
        when=on("cuda") & _SUMS,
        action=Substitute(launch.scatter_add, otherwise=Native()),
        guarantee=GPU_TO_GPU,
        alert="scatter_add_cuda_kernel",
        until="2.10",
        because="elements with one destination are added by atomicAdd",
    ),
    Rule(
        op="aten::scatter_add",
        when=on("cuda") & _SUMS,
        action=Substitute(launch.scatter_add, otherwise=Native()),
        guarantee=GPU_TO_GPU,
        since="2.11",
        because="elements with one destination are added by atomicAdd",
    ),
    Rule(
        op="aten::scatter_add",
        action=Allow(),
        because="integer additions commute; the CPU adds along dim in order",
    ),
    Rule(
        op="aten::scatter_reduce.two",
        when=_MPS & argument("reduce", "sum", "mean", "prod"),
        action=Refuse(),
        alert="scatter_reduce_mps",
        since="2.15",
        because="elements with one destination are reduced by atomics",
    ),
    *(
        Rule(
            op="aten::scatter_reduce.two",
            when=on("cuda") & argument("reduce", reduce) & _SUMS,
            action=Substitute(launch.scatter_reduce, otherwise=Native()),
            guarantee=GPU_TO_GPU,
            alert=f"scatter_reduce_cuda_{reduce}_",
            until="2.10",
            because="elements with one destination are added by atomicAdd",
        )
        for reduce in ("sum", "mean")
    ),
    Rule(
        op="aten::scatter_reduce.two",
        when=on("cuda") & argument("reduce", "sum", "mean") & _SUMS,
        action=Substitute(launch.scatter_reduce, otherwise=Native()),
        guarantee=GPU_TO_GPU,
        since="2.11",
        because="elements with one destination are added by atomicAdd",
    ),
    Rule(
        op="aten::scatter_reduce.two",
        when=on("cuda") & argument("reduce", "prod") & nonempty("index"),
        action=Refuse(),
        alert="scatter_reduce_cuda_prod_",
        because="elements with one destination are multiplied by atomics",
    ),
    Rule(
        op="aten::scatter_reduce.two",
        action=Allow(),
        because="integer sums, amax and amin do not depend on the order; the CPU goes in order",
    ),
)
