"""Sums of pyg-lib: ``scatter_sum``, ``scatter_mul``, ``segment_sum_coo``, ``segment_mean_coo``.

The rows have no effect until pyg-lib is imported. ``gather_coo`` and the message passing of PyTorch
Geometric come down to these, in forward or in backward.

## What varies

Elements with the same index are added, or multiplied, by float atomics, in an order that varies
between runs. A segment's sum begins in a warp, and the warps' sums meet in a float ``atomicAdd``.

## What happens instead

The launches of ``scatter_add``: sums of scattered elements in bins by exponent or as integers of
one scale for each destination, or rows sorted by index and added in order. Products are sorted by
destination and multiplied in order. A mean divides the sum by the number of elements, counted as
integers. All roundings are explicit: any GPU gives the same bits.

## Cost

As ``scatter_add``, and one pass that fills the result with zeros, as in pyg-lib. The bytes are not
counted.

## Limits

Schemas are those of pyg-lib's sources; the package installs from its own index alone, and the tests
define operators of its schemas. Integers add exactly in any order and are left alone. The minima
and maxima take the first element of equal ones; ``segment_*_csr`` and ``spmm`` have one owner for
each result. They have no rows.

torch_scatter and torch_sparse register their operators without a device: PyTorch takes them apart
above the dispatch mode, and no mode sees their CUDA kernels. ``torch_scatter.scatter`` with "sum"
or "mean" calls PyTorch's ``scatter_add_``, which the family ``scatter`` has.
"""

from collections.abc import Callable
from typing import Any

from detmode.rules.pyg_lib import launch
from detmode.table.chain import chain, on_cuda
from detmode.table.conditions import FLOATING, dtype_in
from detmode.table.rule import Refuse

SUMS: dict[str, Callable[..., Any]] = {
    "pyg::scatter_sum": launch.scatter_sum,
    "pyg::scatter_mul": launch.scatter_mul,
    "pyg::segment_sum_coo": launch.segment_sum_coo,
    "pyg::segment_mean_coo": launch.segment_mean_coo,
}

RULES = tuple(
    rule
    for op, function in SUMS.items()
    for rule in chain(
        op,
        on_cuda(
            function,
            traffic=None,
            otherwise=Refuse(),
            when=dtype_in("src", FLOATING),
        ),
        because="elements with one index meet in a float atomic",
        otherwise="the CPU kernels walk the elements in order, and integers are exact in any",
    )
)

FORWARDS = ("pyg::gather_coo",)
