"""``index_reduce``: products, means, maxima and minima of rows by index.

Used by ``Tensor.index_reduce_``, and in its backward. The families ``scatter`` and
``scatter_reduce`` use the same launches.

## What varies

ATen's CUDA kernel reduces duplicates in ``index`` into one row by atomics: products and means are
rounded in an order that varies between runs. Where 0.0 and -0.0 meet, a maximum or a minimum is the
one that came first. PyTorch alerts for every ``reduce`` and dtype, integers too.

## What happens instead

*Products.* A stable sort of the index alone, then each thread multiplies 64 consecutive rows of one
column, and what pieces share goes through the same launch again, so that no thread walks over a
long run of duplicates. A product is a float64 significand (of float64 factors a pair of them) with
an exponent of its own: no intermediate value overflows or underflows, and the product is rounded to
the dtype at the end. Products of integers wrap, as in ATen.

*Means.* The sum of the family ``index`` divided by the number of its addends, which is counted in
integers. Means of integers are made by ATen's integer operators, and rounded down.

*Maxima and minima.* Values become integers in the same order, for the integer ``atomicMax`` that
GPUs have: NaN wins, and -0.0 lies below 0.0.

All roundings are explicit: any GPU gives the same bits.

## Cost

The floor is ``source`` and the index read once and the destinations read and written once. A
product reads ``source`` once; the sort moves 48 bytes per row up to 2**18 destinations, 64 up to
2**27, 80 up to 2**31; and for every 64 rows two rows of 16 bytes an element (float64: 24, integers:
8) are written and read. Maxima and minima read ``source`` once, with at most one integer atomic an
element, and use 4 bytes of scratch per destination (8-byte dtypes: 8), written and read; int32 and
int64 without ``include_self`` write the destinations once more. Means cost what ``index_add``
costs, and 8 bytes more per destination or a search in the sorted index. A view that is not
contiguous adds a copy of ``self`` each way.

In total, for 1,000,000 rows of 64 reduced to 100,000: products 1.3 times the floor, means 1.2 times
the floor (of integers, by ATen's operators, 3.0 times the floor), maxima and minima 2.0 times the
floor.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. A product or a sum whose
intermediate values are beyond the dtype's range is exact up to rounding, where ATen may give an
infinity, a zero or a NaN. ATen's CUDA kernel has no complex and no bool dtypes.
"""

from detmode.rules.index_reduce import launch
from detmode.table.chain import RowFields, chain, on_mps
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL, argument, dtype_in, on
from detmode.table.rule import GPU_TO_GPU, Substitute

RULES = chain(
    "aten::index_reduce",
    on_mps(
        "index_reduce_mps",
        "duplicates in index are reduced into one row by atomics",
        when=argument("reduce", "prod", "mean") & dtype_in("self", FLOATING + COMPLEX),
    ),
    RowFields(
        when=on("cuda") & argument("reduce", "prod") & dtype_in("self", FLOATING + INTEGRAL),
        action=Substitute(launch.index_reduce, traffic=1.3),
        guarantee=GPU_TO_GPU,
        because="duplicates in index are multiplied into one row by atomics",
    ),
    RowFields(
        when=on("cuda") & argument("reduce", "mean") & dtype_in("self", FLOATING),
        action=Substitute(launch.index_reduce, traffic=1.2),
        guarantee=GPU_TO_GPU,
        because="duplicates in index add to one row by atomicAdd",
    ),
    RowFields(
        when=on("cuda") & argument("reduce", "mean") & dtype_in("self", INTEGRAL),
        action=Substitute(launch.mean_of_integers, traffic=3.0),
        guarantee=GPU_TO_GPU,
        because="integer additions commute, and PyTorch alerts all the same",
    ),
    RowFields(
        when=on("cuda")
        & argument("reduce", "amax", "amin")
        & dtype_in("self", FLOATING + INTEGRAL),
        action=Substitute(launch.index_reduce, traffic=2.0),
        guarantee=GPU_TO_GPU,
        because="of 0.0 and -0.0 the first to come wins",
    ),
    alert="index_reduce_cuda",
    otherwise="the CPU reduces a destination's rows in order; CUDA has no other dtypes",
)
