"""Values in order, with their indices: ``median``, ``nanmedian``, ``kthvalue`` and ``topk``.

## What varies

The index, where a value occurs more than once; never the values. The CUDA kernel of ``median`` and
``nanmedian`` with ``dim`` lets the threads that find the value race for the index. So did that of
``kthvalue`` until PyTorch 2.9; since 2.10 the smallest index wins. ``topk`` has optional kernels
for recent GPUs since 2.13, whose ties vary without the flag.

## What happens instead

``median`` and ``nanmedian`` with ``dim``, and ``kthvalue`` until 2.9, are substituted. They return
the value of ATen's CUDA kernel and the smallest index of that value, which is also the rule of
``kthvalue`` since 2.10. NaN is larger than all numbers; ``median`` gives NaN where there is one,
``nanmedian`` where there is nothing else. 0.0 and -0.0 are equal in the search for the index; the
value is ATen's, which orders -0.0 before 0.0.

Values are mapped to integers in the same order. A slice of up to 32 elements, or 64 where there are
many slices of floats, is one thread's, which fixes the answer bit by bit in registers; a longer one
is a block's, which counts it by digits of 8 bits; where rows of more than 32768 elements are few,
many blocks count one row together. Counts and minima of integers do not depend on the order of
threads: any GPU gives the same bits.

``topk``: under the flag PyTorch takes the kernel with a fixed order of ties. Of quantized tensors
it alerts, because it resizes its result, which it then writes: here it runs without the alert.

``mode`` does not vary either. To have ties in ``topk`` and ``mode`` resolved by the smallest index
too, on any GPU, add the rules of ``detmode.rules.order_statistics.ties``, which sort the whole
rows:

```python
from detmode.rules.order_statistics.ties import SMALLEST_INDEX

with DeterministicMode(rules=default_rules() + SMALLEST_INDEX):
    values, indices = torch.topk(scores, 8)
```

## Cost

The floor is ``self`` read once. Slices that are one thread's, and rows of up to 32 KiB, are read
once. Longer rows are read once for each byte of the dtype and once, up to the answer, for the
index: a float32 row five times. ATen reads once for each two bits, 16 times for float32, and once
or twice more. Along another dimension than the last, slices that are a block's are first copied
next to each other, so ``self`` is read and written once more; ATen reads them at their stride each
time. Rows shared by many blocks take two launches for each byte, and 2 KiB of scratch a row.

Native ``topk``: a prefix sum in place of atomic slots, which PyTorch's authors put at 5 to 10
percent. With ``SMALLEST_INDEX``, ``topk`` and ``mode`` sort whole rows: for float32 up to 4 passes
that read and write 12 bytes an element each, and for ``mode`` some 80 bytes more.

In total, substitutes move 1.0 times the floor for rows of up to 32 KiB.

## Limits

ATen on the CPU gives other indices of equal values. The payload of a NaN is that of the element at
the index. ``torch.median(x)`` without ``dim`` returns no index and is called unchanged. On ROCm the
ties of ``topk`` may vary, which no row covers.
"""

import torch

from detmode.rules.order_statistics import launch
from detmode.table.chain import RowFields, chain, on_cuda
from detmode.table.conditions import deterministic_flag, dtype_in, on, quantized
from detmode.table.rule import RUN_TO_RUN, Native, Refuse, Substitute
from detmode.table.unalerted import WithoutFlag

RULES = (
    *(
        rule
        for name, function in (("median", launch.median), ("nanmedian", launch.nanmedian))
        for rule in chain(
            f"aten::{name}.dim",
            on_cuda(function, traffic=1.0),
            alert="median CUDA with indices output",
            because="the threads that find the median race for its index",
            otherwise="the CPU kernel selects serially in each row",
        )
    ),
    *chain(
        "aten::kthvalue",
        RowFields(**on_cuda(launch.kthvalue, traffic=1.0), alert="kthvalue CUDA", until="2.9"),
        RowFields(when=on("mps"), action=Refuse(), alert="kthvalue MPS", since="2.15"),
        because="the threads that find the value race for its index",
        otherwise="the smallest index wins on CUDA since 2.10, and the CPU selects serially",
    ),
    *chain(
        "aten::topk",
        RowFields(
            when=deterministic_flag(True) & quantized("self"),
            action=Substitute(WithoutFlag("aten::topk"), Native(), launches=False, traffic=1.0),
            alert="quantized_resize_cpu_",
            because="it resizes its quantized result, and then writes all of it",
        ),
        RowFields(
            when=on("cuda") & dtype_in("self", [torch.bfloat16, torch.float32]),
            action=Native(),
            since="2.13",
            because="under the flag ties are ordered by a prefix sum instead of atomic slots",
        ),
        guarantee=RUN_TO_RUN,
        otherwise="the radix selection writes ties in a fixed order",
    ),
)
