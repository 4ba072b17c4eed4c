"""Sums and products of scattered elements: ``scatter_add``, and ``scatter`` with ``reduce=``.

Used by ``Tensor.scatter_add_`` and ``Tensor.scatter_(..., reduce="add"|"multiply")``, in graph
libraries, and in the backward of ``gather``, ``take_along_dim``, ``cummax`` and ``cummin``. The
family ``scatter_reduce`` uses the same launches.

## What varies

ATen's CUDA kernels assign each element of ``src`` to a thread: elements that meet in one
destination are added or multiplied by atomics, in an order that varies between runs. So do the
kernels for rows by which PyTorch replaces that of ``scatter_add`` since 2.13 where the package
``nvidia-cutlass-dsl`` is installed. PyTorch's flag
sends floating and complex sums to ``index_put``, which builds int64 coordinates for every
dimension, sorts them and adds duplicates one by one; it alerts for products, and for
``reduce="add"`` of integers. With a scalar instead of ``src`` nothing varies, because all addends
and factors are equal.

## What happens instead

Floating and complex sums are substituted, with the launches of the family ``index``. Elements of
vectors, four for each destination or more, are added in bins by exponent, exactly except for one
rounding, or, where destinations are few, by blocks, as single elements there. Other scattered
elements: a maximum of exponents per destination, then the addends as integers of that scale. Along
the last dimension a block does all of that for a row, or a strip of one, in its shared memory,
where the rows are many and not too long, with the same bits. Where the index is expanded along the
dimensions behind ``dim``, as graph libraries and ``gather`` of rows make it, or is much smaller
than ``self``: a stable sort of the index without its repeats, then the rows in pieces of 64. Only
shapes and the index's strides decide, and all roundings are explicit: any GPU gives the same bits.

Products take the launches of the family ``index_reduce``: a stable sort of the destinations, then
the factors in pieces of 64. Sums of integers do not depend on the order, and run ATen's
``scatter_add``.

## Cost

The floor is ``src`` and ``index`` read once and the destinations read and written once. Scattered
elements of vectors cost what single elements cost in ``index``. Others are read twice with their
indices, and use 12 bytes of scratch per destination (float64: 20, complex twice that), zeroed,
written and read, with an integer maximum and an integer addition per addend; in shared memory no
scratch, but each strip of a row, 6 at most, reads all of the row's elements. Expanded indices cost
what ``index_add`` costs, see the family ``index``; products what they cost in ``index_reduce``,
each element a row of its own unless the index is expanded. A destination that is not contiguous, or
larger than the index apart from ``dim``, adds a copy each way of the part that the index covers.

In total, sums of 1,000,000 float32 elements to 100,000 destinations move 2.2 times the floor where
their exponents take two bins, other sums of single elements 3.2 times the floor, products 3.9 times
the floor, sums of integers 1.0 times the floor.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. A sum or a product whose
intermediate values are beyond the dtype's range is exact up to rounding, where ATen may give an
infinity, a zero or a NaN. ATen's CUDA kernel has no complex and no bool products.
"""

import torch

from detmode.rules.scatter import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps
from detmode.table.conditions import (
    COMPLEX,
    FLOATING,
    INTEGRAL,
    argument,
    deterministic_flag,
    dtype_in,
    nonempty,
    on,
)
from detmode.table.rule import GPU_TO_GPU, Native, Refuse, Substitute

FORWARDS: tuple[str, ...] = ("aten::gather", "aten::cummax", "aten::cummin")

_SUMS = dtype_in("self", FLOATING + COMPLEX)
_ADDS = on("cuda") & argument("reduce", "add")
_MULTIPLIES = on("cuda") & argument("reduce", "multiply")
_ADDED = RowFields(
    **on_cuda(launch.scatter, otherwise=Native(), traffic=3.2, when=_SUMS),
    because="elements with one destination are added by atomicAdd",
)

_MPS = on_mps(
    "scatter_reduce_mps",
    "PyTorch alerts on MPS whatever is added or multiplied",
    when=_SUMS & nonempty("index"),
)

RULES = (
    *chain(
        "aten::scatter_add",
        _MPS,
        _ADDED | RowFields(alert="scatter_add_cuda_kernel", until="2.10"),
        _ADDED | RowFields(since="2.11"),
        otherwise="integer additions commute; the CPU adds along dim in order",
    ),
    *chain(
        "aten::scatter.reduce",
        _MPS,
        RowFields(
            when=_ADDS & _SUMS & deterministic_flag(False) & nonempty("index"),
            action=Substitute(launch.scatter, otherwise=Refuse(), traffic=3.2),
            guarantee=GPU_TO_GPU,
            because="without the flag, elements with one destination are added by atomicAdd",
        ),
        _ADDED | RowFields(when=_ADDS & _SUMS),
        RowFields(
            when=_ADDS & dtype_in("self", (*INTEGRAL, torch.bool)) & nonempty("index"),
            action=Substitute(launch.add_integers, traffic=1.0),
            guarantee=GPU_TO_GPU,
            alert="scatter_reduce_cuda_kernel",
            because="integer additions commute, and PyTorch alerts all the same",
        ),
        RowFields(
            when=_MULTIPLIES & dtype_in("self", FLOATING + INTEGRAL) & nonempty("index"),
            action=Substitute(launch.scatter, traffic=3.9),
            guarantee=GPU_TO_GPU,
            alert="scatter_reduce_cuda_kernel",
            because="elements with one destination are multiplied by atomics",
        ),
        otherwise="the CPU goes along dim in order; CUDA has no other dtypes",
    ),
    *chain(
        "aten::scatter.value_reduce",
        _MPS,
        otherwise="all addends and factors of a destination are equal",
    ),
)
