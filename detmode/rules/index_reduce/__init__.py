"""``index_reduce``: products, means, maxima and minima of rows by index.

Met as ``Tensor.index_reduce_`` only; no backward of PyTorch calls it.

## What varies

ATen's CUDA kernel reduces duplicates in `index` into one row by atomics: products and means are
rounded in an order that changes from run to run.

## What happens instead

The call is refused, as by PyTorch: on CUDA for every `reduce` and dtype, although a maximum, a
minimum and integers do not depend on the order; on MPS for floating and complex products and means.

## Cost

None.

## Limits

There is no substitute. `scatter_reduce` with the index expanded to the shape of `source` gives the
same mean, and has one; its maxima and minima are not refused.
"""

from detmode.conditions import COMPLEX, FLOATING, argument, dtype_in, on
from detmode.rule import Allow, Refuse, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        op="aten::index_reduce",
        when=on("mps") & argument("reduce", "prod", "mean") & dtype_in("self", FLOATING + COMPLEX),
        action=Refuse(),
        alert="index_reduce_mps",
        since="2.15",
        because="duplicates in index are reduced into one row by atomics",
    ),
    Rule(
        op="aten::index_reduce",
        when=on("cuda"),
        action=Refuse(),
        alert="index_reduce_cuda",
        because="duplicates in index are reduced into one row by atomics",
    ),
    Rule(
        op="aten::index_reduce",
        action=Allow(),
        because="the CPU reduces a destination's rows in order",
    ),
)
