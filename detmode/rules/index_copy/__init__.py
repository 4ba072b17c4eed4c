"""``index_copy``: assignment of rows by index.

Used by ``Tensor.index_copy_``, and in the updates of caches.

## What varies

Where ``index`` names a row twice, threads race to write it, on CUDA and on the CPU: another row of
``source`` may win in each run. Without duplicates nothing varies.

## What happens instead

The last duplicate wins. On CUDA each row of ``self`` gets an owner by an integer maximum of the
positions of its sources, or, where there are 16 rows and more for each source, by an election in
the row's own memory (rows of an odd number of 8 or 16 bits: where there are more than 2**24, by a
stable sort of the index); then the owners write, in words of up to 16 bytes whatever the dtype, so
any GPU gives the same bits. Up to 64 sources take one launch, in which each looks for
later ones; a single source has no duplicates and is written directly.

On CUDA a ``self`` that is not contiguous, or quantized, takes PyTorch's own deterministic path, a
sort through ``index_put``; on the CPU one thread writes in order.

## Cost

The floor is ``index`` and ``source`` read once and the rows written once, which wide rows nearly
reach. Owners are 4 bytes written for each row of ``self``, 8 from 2**31 sources on, and an atomic
and a read for each source, which reads its index twice. An election in the row's memory instead
adds a write and a read of its first word, and a byte that is written and read, for each source,
which reads its index three times. On the CPU: one thread.

In total, 1.0 times the floor for rows of 128 and more.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host; negative ones are out of
range, although PyTorch's deterministic path would accept them.
"""

from detmode.rules.index_copy import launch
from detmode.table.chain import RowFields, chain, on_cuda
from detmode.table.conditions import on, row_major
from detmode.table.rule import RUN_TO_RUN, Native

RULES = chain(
    "aten::index_copy",
    RowFields(
        **on_cuda(launch.index_copy, otherwise=Native(), traffic=1.0, when=row_major("self")),
        because="duplicates in index race to write",
    ),
    RowFields(
        when=on("cuda", "cpu"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="duplicates in index race to write; the last one wins under the flag",
    ),
    otherwise="PyTorch has one path for it on other devices, and no alert",
)
