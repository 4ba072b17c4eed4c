"""``scatter`` with a source tensor: assignment.

Used by ``Tensor.scatter_``, and in the backward of ``max``, ``min``, ``median``, ``mode``,
``sort``, ``topk`` and ``kthvalue`` along a dimension.

## What varies

Of elements of ``src`` that meet in one destination, whichever thread of ATen's CUDA kernel writes
last wins.

## What happens instead

Assignments: of elements with one destination the last along ``dim`` wins. Each destination gets an
owner by an integer maximum of the positions of its sources, and the owners write, so any GPU gives
the same bits. Along the last dimension a block finds the owners of a row, or of a strip of one, in
its shared memory, where the rows are many and not too long. Otherwise a destination elects its
owner in its own memory; in 8 and 16 bits, which hold no position, in memory beside it, or, where
there are more than 2**24 destinations, and 16 for each source, a stable sort of the positions finds
the last ones. Where the index is expanded along the dimensions behind
``dim`` whole rows are owned. A ``self`` that is not contiguous, or quantized, takes PyTorch's own
path through ``index_put``; if a program turns the flag off inside the block, that path does not
run, and detmode warns in its own words.

## Cost

The floor is ``src`` and ``index`` read once and the destinations written once. In shared memory
each strip reads its row's index once. In memory the index is read three times, and a write and a
read of the destination, and a byte that is written and read, are added for each source. In 8 and 16
bits the index is read twice, 4 bytes are written for each destination, 8 from 2**31 sources on, and
an atomic and a read are added for each source; a sort instead of that moves 48 bytes for each
source up to 2**18 destinations, 64 up to 2**27, and 64 to make its keys. An index that is smaller
than ``self`` apart from ``dim`` adds 64 bytes for each of its elements. PyTorch's path makes int64
coordinates for every dimension, and sorts them.

In total, 2.6 times the floor in memory.

## Limits

There is no check for duplicates: a call without any takes the deterministic path too. An index out
of range traps on a GPU, as in ATen, and raises on the host.
"""

from detmode.rules.scatter_assign import launch
from detmode.table.chain import RowFields, chain, on_cuda
from detmode.table.conditions import nonempty, on, row_major
from detmode.table.rule import RUN_TO_RUN, Native

FORWARDS: tuple[str, ...] = tuple(
    f"aten::{name}"
    for name in ("kthvalue", "max", "median", "min", "mode", "nanmedian", "sort", "topk")
)

RULES = chain(
    "aten::scatter.src",
    RowFields(
        **on_cuda(launch.scatter, otherwise=Native(), traffic=2.6, when=row_major("self")),
        because="elements of src with one destination race to write it",
    ),
    RowFields(
        when=on("cuda") & nonempty("index"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="elements with one destination race to write; under the flag index_put sorts them",
    ),
    alert="scatter_cuda_",
    otherwise="the CPU writes along dim in order; elsewhere PyTorch has one path and no alert",
)
